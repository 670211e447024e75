"""What counts as lost, doubled, reordered, late or altered. Pure.

A message is looked at twice: on its way into the log, once for all, and on its way into each consumer's database.
Each look gives one verdict: that of the first rule below that holds. A rule stands here twice, as Python and as SQL;
both say the same, and a test holds them to it. What they speak of are the *marks* of one message (`Marks`).

Into the log, for all consumers:

- *foreign*: in the log with no outbox row, and without a position of ours: another producer's.
- *cannot-know* (outbox): no outbox row, but its position lies before what the outbox still keeps.
- *phantom*: in the log (or only in an inbox) with a position of ours, and no outbox has a row of it. Either somebody
  else produced it under our marks, or its outbox row was deleted.
- *altered* (log): a copy's contents are not what the outbox holds, or it claims a position that is not its own, or it
  stands in a topic that it was not written to.
- *lost-in-relay*: a sent batch covers its row, the log reaches back to where it must stand, and it does not stand
  there; no consumer has it either.
- *lost-in-log*: it was in the log, and is there no more: a consumer has it from an offset that the log still covers
  (*truncated*), or the log now starts behind it although retention would have kept it (*deleted*), or retention was
  quicker than a consumer (*expired*), or whoever deleted its topic and made it anew (*remade*). What a compacted topic
  lacks is no loss: a later one of its key may have taken its place.
- *late*, *pending* (relay): no batch has sent it, or not the last time that it was written, or a transaction that is open
  in its partition hides it; older than the limit, or not.
- *parked* (relay), *discarded*: it left its batch and waits for an operator; it was given up.
- *doubled-in-log*: more committed copies than rows were written. A resend is a row of its own, and so is no double.
- *reordered*: it stands in the log behind a message of its key with a higher position.

Into a consumer's database, for each one that reads its topic from its place on:

- *dead*, *discarded*: it stands among the dead letters, and nobody has put it back; it was given up.
- *late*, *pending* (relay): the inbox lacks it, and it was written again and not sent yet: a resend is on its way.
- *cannot-know* (inbox): the inbox lacks it, and has dropped what it kept of that time; or the log has dropped it, and it
  is older than the consumer, or of a compacted topic: it may lie before where that began, or have been gone by then.
- *lost-in-inbox*: the consumer's position has passed it and all its copies, and the inbox lacks it.
- *late*, *pending* (inbox): the position has not come to it yet.
- *altered* (inbox): what was kept is not what was written.
- *applied-twice*: more than one effect. *Already there* and *older* are not effects.
- *reordered* (apply): its effect was made after that of a message which stands behind it in the log, of the same key.
- *parked*, *late*, *pending* (apply): kept, and in the queue: it failed and is tried again, or it waits.
- *unapplied*: kept, with no effect, not queued and not dead.
- *delivered*: none of these.

Gaps in offsets (transaction markers, aborted copies) are not losses: nothing here counts offsets.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tallymark.lifecycle import Stage, Verdict

# What an operator has to look at. The others are accounted for.
FINDINGS = frozenset(Verdict) - {
    Verdict.DELIVERED,
    Verdict.PENDING,
    Verdict.DISCARDED,
    Verdict.FOREIGN,
    Verdict.CANNOT_KNOW,
}
# What `tally resend` mends: the message is gone on its way, and its row is there to be sent again.
MENDABLE = frozenset({Verdict.LOST_IN_RELAY, Verdict.LOST_IN_LOG, Verdict.LOST_IN_INBOX})
_SEVERITY = {verdict: at for at, verdict in enumerate(Verdict)}


@dataclass(frozen=True, slots=True)
class Marks:
    """What the stations recorded of one message, and of one consumer with it. Counts, and facts drawn from them."""

    # Outbox rows of this id, and how many of them stand where.
    rows: int = 0
    sent: int = 0
    waiting: int = 0
    parked: int = 0
    discarded: int = 0
    # Whether any copy claims a position of an outbox; whether that lies before what the outbox keeps.
    positioned: bool = True
    forgotten: bool = False
    # Committed copies in the log; those beyond one for each row; whether one differs; whether it stands behind a later.
    copies: int = 0
    repeats: int = 0
    altered_in_log: bool = False
    reordered: bool = False
    # Why the log may lack it: it starts behind it ("expired", "deleted"), is another one than it was sent to ("remade"),
    # keeps the last of each key only ("compacted"), cannot be read up to there ("hidden"). "": it reaches back to it.
    gone: str = ""
    # On its way for longer than the limit, since it was written for the last time.
    old: bool = False
    # In any inbox.
    kept_anywhere: int = 0
    # From here on: one consumer.
    owed: bool = False
    kept: int = 0
    altered_in_inbox: bool = False
    # All copies that are owed to it.
    passed: bool = False
    # The log starts behind the consumer's position: what lies between was never read.
    overtaken: bool = False
    # Nobody can say whether it had it: its inbox has dropped what it kept then, or it may have begun behind it.
    forgotten_in_inbox: bool = False
    effects: int = 0
    finished: int = 0
    # Its effect was made after a later one's of its key.
    misapplied: bool = False
    queued: int = 0
    retrying: int = 0
    dead: int = 0
    given_up: int = 0


@dataclass(frozen=True, slots=True)
class Rule:
    """A verdict and when it holds, in both languages. Names in the SQL are those of `Marks`."""

    verdict: Verdict
    stage: Stage
    sql: str
    holds: Callable[[Marks], bool]


_V, _S = Verdict, Stage
# How a message leaves the log though nobody has lost it. As Python writes it, so does SQL.
_BY_RIGHT = ("expired", "remade", "compacted")

INTO_LOG: tuple[Rule, ...] = (
    Rule(
        _V.FOREIGN,
        _S.LOG,
        "rows = 0 and copies > 0 and not positioned",
        lambda m: m.rows == 0 and m.copies > 0 and not m.positioned,
    ),
    Rule(_V.CANNOT_KNOW, _S.OUTBOX, "rows = 0 and forgotten", lambda m: m.rows == 0 and m.forgotten),
    Rule(_V.PHANTOM, _S.LOG, "rows = 0 and copies > 0", lambda m: m.rows == 0 and m.copies > 0),
    Rule(_V.PHANTOM, _S.INBOX, "rows = 0", lambda m: m.rows == 0),
    Rule(_V.ALTERED, _S.LOG, "altered_in_log", lambda m: m.altered_in_log),
    Rule(
        _V.LOST_IN_RELAY,
        _S.RELAY,
        "copies = 0 and sent > 0 and waiting = 0 and gone = '' and kept_anywhere = 0",
        lambda m: m.copies == 0 and m.sent > 0 and m.waiting == 0 and not m.gone and m.kept_anywhere == 0,
    ),
    Rule(
        _V.LOST_IN_LOG,
        _S.LOG,
        f"copies = 0 and sent > 0 and waiting = 0 and gone not in {_BY_RIGHT}",
        lambda m: m.copies == 0 and m.sent > 0 and m.waiting == 0 and m.gone not in _BY_RIGHT,
    ),
    Rule(
        _V.LATE,
        _S.RELAY,
        "copies = 0 and (sent > 0 or kept_anywhere = 0) and waiting > 0 and old",
        lambda m: m.copies == 0 and (m.sent > 0 or m.kept_anywhere == 0) and m.waiting > 0 and m.old,
    ),
    Rule(
        _V.PENDING,
        _S.RELAY,
        "copies = 0 and (sent > 0 or kept_anywhere = 0) and waiting > 0",
        lambda m: m.copies == 0 and (m.sent > 0 or m.kept_anywhere == 0) and m.waiting > 0,
    ),
    Rule(
        _V.PARKED,
        _S.RELAY,
        "copies = 0 and sent = 0 and kept_anywhere = 0 and parked > 0",
        lambda m: m.copies == 0 and m.sent == 0 and m.kept_anywhere == 0 and m.parked > 0,
    ),
    Rule(
        _V.DISCARDED,
        _S.RELAY,
        "copies = 0 and sent = 0 and kept_anywhere = 0",
        lambda m: m.copies == 0 and m.sent == 0 and m.kept_anywhere == 0,
    ),
    Rule(_V.DOUBLED_IN_LOG, _S.LOG, "repeats > 0", lambda m: m.repeats > 0),
    Rule(_V.REORDERED, _S.LOG, "reordered", lambda m: m.reordered),
    Rule(_V.DELIVERED, _S.LOG, "true", lambda _: True),
)

INTO_CONSUMER: tuple[Rule, ...] = (
    # Nothing is owed, or the log's own verdict says all there is to say.
    Rule(_V.DELIVERED, _S.APPLY, "not owed", lambda m: not m.owed),
    Rule(
        _V.DELIVERED,
        _S.LOG,
        f"kept = 0 and copies = 0 and gone not in {_BY_RIGHT}",
        lambda m: m.kept == 0 and m.copies == 0 and m.gone not in _BY_RIGHT,
    ),
    Rule(_V.DEAD, _S.APPLY, "kept = 0 and dead > 0", lambda m: m.kept == 0 and m.dead > 0),
    Rule(_V.DISCARDED, _S.APPLY, "kept = 0 and given_up > 0", lambda m: m.kept == 0 and m.given_up > 0),
    Rule(
        _V.LATE,
        _S.RELAY,
        "kept = 0 and waiting > 0 and old",
        lambda m: m.kept == 0 and m.waiting > 0 and m.old,
    ),
    Rule(_V.PENDING, _S.RELAY, "kept = 0 and waiting > 0", lambda m: m.kept == 0 and m.waiting > 0),
    Rule(
        _V.LOST_IN_LOG,
        _S.LOG,
        "kept = 0 and copies = 0 and overtaken",
        lambda m: m.kept == 0 and m.copies == 0 and m.overtaken,
    ),
    Rule(
        _V.CANNOT_KNOW,
        _S.INBOX,
        "kept = 0 and (passed or copies = 0) and forgotten_in_inbox",
        lambda m: m.kept == 0 and (m.passed or m.copies == 0) and m.forgotten_in_inbox,
    ),
    Rule(
        _V.LOST_IN_INBOX,
        _S.INBOX,
        "kept = 0 and (passed or copies = 0)",
        lambda m: m.kept == 0 and (m.passed or m.copies == 0),
    ),
    Rule(_V.LATE, _S.INBOX, "kept = 0 and old", lambda m: m.kept == 0 and m.old),
    Rule(_V.PENDING, _S.INBOX, "kept = 0", lambda m: m.kept == 0),
    Rule(_V.ALTERED, _S.INBOX, "altered_in_inbox", lambda m: m.altered_in_inbox),
    Rule(_V.APPLIED_TWICE, _S.APPLY, "effects > 1", lambda m: m.effects > 1),
    Rule(_V.REORDERED, _S.APPLY, "misapplied", lambda m: m.misapplied),
    Rule(_V.DEAD, _S.APPLY, "dead > 0", lambda m: m.dead > 0),
    Rule(_V.PARKED, _S.APPLY, "retrying > 0", lambda m: m.retrying > 0),
    Rule(_V.LATE, _S.APPLY, "queued > 0 and old", lambda m: m.queued > 0 and m.old),
    Rule(_V.PENDING, _S.APPLY, "queued > 0", lambda m: m.queued > 0),
    Rule(_V.DELIVERED, _S.APPLY, "finished > 0", lambda m: m.finished > 0),
    Rule(_V.DISCARDED, _S.APPLY, "given_up > 0", lambda m: m.given_up > 0),
    Rule(_V.UNAPPLIED, _S.APPLY, "true", lambda _: True),
)


def into_log(marks: Marks) -> tuple[Verdict, Stage]:
    """What became of it on its way into the log."""
    return _first(INTO_LOG, marks)


def into_consumer(marks: Marks) -> tuple[Verdict, Stage]:
    """What became of it on its way into one consumer's database."""
    return _first(INTO_CONSUMER, marks)


def worst(*verdicts: Verdict) -> Verdict:
    """The one verdict of a message: the gravest of all that were given."""
    return max(verdicts, key=_SEVERITY.__getitem__, default=Verdict.DELIVERED)


def _first(rules: tuple[Rule, ...], marks: Marks) -> tuple[Verdict, Stage]:
    rule = next(rule for rule in rules if rule.holds(marks))
    return rule.verdict, rule.stage
