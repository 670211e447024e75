"""What tiny histories are made of: a message, and what becomes of it."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from tallymark.lifecycle import Stage, Verdict
from tallymark.tally.records import Copy, Done, History, Horizon, Kept, Letter, Reader, Row

V, S = Verdict, Stage
LEDGER = Reader(frozenset({"t"}), {("t", 0): 100, ("t", 1): 100})
PLAIN = Horizon({"ledger": LEDGER})
# It was there before the messages: what the log has dropped since was owed to it.
KNOWN = replace(LEDGER, known_for_s=10_000.0)
DELIVERED = (V.DELIVERED, S.LOG)
APPLIED = (V.DELIVERED, S.APPLY)


@dataclass(frozen=True)
class Case:
    """What happened to message `m1`, and what the tally must say: into the log, and into `ledger`."""

    name: str
    history: History
    in_log: tuple[Verdict, Stage]
    at_ledger: tuple[Verdict, Stage] | None = APPLIED
    horizon: Horizon = field(default_factory=lambda: PLAIN)
    id: str = "m1"


def uuid7(ms: int, n: int = 0) -> str:
    """A UUIDv7 of a moment."""
    text = f"{ms:012x}7000800000000000{n:04x}"
    return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"


ROW = Row("m1", 10, "d1")
COPY = Copy("m1", 10, "d1", 5)
KEPT = Kept("ledger", "m1", "d1", 5)
DONE = Done("ledger", "m1")
OLD = uuid7(1_000)
# The consumer wants order; of one key m1 stands at 5, m2 at 6.
ORDERED = Horizon({"ledger": Reader(frozenset({"t"}), {("t", 0): 100}, ordered=frozenset({"t"}))})


def expired(reader: Reader) -> Horizon:
    """The log keeps messages for 900 seconds."""
    return Horizon({"ledger": reader}, log_starts={("t", 0): 50}, expires_after_s={"t": 900})


def effects(*done: Done, key: bytes | None = b"k", letters: tuple[Letter, ...] = ()) -> History:
    """m1 and m2, all well but for how they were applied."""
    copies = [Copy("m1", 10, "d1", 5, key=key), Copy("m2", 11, "d2", 6)]
    kept = [Kept("ledger", "m1", "d1", 5, key=key), Kept("ledger", "m2", "d2", 6)]
    rows = [Row("m1", 10, "d1", key=key), Row("m2", 11, "d2")]
    return History(rows, [], copies, kept, list(done), [], list(letters))


FIRST = Done("ledger", "m1", seq=1, turn=1, offset=5)
SECOND = Done("ledger", "m2", seq=2, turn=2, offset=6)
