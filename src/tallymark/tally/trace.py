"""The whole life of one message: what each station recorded of it, in the order of time. Pure.

`life_of` takes what the databases hold and gives a `Trace`: events, and the verdict that follows from them. The log
itself is not read here: where and when a message stands in it is known from the consumers that kept it, and from
the batch that was marked as sent.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from tallymark.lifecycle import BatchState, DeadState, ParkedState, QueueState, Verdict
from tallymark.tally.found import Records, Unfinished, Who, who
from tallymark.tally.verdicts import Marks, into_consumer, into_log, worst

LATE_AFTER = timedelta(minutes=5)


@dataclass(frozen=True, slots=True)
class TraceEvent:
    """Something that happened to a message."""

    at: datetime | None
    station: str
    what: str
    details: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Trace:
    """One message from its transaction to its effects."""

    id: str
    topic: str
    key: bytes | None
    events: tuple[TraceEvent, ...]
    verdict: Verdict
    # What times of adding mean here: "commit" or "adding".
    clock: str

    def as_json(self) -> dict[str, Any]:
        """As `--json` and the query interface give it."""
        return {
            "id": self.id,
            "topic": self.topic,
            "key": None if self.key is None else self.key.decode("utf-8", "backslashreplace"),
            "events": [
                {
                    "at": event.at.isoformat() if event.at else None,
                    "station": event.station,
                    "what": event.what,
                    **{name: _plain(value) for name, value in event.details.items()},
                }
                for event in self.events
            ],
            "verdict": self.verdict.value,
            "clock": self.clock,
        }


def life_of(id: str, records: Records, *, now: datetime, late_after: timedelta = LATE_AFTER) -> Trace | None:
    """The life of a message; None where nobody has recorded anything of it."""
    events = [
        event
        for found in (
            _written(records),
            _kept(records),
            _awaited_by(records),
            _finished(records),
            _deeds(records),
        )
        for event in found
    ]
    if not events:
        return None
    events.sort(key=_order(records))
    keys = [row.key for row in records.written] + [row.key for row in records.kept]
    committed = bool(records.written) and all(row.committed_at for row in records.written)
    return Trace(
        id,
        records.topic or "",
        next(iter(keys), None),
        tuple(events),
        _verdict(records, now, late_after),
        "commit" if committed else "adding",
    )


def _order(records: Records) -> Callable[[TraceEvent], tuple[bool, float, int]]:
    """Unknown times last; of equal times the station's order along the journey.

    What is kept and applied in one transaction is kept at its commit, a little after its effect: it stands before it.
    """
    stations = ["outbox", "relay", "log", "inbox", "apply", "tally", "audit"]
    applied: dict[Who, datetime] = {}
    for effect in records.effects:
        applied[who(effect)] = min(effect.at, applied.get(who(effect), effect.at))

    def place(event: TraceEvent) -> tuple[bool, float, int]:
        at = event.at
        if at is not None and event.station == "inbox":
            at = min(at, applied.get((event.details["database"], event.details["consumer"]), at))
        return at is None, at.timestamp() if at else 0.0, stations.index(event.station)

    return place


def _written(records: Records) -> Iterator[TraceEvent]:
    for row in records.written:
        where = {"database": row.database, "position": row.position}
        if row.position is None:
            yield TraceEvent(
                row.added_at, "outbox", "added, to be sent later", {**where, "due_at": row.due_at}
            )
            continue
        again = {"resend": row.resend} if row.resend else {}
        what = "added again to be resent" if row.resend else "added in its transaction"
        yield TraceEvent(
            row.committed_at or row.added_at,
            "outbox",
            what,
            {**where, **again, "lane": row.lane, "clock": "commit" if row.committed_at else "adding"},
        )
        if row.parked_at is not None:
            yield TraceEvent(row.parked_at, "relay", "left its batch", {**where, "reason": row.parked_reason})
            if row.parked in (ParkedState.SENT, ParkedState.DISCARDED):
                done = "sent after all" if row.parked == ParkedState.SENT else "given up"
                yield TraceEvent(row.parked_changed_at, "relay", done, where)
        batch = {
            **where,
            "batch": row.batch,
            "kind": row.batch_kind,
            "mode": row.mode,
            "owner": row.owner,
        }
        if row.claimed_at is not None:
            yield TraceEvent(row.claimed_at, "relay", "claimed in a batch", batch)
        elif row.waits_for is not None:
            yield TraceEvent(None, "relay", "waits to be sent", {**where, "because": row.waits_for})
        if row.sent_at is not None:
            receipt = {"receipt_offset": row.receipt_offset, "in_doubt": row.in_doubt}
            yield TraceEvent(row.sent_at, "relay", "marked as sent", {**batch, **receipt})
        if row.certified_at is not None:
            certificate = {"window": row.window, "certificate": row.certificate}
            yield TraceEvent(row.certified_at, "tally", "its window was certified", {**where, **certificate})


def _kept(records: Records) -> Iterator[TraceEvent]:
    logged: set[tuple[str, int, int]] = set()
    for row in records.kept:
        place = {"topic": row.topic, "partition": row.partition, "offset": row.offset}
        if row.offset is not None and (row.topic, row.partition, row.offset) not in logged:
            logged.add((row.topic, row.partition, row.offset))
            yield TraceEvent(row.logged_at, "log", "logged", place)
        yield TraceEvent(
            row.committed_at or row.kept_at,
            "inbox",
            "kept" if row.offset is not None else "kept without Kafka",
            {
                "database": row.database,
                "consumer": row.consumer,
                **place,
                "next_offset": row.next_offset,
                "clock": "commit" if row.committed_at else "adding",
            },
        )


def _awaited_by(records: Records) -> Iterator[TraceEvent]:
    """Consumers of its topic that do not have it."""
    if not any(row.sent_at is not None or row.parked == ParkedState.SENT for row in records.written):
        return
    for consumer in sorted(set(records.consumers) - {who(each) for each in records.received}):
        if consumer in records.unowed:
            missing = "not owed: it began behind it"
        elif consumer in records.forgotten:
            missing = "dropped by retention, or never kept"
        else:
            missing = "passed, and not kept" if consumer in records.passed else "not kept yet"
        yield TraceEvent(None, "inbox", missing, {"database": consumer[0], "consumer": consumer[1]})


def _finished(records: Records) -> Iterator[TraceEvent]:
    for effect in records.effects:
        yield TraceEvent(
            effect.at,
            "apply",
            {"applied": "applied", "already": "was applied before", "older": "passed over: older"}.get(
                effect.outcome, effect.outcome
            ),
            {"database": effect.database, "consumer": effect.consumer, "attempt": effect.attempt}
            | {"seq": effect.seq, "outcome": effect.outcome},
        )
    for row in records.unfinished:
        yield TraceEvent(
            row.due_at,
            "apply",
            "waits to be applied" if row.state == QueueState.READY else f"failed: {row.state}",
            {"database": row.database, "consumer": row.consumer, "state": row.state}
            | {"attempts": row.attempts, "reason": row.reason, "because": _awaited(row)},
        )
    for letter in records.dead:
        what = {"database": letter.database, "consumer": letter.consumer}
        yield TraceEvent(
            letter.died_at,
            "apply",
            "died",
            {**what, "reason": letter.reason, "attempts": letter.attempts, "offset": letter.offset},
        )
        if letter.state != DeadState.DEAD:
            yield TraceEvent(letter.changed_at, "apply", f"dead letter: {letter.state}", what)


def _awaited(row: Unfinished) -> str | None:
    """What a message in a queue waits for, where that is not its turn alone."""
    nobody = None if row.served else f"no process of {row.consumer} runs"
    behind = f"before it in its key: {row.ahead}" if row.ahead else None
    return "; ".join(each for each in (nobody, behind) if each) or None


def _deeds(records: Records) -> Iterator[TraceEvent]:
    for deed in records.deeds:
        details = {"database": deed.database, "who": deed.who, "reason": deed.reason}
        yield TraceEvent(deed.at, "audit", deed.action, details)


def _verdict(records: Records, now: datetime, late_after: timedelta) -> Verdict:
    rows = [row for row in records.written if row.position is not None]
    if records.written and not rows:
        due = min(row.due_at or now for row in records.written)
        return Verdict.LATE if now - due > late_after else Verdict.PENDING
    sent = sum(row.batch_state == BatchState.SENT or row.parked == ParkedState.SENT for row in rows)
    held = sum(row.parked in (ParkedState.FAILED, ParkedState.WAITING, ParkedState.RETRYING) for row in rows)
    gone = sum(row.parked == ParkedState.DISCARDED for row in rows)
    # Nobody was asked for an outbox: whatever is in an inbox must have been written somewhere.
    unasked = 1 if not records.outboxes_asked and not rows else 0
    times = [row.added_at for row in rows] or [row.kept_at for row in records.kept]
    claimed = [each.position for each in records.received if each.position is not None]
    common: dict[str, Any] = {
        # What has no position is another producer's; what has a low one may be dropped from its outbox by now.
        "positioned": bool(rows or claimed or unasked),
        "forgotten": bool(claimed) and max(claimed) < records.outbox_from,
        "rows": len(rows) + unasked,
        "sent": sent + unasked,
        "parked": held,
        "discarded": gone,
        "waiting": len(rows) - sent - held - gone,
        # The log was not read: what was marked as sent, or kept from it, counts as one copy.
        "copies": int(bool(sent or records.kept or records.dead)),
        "kept_anywhere": len(records.kept),
        # A message that is sent again is on its way since then.
        "old": bool(times) and now - max(times) > late_after,
    }
    has_it = {who(row) for row in records.received}
    consumers = {*records.consumers, *has_it}
    verdicts = [into_log(Marks(**common))[0]]
    for consumer in sorted(consumers):
        dead = [each for each in records.dead if who(each) == consumer]
        queue = [each for each in records.unfinished if who(each) == consumer]
        effects = [each for each in records.effects if who(each) == consumer]
        marks = Marks(
            **common,
            # What was sent again stands elsewhere, too.
            owed=consumer not in records.unowed or consumer in has_it or len(rows) > 1,
            kept=sum(who(each) == consumer for each in records.kept),
            # Retention drops nothing that the log could still bring: what it has dropped was passed.
            passed=consumer in records.passed or consumer in records.forgotten,
            forgotten_in_inbox=consumer in records.forgotten,
            effects=sum(each.outcome == "applied" for each in effects),
            finished=len(effects),
            queued=len(queue),
            retrying=sum(each.state == QueueState.RETRYING for each in queue),
            dead=sum(each.state == DeadState.DEAD for each in dead),
            given_up=sum(each.state == DeadState.DISCARDED for each in dead),
        )
        verdicts.append(into_consumer(marks)[0])
    return worst(*verdicts)


def _plain(value: Any) -> Any:
    return value.isoformat() if isinstance(value, datetime) else value
