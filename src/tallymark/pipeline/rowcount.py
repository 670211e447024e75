"""How many rows tasks have written, counted as they write them: what the driver then finds must be as many.

Tasks write into a folder that the driver reads. Where it is not the same folder (each machine has a disk of its own under
that path), Spark is content with what little it finds there, and so would we be.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING

from tallymark.errors import Problem, Unreachable

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

# The figure comes with Spark's own events, a moment after the rows.
_LATEST_S = 60.0


class RowCount:
    """The rows of one write. A task that was lost or beaten is not counted, nor is one that ran again counted twice."""

    def __init__(self) -> None:
        from pyspark.sql import Observation

        self._seen = Observation()

    def over(self, frame: DataFrame) -> DataFrame:
        """The same rows, counted as they go by."""
        from pyspark.sql import functions as sql

        return frame.observe(self._seen, sql.count(sql.lit(1)).alias("rows"))

    def refuse_other(self, found: int, folder: Path) -> None:
        """Refuse to go on with more or fewer rows than were written."""
        written = self._rows()
        if written != found:
            raise Problem(
                f"{written:,} rows were written, {found:,} are here: do driver and executors share the folder {folder}?",
                remedy="choose one that all of them see: nothing of this counts",
            )

    def _rows(self) -> int:
        seen = self._seen._jo
        if seen is None:
            raise AssertionError("it was put over nothing")
        # Asked for by itself it would wait for ever for events that Spark had dropped.
        until = time.monotonic() + _LATEST_S
        while not seen.future().isCompleted():
            if time.monotonic() > until:
                raise Unreachable(
                    "Spark does not say how many rows it has written",
                    remedy="run it again, where it does not try by itself; look whether the driver lacks CPU or memory",
                )
            seen.getOrEmpty()  # waits for a tenth of a second
        return int(self._seen.get["rows"])
