"""Tiny literal histories with the verdicts that they must get. The pure definition and Spark are both held to them."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from tallymark.lifecycle import Stage, Verdict
from tallymark.tally.records import Copy, Done, History, Horizon, Kept, Letter, ParkedRow, Queued, Reader, Row

V, S = Verdict, Stage
LEDGER = Reader(frozenset({"t"}), {("t", 0): 100, ("t", 1): 100})
PLAIN = Horizon({"ledger": LEDGER})
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


def effects(*done: Done, key: bytes | None = b"k", letters: tuple[Letter, ...] = ()) -> History:
    """m1 and m2, all well but for how they were applied."""
    copies = [Copy("m1", 10, "d1", 5, key=key), Copy("m2", 11, "d2", 6)]
    kept = [Kept("ledger", "m1", "d1", 5, key=key), Kept("ledger", "m2", "d2", 6)]
    rows = [Row("m1", 10, "d1", key=key), Row("m2", 11, "d2")]
    return History(rows, [], copies, kept, list(done), [], list(letters))


FIRST = Done("ledger", "m1", seq=1, turn=1, offset=5)
SECOND = Done("ledger", "m2", seq=2, turn=2, offset=6)

CASES: tuple[Case, ...] = (
    Case("all is well", History([ROW], [], [COPY], [KEPT], [DONE]), DELIVERED),
    Case(
        "not sent yet",
        History([Row("m1", 10, "d1", covered=False)]),
        (V.PENDING, S.RELAY),
        (V.DELIVERED, S.LOG),
    ),
    Case(
        "not sent for too long",
        History([Row("m1", 10, "d1", covered=False, age_s=301)]),
        (V.LATE, S.RELAY),
        (V.DELIVERED, S.LOG),
    ),
    Case(
        "parked at the relay",
        History([ROW], [ParkedRow("m1", 10, "failed")]),
        (V.PARKED, S.RELAY),
        (V.DELIVERED, S.LOG),
    ),
    Case(
        "waits behind a parked one",
        History([ROW], [ParkedRow("m1", 10, "waiting")]),
        (V.PARKED, S.RELAY),
        (V.DELIVERED, S.LOG),
    ),
    Case(
        "given up at the relay",
        History([ROW], [ParkedRow("m1", 10, "discarded")]),
        (V.DISCARDED, S.RELAY),
        (V.DELIVERED, S.LOG),
    ),
    Case(
        "parked, then sent: out of turn, and that is no reorder",
        History(
            [ROW, Row("m2", 11, "d2")],
            [ParkedRow("m1", 10, "sent")],
            [Copy("m2", 11, "d2", 5), Copy("m1", 10, "d1", 6)],
            [Kept("ledger", "m1", "d1", 6), Kept("ledger", "m2", "d2", 5)],
            [DONE, Done("ledger", "m2")],
        ),
        DELIVERED,
    ),
    Case("sent, and the log lacks it", History([ROW]), (V.LOST_IN_RELAY, S.RELAY), (V.DELIVERED, S.LOG)),
    Case(
        "an inbox has it, and the log that reaches back to it does not",
        History([ROW], [], [], [KEPT], [DONE]),
        (V.LOST_IN_LOG, S.LOG),
    ),
    Case(
        "records were deleted under it",
        History([ROW, Row("m2", 20, "d2")], [], [Copy("m2", 20, "d2", 9)], [KEPT], [DONE]),
        (V.LOST_IN_LOG, S.LOG),
        horizon=Horizon({"ledger": LEDGER}, log_starts={("t", 0): 9}),
    ),
    Case(
        "the log starts behind another message, not this one",
        History([ROW, Row("m0", 5, "d0")], [], [Copy("m0", 5, "d0", 9)]),
        (V.LOST_IN_RELAY, S.RELAY),
        (V.DELIVERED, S.LOG),
        horizon=Horizon({"ledger": LEDGER}, log_starts={("t", 0): 9}),
    ),
    Case(
        "it expired after everybody had it",
        History([Row("m1", 10, "d1", age_s=1000)], [], [], [KEPT], [DONE]),
        DELIVERED,
        horizon=Horizon({"ledger": LEDGER}, log_starts={("t", 0): 50}, expires_after_s={"t": 900}),
    ),
    Case(
        "it expired before it was read",
        History([Row("m1", 10, "d1", age_s=1000)]),
        DELIVERED,
        (V.LOST_IN_LOG, S.LOG),
        horizon=Horizon({"ledger": LEDGER}, log_starts={("t", 0): 150}, expires_after_s={"t": 900}),
    ),
    Case(
        "it expired, the position has passed it, and the inbox lacks it",
        History([Row("m1", 10, "d1", age_s=1000)]),
        DELIVERED,
        (V.LOST_IN_INBOX, S.INBOX),
        horizon=Horizon({"ledger": LEDGER}, log_starts={("t", 0): 50}, expires_after_s={"t": 900}),
    ),
    Case(
        "retention is past it in the log and in the inbox",
        History([Row(OLD, 10, "d1", age_s=1000)]),
        DELIVERED,
        (V.CANNOT_KNOW, S.INBOX),
        horizon=Horizon(
            {"ledger": Reader(frozenset({"t"}), {("t", 0): 100}, kept_from_ms=2_000)},
            log_starts={("t", 0): 50},
            expires_after_s={"t": 900},
        ),
        id=OLD,
    ),
    Case(
        "the position has passed it, and the inbox lacks it",
        History([ROW], [], [COPY]),
        DELIVERED,
        (V.LOST_IN_INBOX, S.INBOX),
    ),
    Case(
        "… and has dropped what it kept of that time",
        History([Row(OLD, 10, "d1")], [], [Copy(OLD, 10, "d1", 5)]),
        DELIVERED,
        (V.CANNOT_KNOW, S.INBOX),
        horizon=Horizon({"ledger": Reader(frozenset({"t"}), {("t", 0): 100}, kept_from_ms=2_000)}),
        id=OLD,
    ),
    Case(
        "the position has not come to it",
        History([ROW], [], [Copy("m1", 10, "d1", 100)]),
        DELIVERED,
        (V.PENDING, S.INBOX),
    ),
    Case(
        "the position has not come to it for too long",
        History([Row("m1", 10, "d1", age_s=301)], [], [Copy("m1", 10, "d1", 100)]),
        DELIVERED,
        (V.LATE, S.INBOX),
    ),
    Case(
        "logged before the consumer began",
        History([ROW], [], [COPY]),
        DELIVERED,
        APPLIED,
        horizon=Horizon({"ledger": Reader(frozenset({"t"}), {("t", 0): 100}, {("t", 0): 6})}),
    ),
    Case("nobody reads its topic", History([ROW], [], [COPY]), DELIVERED, None, horizon=Horizon()),
    Case(
        "kept, and no effect",
        History([ROW], [], [COPY], [KEPT]),
        DELIVERED,
        (V.UNAPPLIED, S.APPLY),
    ),
    Case(
        "kept, and it waits in the queue",
        History([ROW], [], [COPY], [KEPT], [], [Queued("ledger", "m1")]),
        DELIVERED,
        (V.PENDING, S.APPLY),
    ),
    Case(
        "it waits in the queue for too long",
        History([Row("m1", 10, "d1", age_s=301)], [], [COPY], [KEPT], [], [Queued("ledger", "m1")]),
        DELIVERED,
        (V.LATE, S.APPLY),
    ),
    Case(
        "it failed, and is tried again",
        History([ROW], [], [COPY], [KEPT], [], [Queued("ledger", "m1", "retrying")]),
        DELIVERED,
        (V.PARKED, S.APPLY),
    ),
    Case(
        "it is dead, and holds its key",
        History([ROW], [], [COPY], [KEPT], [], [Queued("ledger", "m1", "dead")], [Letter("ledger", "m1")]),
        DELIVERED,
        (V.DEAD, S.APPLY),
    ),
    Case(
        "it is dead, and was never kept",
        History([ROW], [], [COPY], [], [], [], [Letter("ledger", "m1")]),
        DELIVERED,
        (V.DEAD, S.APPLY),
    ),
    Case(
        "it was given up at the inbox",
        History([ROW], [], [COPY], [KEPT], [], [], [Letter("ledger", "m1", "discarded")]),
        DELIVERED,
        (V.DISCARDED, S.APPLY),
    ),
    Case(
        "it was dead, and was applied after all",
        History([ROW], [], [COPY], [KEPT], [DONE], [], [Letter("ledger", "m1", "applied")]),
        DELIVERED,
    ),
    Case(
        "its effect was made twice",
        History([ROW], [], [COPY], [KEPT], [DONE, DONE]),
        DELIVERED,
        (V.APPLIED_TWICE, S.APPLY),
    ),
    Case(
        "applied once, and once found there already",
        History([ROW], [], [COPY], [KEPT], [DONE, Done("ledger", "m1", "already")]),
        DELIVERED,
    ),
    Case(
        "two copies of one row",
        History([ROW], [], [COPY, Copy("m1", 10, "d1", 9)], [KEPT], [DONE]),
        (V.DOUBLED_IN_LOG, S.LOG),
    ),
    Case(
        "a copy without a position",
        History([ROW], [], [COPY, Copy("m1", None, "d1", 9)], [KEPT], [DONE]),
        (V.DOUBLED_IN_LOG, S.LOG),
    ),
    Case(
        "resent: two rows, two copies",
        History([ROW, Row("m1", 90, "d1")], [], [COPY, Copy("m1", 90, "d1", 9)], [KEPT], [DONE]),
        DELIVERED,
    ),
    Case(
        "lost, then resent",
        History([ROW, Row("m1", 90, "d1")], [], [Copy("m1", 90, "d1", 9)], [KEPT], [DONE]),
        DELIVERED,
    ),
    Case(
        "behind a later one of its key",
        History(
            [ROW, Row("m2", 11, "d2")],
            [],
            [Copy("m2", 11, "d2", 5), Copy("m1", 10, "d1", 6)],
            [Kept("ledger", "m1", "d1", 6), Kept("ledger", "m2", "d2", 5)],
            [DONE, Done("ledger", "m2")],
        ),
        (V.REORDERED, S.LOG),
    ),
    Case(
        "behind a later one of another key",
        History(
            [ROW, Row("m2", 11, "d2", key=b"other")],
            [],
            [Copy("m2", 11, "d2", 5, key=b"other"), Copy("m1", 10, "d1", 6)],
            [Kept("ledger", "m1", "d1", 6), Kept("ledger", "m2", "d2", 5)],
            [DONE, Done("ledger", "m2")],
        ),
        DELIVERED,
    ),
    Case(
        "behind a record of its key that claims a position which nobody was given",
        History([ROW], [], [Copy("p1", 9 * 10**18, "dp", 4), COPY], [KEPT], [DONE]),
        DELIVERED,
    ),
    Case(
        "behind a copy of its key that claims a position which is not its own",
        History(
            [ROW, Row("m0", 9, "d0")],
            [],
            [Copy("m0", 99, "d0", 4), COPY],
            [KEPT, Kept("ledger", "m0", "d0", 4)],
            [DONE, Done("ledger", "m0")],
        ),
        DELIVERED,
    ),
    Case("applied in the order of the log", effects(FIRST, SECOND), DELIVERED, horizon=ORDERED),
    Case(
        "applied after a later one of its key",
        effects(replace(FIRST, seq=3), SECOND),
        DELIVERED,
        (V.REORDERED, S.APPLY),
        horizon=ORDERED,
    ),
    Case(
        "applied after a later one of another key",
        effects(replace(FIRST, seq=3), SECOND, key=b"other"),
        DELIVERED,
        horizon=ORDERED,
    ),
    Case(
        "applied after a later one in the same transaction",
        effects(replace(FIRST, seq=3, turn=2), SECOND),
        DELIVERED,
        horizon=ORDERED,
    ),
    Case(
        "applied after a later one, by a handler that takes any order",
        effects(replace(FIRST, seq=3), SECOND),
        DELIVERED,
    ),
    Case(
        "applied after a later one, which was found to be older",
        effects(replace(FIRST, seq=3), replace(SECOND, outcome="older")),
        DELIVERED,
        horizon=ORDERED,
    ),
    Case(
        "applied after a later one, because it was dead and was put back",
        effects(replace(FIRST, seq=3), SECOND, letters=(Letter("ledger", "m1", "applied"),)),
        DELIVERED,
        horizon=ORDERED,
    ),
    Case(
        "repaired without Kafka: its place in the log is not known",
        effects(replace(FIRST, seq=3, offset=None), SECOND),
        DELIVERED,
        horizon=ORDERED,
    ),
    Case(
        "the log's contents are not the outbox's",
        History([ROW], [], [Copy("m1", 10, "dX", 5)], [Kept("ledger", "m1", "dX", 5)], [DONE]),
        (V.ALTERED, S.LOG),
    ),
    Case(
        "it claims a position that is not its own",
        History([ROW], [], [Copy("m1", 11, "d1", 5)], [KEPT], [DONE]),
        (V.ALTERED, S.LOG),
    ),
    Case(
        "the inbox's contents are not the log's",
        History([ROW], [], [COPY], [Kept("ledger", "m1", "dX", 5)], [DONE]),
        DELIVERED,
        (V.ALTERED, S.INBOX),
    ),
    Case(
        "in the log with our marks, and no row",
        History([], [], [COPY], [KEPT], [DONE]),
        (V.PHANTOM, S.LOG),
    ),
    Case("only in an inbox", History([], [], [], [KEPT], [DONE]), (V.PHANTOM, S.INBOX)),
    Case(
        "the outbox has dropped its row",
        History([], [], [COPY], [KEPT], [DONE]),
        (V.CANNOT_KNOW, S.OUTBOX),
        horizon=Horizon({"ledger": LEDGER}, outbox_from=11),
    ),
    Case(
        "another producer's",
        History([], [], [Copy("m1", None, "d1", 5)], [KEPT], [DONE]),
        (V.FOREIGN, S.LOG),
        None,
    ),
    Case(
        "repaired without Kafka while the relay stood still",
        History([Row("m1", 10, "d1", covered=False)], [], [], [Kept("ledger", "m1", "d1", None)], [DONE]),
        DELIVERED,
    ),
)
