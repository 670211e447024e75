"""Tiny histories of retention, and of messages that are sent again."""

from __future__ import annotations

from dataclasses import replace

from tallymark.tally.records import Copy, History, Horizon, Kept, Row
from tests.tally.cases import (
    APPLIED,
    COPY,
    DELIVERED,
    DONE,
    KEPT,
    KNOWN,
    LEDGER,
    OLD,
    ROW,
    Case,
    S,
    V,
    expired,
)

P0 = ("t", 0)

CASES: tuple[Case, ...] = (
    Case(
        "its topic was made anew after everybody had it",
        History([Row("m1", 10, "d1", age_s=1000)], [], [], [KEPT], [DONE]),
        DELIVERED,
        horizon=Horizon({"ledger": KNOWN}, remade_s={"t": 900}),
    ),
    Case(
        "its topic was made anew before it was read",
        History([Row("m1", 10, "d1", age_s=1000)]),
        DELIVERED,
        (V.LOST_IN_LOG, S.LOG),
        horizon=Horizon({"ledger": KNOWN}, remade_s={"t": 900}),
    ),
    Case(
        "it was sent to the topic that was made anew, and the log lacks it",
        History([Row("m1", 10, "d1", age_s=800)]),
        (V.LOST_IN_RELAY, S.RELAY),
        horizon=Horizon({"ledger": KNOWN}, remade_s={"t": 900}),
        at_ledger=(V.DELIVERED, S.LOG),
    ),
    Case(
        "its topic was made anew, and the inbox no longer knows what it had",
        History([Row(OLD, 10, "d1", age_s=1000)]),
        DELIVERED,
        (V.CANNOT_KNOW, S.INBOX),
        horizon=Horizon({"ledger": replace(KNOWN, kept_from_ms=2_000)}, remade_s={"t": 900}),
        id=OLD,
    ),
    Case(
        "a later one of its key took its place in a compacted topic, after the inbox had it",
        History([ROW], [], [], [KEPT], [DONE]),
        DELIVERED,
        horizon=Horizon({"ledger": KNOWN}, compacted=frozenset({"t"})),
    ),
    Case(
        "a later one of its key took its place in a compacted topic, perhaps before it was read",
        History([ROW]),
        DELIVERED,
        (V.CANNOT_KNOW, S.INBOX),
        horizon=Horizon({"ledger": KNOWN}, compacted=frozenset({"t"})),
    ),
    Case(
        "it expired after everybody had it",
        History([Row("m1", 10, "d1", age_s=1000)], [], [], [KEPT], [DONE]),
        DELIVERED,
        horizon=Horizon({"ledger": KNOWN}, log_starts={("t", 0): 50}, expires_after_s={"t": 900}),
    ),
    Case(
        "it expired before it was read",
        History([Row("m1", 10, "d1", age_s=1000)]),
        DELIVERED,
        (V.LOST_IN_LOG, S.LOG),
        horizon=Horizon({"ledger": KNOWN}, log_starts={("t", 0): 150}, expires_after_s={"t": 900}),
    ),
    Case(
        "it expired, the position has passed it, and the inbox lacks it",
        History([Row("m1", 10, "d1", age_s=1000)]),
        DELIVERED,
        (V.LOST_IN_INBOX, S.INBOX),
        horizon=Horizon({"ledger": KNOWN}, log_starts={("t", 0): 50}, expires_after_s={"t": 900}),
    ),
    Case(
        "retention is past it in the log and in the inbox",
        History([Row(OLD, 10, "d1", age_s=1000)]),
        DELIVERED,
        (V.CANNOT_KNOW, S.INBOX),
        horizon=Horizon(
            {"ledger": replace(KNOWN, kept_from_ms=2_000)},
            log_starts={("t", 0): 50},
            expires_after_s={"t": 900},
        ),
        id=OLD,
    ),
    Case(
        "the log had dropped it before there was a consumer",
        History([Row("m1", 10, "d1", age_s=1000)]),
        DELIVERED,
        APPLIED,
        horizon=expired(replace(LEDGER, known_for_s=50)),
    ),
    Case(
        "the log had it when the consumer was made, and where that began is behind it or not",
        History([Row("m1", 10, "d1", age_s=1000)]),
        DELIVERED,
        (V.CANNOT_KNOW, S.INBOX),
        horizon=expired(replace(LEDGER, known_for_s=200)),
    ),
    Case(
        "the log had dropped it before the consumer, which is older, began with its topic",
        History([Row("m1", 10, "d1", age_s=1000)]),
        DELIVERED,
        APPLIED,
        horizon=expired(replace(KNOWN, read_for_s={"t": 50})),
    ),
    Case(
        "it was logged since the consumer is known, and before it began in its partition",
        History([ROW], [], [COPY]),
        DELIVERED,
        APPLIED,
        horizon=Horizon({"ledger": replace(KNOWN, beginnings={P0: 50}, begun=frozenset({P0}))}),
    ),
    Case(
        "it was logged since the consumer is known, and where that began is told by what it kept",
        History([ROW], [], [COPY]),
        DELIVERED,
        (V.LOST_IN_INBOX, S.INBOX),
        horizon=Horizon({"ledger": replace(KNOWN, beginnings={P0: 50})}),
    ),
    Case(
        "retention is past it in the log, and in the inbox past ids without a time",
        History([Row("m1", 10, "d1", age_s=1000)]),
        DELIVERED,
        (V.CANNOT_KNOW, S.INBOX),
        horizon=expired(replace(KNOWN, pruned=frozenset({"t"}))),
    ),
    Case(
        "ids without a time were dropped, and the log still has it",
        History([ROW], [], [COPY]),
        DELIVERED,
        (V.LOST_IN_INBOX, S.INBOX),
        horizon=Horizon({"ledger": replace(LEDGER, pruned=frozenset({"t"}))}),
    ),
    Case(
        "lost, and sent again: the position has not come to it",
        History([ROW, Row("m1", 90, "d1")], [], [COPY, Copy("m1", 90, "d1", 100)]),
        DELIVERED,
        (V.PENDING, S.INBOX),
    ),
    Case(
        "lost, and to be sent again: nobody has sent it yet",
        History([Row("m1", 10, "d1", age_s=301), Row("m1", 90, "d1", covered=False)], [], [COPY]),
        DELIVERED,
        (V.PENDING, S.RELAY),
    ),
    Case(
        "lost, and to be sent again for too long",
        History([Row("m1", 10, "d1", age_s=999), Row("m1", 90, "d1", covered=False, age_s=301)], [], [COPY]),
        DELIVERED,
        (V.LATE, S.RELAY),
    ),
    Case(
        "the log lacks it, and it is to be sent again",
        History([ROW, Row("m1", 90, "d1", covered=False)]),
        (V.PENDING, S.RELAY),
        (V.DELIVERED, S.LOG),
    ),
    Case(
        "the log has lost it, an inbox has it, and it is to be sent again",
        History([ROW, Row("m1", 90, "d1", covered=False)], [], [], [KEPT], [DONE]),
        (V.PENDING, S.RELAY),
    ),
    Case(
        "sent again, and the outbox has dropped its first row",
        History(
            [Row("m1", 90, "d1")],
            [],
            [COPY, Copy("m1", 90, "d1", 60)],
            [Kept("ledger", "m1", "d1", 60)],
            [DONE],
        ),
        DELIVERED,
        horizon=Horizon({"ledger": LEDGER}, outbox_from=11),
    ),
    Case(
        "… and it stands there twice since",
        History(
            [Row("m1", 90, "d1")],
            [],
            [COPY, Copy("m1", 90, "d1", 60), Copy("m1", 90, "d1", 61)],
            [Kept("ledger", "m1", "d1", 60)],
            [DONE],
        ),
        (V.DOUBLED_IN_LOG, S.LOG),
        horizon=Horizon({"ledger": LEDGER}, outbox_from=11),
    ),
    Case(
        "one id in two topics, of which the consumer reads one, and lacks it",
        History([ROW, Row("m1", 11, "d1", topic="u")], [], [COPY, Copy("m1", 11, "d1", 500, topic="u")]),
        DELIVERED,
        (V.LOST_IN_INBOX, S.INBOX),
    ),
    Case(
        "… and has it",
        History(
            [ROW, Row("m1", 11, "d1", topic="u")],
            [],
            [COPY, Copy("m1", 11, "d1", 500, topic="u")],
            [KEPT],
            [DONE],
        ),
        DELIVERED,
    ),
)
