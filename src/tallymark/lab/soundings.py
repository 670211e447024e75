"""What the databases of a demo say of its progress. A database that is away says nothing: None, and no error."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, LiteralString

import psycopg

_TIMEOUT_S = 3
_EVERY_S = 1.0
# Rates are over so many soundings: one alone jumps.
_SPAN = 5

_TRANSFERS: LiteralString = "select count(*) from transfer"
_ENTRIES: LiteralString = "select count(*) from entry"
_LAST_BATCH: LiteralString = """
select state from tallymark.batches where split_part(owner, ':', 2) = %s and kind = 'range'
 order by claimed_at desc limit 1
"""
_MESSAGE_OF_LAST_BATCH: LiteralString = """
select o.id
  from (select * from tallymark.batches where split_part(owner, ':', 2) = %s and kind = 'range'
         order by claimed_at desc limit 1) b
 cross join tallymark.outbox_identity i
  join tallymark.outbox o
    on o.position > b.after_position and o.position <= b.upto and mod(o.slot, i.lanes) = b.lane
 order by o.position limit 1
"""


@dataclass(frozen=True, slots=True)
class Counts:
    """How many transfers have come how far."""

    bank: int = 0
    log: int = 0
    ledger: int = 0
    report: int = 0
    naive_bank: int = 0
    naive_ledger: int = 0


class Soundings:
    """Asks; one connection per database, made again when it is lost. For any thread."""

    def __init__(self, urls: Mapping[str, str]) -> None:
        self._urls = urls
        self._open: dict[str, psycopg.Connection[Any]] = {}
        self._lock = threading.Lock()

    def close(self) -> None:
        with self._lock:
            for connection in self._open.values():
                connection.close()
            self._open.clear()

    def ask(self, database: str, query: LiteralString, parameters: Sequence[object] = ()) -> Any:
        """The first column of the first row; None while the database is away."""
        with self._lock:
            try:
                if database not in self._open:
                    self._open[database] = psycopg.connect(
                        self._urls[database], autocommit=True, connect_timeout=_TIMEOUT_S
                    )
                row = self._open[database].execute(query, parameters or None).fetchone()
            except psycopg.OperationalError:
                if lost := self._open.pop(database, None):
                    lost.close()
                return None
            return row[0] if row else None

    # Ours

    def committed(self) -> int | None:
        return self._count("bank", _TRANSFERS)

    def logged(self) -> int | None:
        """What relays have sent and marked."""
        return self._count("bank", "select coalesce(sum(sent), 0) from tallymark.lanes")

    def booked(self, follower: str) -> int | None:
        return self._count(follower, _ENTRIES)

    def lanes_of(self, pid: int) -> int | None:
        """How many lanes the relay with this process id holds."""
        return self._count(
            "bank", "select count(*) from tallymark.lanes where split_part(owner, ':', 2) = %s", pid
        )

    def fenced(self) -> int | None:
        """How often the write of a relay that had lost its lane was refused."""
        return self._count("bank", "select coalesce(sum(fenced), 0) from tallymark.lanes")

    def partitions_of(self, pid: int) -> int | None:
        """How many partitions the ledger process with this id holds."""
        return self._count(
            "ledger", "select count(*) from tallymark.positions where split_part(owner, ':', 2) = %s", pid
        )

    def last_batch_state(self, pid: int) -> str | None:
        """What became of the last batch that the relay with this process id claimed."""
        found = self.ask("bank", _LAST_BATCH, [str(pid)])
        return None if found is None else str(found)

    def message_of_last_batch(self, pid: int) -> str | None:
        """The id of a message in it."""
        found = self.ask("bank", _MESSAGE_OF_LAST_BATCH, [str(pid)])
        return None if found is None else str(found)

    def last_position(self) -> int | None:
        return self._count("bank", "select last_value from tallymark.outbox_position")

    # The twin

    def naive_committed(self) -> int | None:
        return self._count("naive_bank", _TRANSFERS)

    def naive_booked(self) -> int | None:
        return self._count("naive_ledger", _ENTRIES)

    def counts(self, before: Counts) -> Counts:
        """All at once; what does not answer stays as it was."""
        return Counts(
            bank=_or(self.committed(), before.bank),
            log=_or(self.logged(), before.log),
            ledger=_or(self.booked("ledger"), before.ledger),
            report=_or(self.booked("report"), before.report),
            naive_bank=_or(self.naive_committed(), before.naive_bank),
            naive_ledger=_or(self.naive_booked(), before.naive_ledger),
        )

    def _count(self, database: str, query: LiteralString, *parameters: object) -> int | None:
        found = self.ask(database, query, [str(each) for each in parameters])
        return None if found is None else int(found)


class Sampler:
    """Sounds once a second in a thread of its own, for the display."""

    def __init__(self, urls: Mapping[str, str]) -> None:
        self._soundings = Soundings(urls)
        self._seen: deque[tuple[float, Counts]] = deque([(time.monotonic(), Counts())], maxlen=_SPAN)
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="sampler", daemon=True)

    def __enter__(self) -> Sampler:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()
        self._soundings.close()

    @property
    def counts(self) -> Counts:
        return self._seen[-1][1]

    @property
    def rates(self) -> dict[str, float]:
        return rates(list(self._seen))

    def _run(self) -> None:
        while not self._over.wait(_EVERY_S):
            self._seen.append((time.monotonic(), self._soundings.counts(self.counts)))


def rates(seen: Sequence[tuple[float, Counts]]) -> dict[str, float]:
    """Per second, at each station, from the first of these soundings to the last."""
    (began, first), (ended, last) = seen[0], seen[-1]
    passed = ended - began
    names = [each.name for each in fields(Counts)]
    if passed <= 0:
        return dict.fromkeys(names, 0.0)
    return {name: max(0, getattr(last, name) - getattr(first, name)) / passed for name in names}


def _or(found: int | None, before: int) -> int:
    return before if found is None else found
