"""A message's life: what happened to it, in order, and what that comes to."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

from tallymark.lifecycle import Verdict
from tallymark.tally.found import DeadLetter, Effect, KeptRow, Records, Unfinished, WrittenRow
from tallymark.tally.trace import life_of

LEDGER = ("ledger", "ledger")
T0 = datetime(2026, 11, 1, 12, tzinfo=UTC)
ID = "0199f1f0-0000-7000-8000-000000000001"


def at(seconds: float) -> datetime:
    return T0 + timedelta(seconds=seconds)


SENT = WrittenRow(
    "bank",
    7,
    "transfers",
    b"alice",
    0,
    at(0),
    batch=3,
    batch_kind="range",
    mode="transactional",
    batch_state="sent",
    owner="relay-1",
    claimed_at=at(0.1),
    sent_at=at(0.2),
    receipt_offset=5,
)
KEPT = KeptRow("ledger", "ledger", "/bank", "transfers", 1, 42, 7, b"alice", at(0.15), at(0.3), None, 43)
DONE = Effect("ledger", "ledger", 9, 1, "applied", at(0.3))


def verdict(records: Records, *, after: float = 1) -> Verdict:
    life = life_of(ID, records, now=at(after), late_after=timedelta(seconds=60))
    assert life is not None
    return life.verdict


def test_nothing_recorded_is_no_life() -> None:
    assert life_of(ID, Records(outboxes_asked=1), now=at(0)) is None


def test_a_whole_life_is_told_in_the_order_of_time() -> None:
    life = life_of(ID, Records([SENT], [KEPT], [DONE], consumers=[LEDGER], outboxes_asked=1), now=at(1))
    assert life is not None
    assert [event.station for event in life.events] == ["outbox", "relay", "log", "relay", "inbox", "apply"]
    assert life.verdict is Verdict.DELIVERED
    assert (life.topic, life.key, life.clock) == ("transfers", b"alice", "adding")
    told = life.as_json()
    assert told["events"][2] == {
        "at": at(0.15).isoformat(),
        "station": "log",
        "what": "logged",
        "topic": "transfers",
        "partition": 1,
        "offset": 42,
    }


def test_the_verdict_says_how_far_it_came() -> None:
    added = WrittenRow("bank", 7, "transfers", b"alice", 0, at(0))
    assert verdict(Records([added], outboxes_asked=1)) is Verdict.PENDING
    assert verdict(Records([added], outboxes_asked=1), after=61) is Verdict.LATE
    later = WrittenRow("bank", None, "transfers", b"alice", None, at(0), due_at=at(3600))
    assert verdict(Records([later], outboxes_asked=1), after=61) is Verdict.PENDING
    overdue = WrittenRow("bank", None, "transfers", b"alice", None, at(-7200), due_at=at(0))
    assert verdict(Records([overdue], outboxes_asked=1), after=61) is Verdict.LATE
    sent = Records([SENT], consumers=[LEDGER], outboxes_asked=1)
    assert verdict(sent) is Verdict.PENDING
    assert verdict(sent, after=61) is Verdict.LATE
    queued = Unfinished("ledger", "ledger", "retrying", 2, "no such account", at(5))
    assert verdict(Records([SENT], [KEPT], [], [queued], outboxes_asked=1)) is Verdict.PARKED
    dead = DeadLetter("ledger", "ledger", "dead", 10, "no", "transfers", 1, 42, at(4), at(4))
    assert verdict(Records([SENT], [KEPT], [], [], [dead], outboxes_asked=1)) is Verdict.DEAD
    assert verdict(Records([SENT], [KEPT], outboxes_asked=1)) is Verdict.UNAPPLIED
    assert verdict(Records([SENT], [KEPT], [DONE, DONE], outboxes_asked=1)) is Verdict.APPLIED_TWICE


def waiting(records: Records) -> list[tuple[str, str, str | None]]:
    life = life_of(ID, records, now=at(1))
    assert life is not None
    return [
        (event.station, event.what, event.details.get("because") or event.details.get("consumer"))
        for event in life.events
        if event.at is None or event.station == "apply"
    ]


def test_what_it_waits_for_is_told() -> None:
    added = WrittenRow("bank", 7, "transfers", b"alice", 0, at(0), waits_for="topic transfers is held: gone")
    assert waiting(Records([added])) == [("relay", "waits to be sent", "topic transfers is held: gone")]
    assert waiting(Records([SENT], consumers=[LEDGER])) == [("inbox", "not kept yet", "ledger")]
    lost = Records([SENT], consumers=[LEDGER], passed=[LEDGER])
    assert waiting(lost) == [("inbox", "passed, and not kept", "ledger")]
    queued = Unfinished("ledger", "ledger", "ready", 0, None, at(1), ahead=2, served=False)
    assert waiting(Records([SENT], [KEPT], [], [queued])) == [
        ("apply", "waits to be applied", "no process of ledger runs; before it in its key: 2")
    ]


def test_what_its_outbox_has_dropped_is_no_phantom() -> None:
    dropped = Records([], [KEPT], [DONE], consumers=[LEDGER], outboxes_asked=1, outbox_from=8)
    assert verdict(dropped) is Verdict.CANNOT_KNOW
    assert verdict(replace(dropped, outbox_from=7)) is Verdict.PHANTOM
    foreign = replace(KEPT, position=None)
    assert verdict(Records([], [foreign], [DONE], outboxes_asked=1)) is Verdict.FOREIGN
    dead = DeadLetter("ledger", "ledger", "dead", 10, "no", "transfers", 1, 42, at(4), at(4), 7)
    assert verdict(Records([], [], [], [], [dead], outboxes_asked=1, outbox_from=8)) is Verdict.DEAD


def test_a_consumer_that_has_passed_it_and_lacks_it_has_lost_it() -> None:
    others = replace(KEPT, consumer="audit")
    readers = [("ledger", "audit"), LEDGER]
    lacking = Records([SENT], [others], [replace(DONE, consumer="audit")], consumers=readers)
    assert lacking.place == (1, 42)
    assert verdict(replace(lacking, outboxes_asked=1)) is Verdict.PENDING
    assert verdict(replace(lacking, outboxes_asked=1, passed=[LEDGER])) is Verdict.LOST_IN_INBOX


def test_what_stands_before_a_consumers_beginning_is_not_owed_to_it() -> None:
    readers = [("ledger", "audit"), LEDGER]
    known = Records([SENT], [KEPT], [DONE], consumers=readers, unowed=[("ledger", "audit")], outboxes_asked=1)
    assert verdict(known, after=61) is Verdict.DELIVERED
    assert ("inbox", "not owed: it began behind it", "audit") in waiting(known)
    assert verdict(replace(known, unowed=[]), after=61) is Verdict.LATE
    # Sent again, it stands behind that beginning, too.
    again = replace(SENT, position=99)
    assert verdict(replace(known, written=[SENT, again]), after=61) is Verdict.LATE


def test_what_a_consumer_no_longer_remembers_is_neither_lost_nor_late() -> None:
    dropped = Records([SENT], consumers=[LEDGER], forgotten=[LEDGER], outboxes_asked=1)
    assert verdict(dropped, after=61) is Verdict.CANNOT_KNOW
    assert waiting(dropped) == [("inbox", "dropped by retention, or never kept", "ledger")]
    assert verdict(replace(dropped, passed=[LEDGER]), after=61) is Verdict.CANNOT_KNOW
    assert verdict(replace(dropped, kept=[KEPT], effects=[DONE])) is Verdict.DELIVERED


def test_an_inbox_row_without_an_outbox_row_is_a_phantom_only_where_an_outbox_was_asked() -> None:
    assert verdict(Records([], [KEPT], [DONE], outboxes_asked=1)) is Verdict.PHANTOM
    assert verdict(Records([], [KEPT], [DONE])) is Verdict.DELIVERED


def test_what_one_transaction_kept_and_applied_stands_in_that_order() -> None:
    """Kept at the commit, which is after the effect was made."""
    kept = replace(KEPT, committed_at=at(0.4))
    life = life_of(ID, Records([SENT], [kept], [DONE], consumers=[LEDGER]), now=at(1))
    assert life is not None
    assert [event.station for event in life.events][-2:] == ["inbox", "apply"]


def test_two_consumers_of_one_name_are_two() -> None:
    """Each database may have a `ledger`: what one has applied says nothing of the other."""
    elsewhere = ("copy", "ledger")
    both = Records(
        [SENT], [KEPT], [DONE], consumers=[LEDGER, elsewhere], passed=[elsewhere], outboxes_asked=1
    )
    assert verdict(both) is Verdict.LOST_IN_INBOX
    kept = replace(KEPT, database="copy")
    assert verdict(replace(both, kept=[KEPT, kept])) is Verdict.UNAPPLIED
    done = replace(DONE, database="copy")
    assert verdict(replace(both, kept=[KEPT, kept], effects=[DONE, done])) is Verdict.DELIVERED
    life = life_of(ID, both, now=at(1))
    assert life is not None
    missing = [event.details for event in life.events if event.what == "passed, and not kept"]
    assert missing == [{"database": "copy", "consumer": "ledger"}]


def test_what_is_sent_again_is_on_its_way_since_then() -> None:
    again = WrittenRow("bank", 9, "transfers", b"alice", 0, at(100), resend=1)
    resent = Records([SENT, again], consumers=[LEDGER], outboxes_asked=1)
    assert verdict(resent, after=130) is Verdict.PENDING
    assert verdict(resent, after=161) is Verdict.LATE
