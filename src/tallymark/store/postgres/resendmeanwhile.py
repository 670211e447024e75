"""What others write of a key while its messages are sent again (pitfall 18).

Whether a later message of a key is there is looked for before the rows are written by which an earlier one is sent again.
In between others write too, and what they write before those rows is applied first. So it is looked again at the end, in
the same transaction: `begin` before the first look, `refuse` behind the last row.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

from tallymark.errors import Problem
from tallymark.store.postgres.connection import Connection
from tallymark.store.queries import load

# So long transactions are waited for that may write a later message of a key, and so often it is looked.
PATIENCE_S = 10.0
_LOOK_EVERY_S = 0.05
_ANY_ORDER = "(--any-order where the handlers can take any)"


class Meanwhile:
    """Of one transaction that sends messages again."""

    def __init__(self, connection: Connection, schema: str) -> None:
        self._connection = connection
        self._sql = load("tallymark.store.postgres", "resend.sql", schema)
        # Everything up to here can be seen from the first look on; and behind it what that look has found.
        self._seen = 0
        self.known: list[uuid.UUID] = []

    def begin(self) -> None:
        """Before the first look."""
        last, floor = self._reach()
        self._seen = last if floor is None else min(last, floor)

    @contextmanager
    def asking(self) -> Iterator[None]:
        """While others are asked, which takes as long as it takes: the transaction may idle."""
        row = self._connection.execute(self._sql["idle_longer"]).fetchone()
        if row is None:
            raise AssertionError("a setting has a value")
        yield
        self._connection.execute(self._sql["idle_as_before"], {"idle": row[0]})

    def refuse(
        self,
        minded: Mapping[tuple[str, bytes], uuid.UUID],
        made: Sequence[Mapping[str, object]],
        *,
        patience_s: float,
    ) -> None:
        """Behind the last row: Problem where somebody has written a later one, or may have.

        `minded`: by topic and key, the last message that must not come behind it; `made`: the rows of all. Whoever drew a
        position before ours need not have committed yet: it is waited for, but not for ever.
        """
        placed = {uuid.UUID(str(row["id"])): int(str(row["position"])) for row in made}
        end = max(placed[id_] for id_ in minded.values())
        deadline = time.monotonic() + patience_s
        while (floor := self._reach()[1]) is not None and floor < end - 1:
            if time.monotonic() > deadline:
                raise Problem(
                    "a transaction that writes to the outbox is still open, perhaps a later message of these keys:"
                    " nothing was sent again",
                    remedy=f"try it when that has ended {_ANY_ORDER}",
                )
            time.sleep(_LOOK_EVERY_S)
        asked = {
            "topics": [topic for topic, _ in minded],
            "keys": [key for _, key in minded],
            "ids": list(minded.values()),
            "before": [placed[id_] for id_ in minded.values()],
            "seen": self._seen,
            "end": end,
            "known": [*self.known, *placed],
        }
        if hit := self._connection.execute(self._sql["written_meanwhile"], asked).fetchone():
            raise Problem(
                f"a later message of the key of {hit[0]} was written meanwhile: nothing was sent again",
                remedy=f"try it again {_ANY_ORDER}",
            )

    def _reach(self) -> tuple[int, int | None]:
        """How far the outbox was written, and the lowest floor of others who still write."""
        row = self._connection.execute(self._sql["reach"]).fetchone()
        if row is None:
            raise AssertionError("a sequence has a value")
        return row[0], row[1]
