"""Findings in Parquet: one file for each outbox, one row for each message, verdict and consumer, first and last seen.

The same as is kept beside the outbox (store/postgres/findings.py), for whoever reads files: Spark, pandas, a lake.
A file is replaced as a whole by each run, or not at all.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from tallymark.errors import Problem, UsageError
from tallymark.lifecycle import Stage, Verdict
from tallymark.tally.findings import Finding, KeptFinding, Scope, merged

_OF_FINDING = (
    "id",
    "key",
    "topic",
    "partition",
    "offset",
    "position",
    "consumer",
    "stage",
    "verdict",
    "evidence",
)
_SEEN = ("run", "first_seen", "last_seen", "over_at")


class FindingFiles:
    """A folder of them."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UsageError(
                f"{folder} cannot be made: {error.strerror}", remedy="choose another folder"
            ) from error

    def path(self, outbox_id: str) -> Path:
        return self._folder / f"{outbox_id}.parquet"

    def passing(
        self, found: Iterable[Finding], scope: Scope, *, outbox_id: str, run: str, at: datetime
    ) -> Iterator[Finding]:
        """What is found goes by; when all has, it is kept, as seen when the stations were looked at."""
        seen = []
        for each in found:
            seen.append(each)
            yield each
        self._write(self.path(outbox_id), merged(self.kept(outbox_id), seen, scope, run=run, at=at))

    def kept(self, outbox_id: str) -> list[KeptFinding]:
        """What earlier runs have kept."""
        import pyarrow as pa
        import pyarrow.parquet as pq

        path = self.path(outbox_id)
        if not path.exists():
            return []
        try:
            rows = pq.read_table(path, schema=_schema()).to_pylist()
        except (OSError, pa.ArrowException) as error:
            raise Problem(
                f"{path} is no file of findings", remedy="give --findings-to another folder"
            ) from error
        return [_kept(row) for row in rows]

    def _write(self, path: Path, rows: Sequence[KeptFinding]) -> None:
        import pyarrow as pa
        import pyarrow.parquet as pq

        ordered = sorted(
            rows,
            key=lambda each: (each.finding.position is None, each.finding.position or 0, each.finding.id),
        )
        table = pa.Table.from_pylist([_row(each) for each in ordered], schema=_schema())
        aside = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
        try:
            pq.write_table(table, aside, compression="zstd")
            os.replace(aside, path)
        except OSError as error:
            raise Problem(
                f"{path} cannot be written: {error.strerror}", remedy="look at its folder"
            ) from error
        finally:
            aside.unlink(missing_ok=True)


def _schema() -> Any:
    import pyarrow as pa

    moment = pa.timestamp("us", tz="UTC")
    kinds = {"key": pa.binary(), "partition": pa.int32(), "offset": pa.int64(), "position": pa.int64()}
    kinds |= dict.fromkeys(("first_seen", "last_seen", "over_at"), moment)
    return pa.schema([(name, kinds.get(name, pa.string())) for name in (*_OF_FINDING, *_SEEN)])


def _row(each: KeptFinding) -> dict[str, Any]:
    finding = {name: getattr(each.finding, name) for name in _OF_FINDING}
    said = {"stage": each.finding.stage.value, "verdict": each.finding.verdict.value}
    return {**finding, **said, **{name: getattr(each, name) for name in _SEEN}}


def _kept(row: dict[str, Any]) -> KeptFinding:
    named = {name: row[name] for name in _OF_FINDING}
    finding = Finding(**{**named, "stage": Stage(row["stage"]), "verdict": Verdict(row["verdict"])})
    return KeptFinding(finding, *(row[name] for name in _SEEN))
