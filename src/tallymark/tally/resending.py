"""Whether a message may be sent again. Pure.

A resend is a new row of the outbox with the original id: a consumer that had the message changes nothing, one that had
not applies it once. What it must not do is overwrite newer state (pitfall 18): behind a later message of its key that
was applied, or is on its way, it is refused, unless the consumer goes by versions or takes any order, or the caller says
that its handlers can. Whoever lacks it must have been asked, in any order: what another consumer has applied says nothing
of it, and where its effect was made though its inbox lacks it, it would be applied twice.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from tallymark.errors import UsageError
from tallymark.lifecycle import MessageState
from tallymark.tally.history import id_ms


@dataclass(frozen=True, slots=True)
class Standing:
    """What one consumer would make of it."""

    consumer: str
    has_it: bool
    # Its effect was made; without `has_it`, whoever took its inbox row has left that.
    applied_it: bool
    applied_later: bool
    # What is older is passed over: it comes with its original's position.
    by_version: bool
    # Its handler takes any order.
    unordered: bool = False
    # A later one of its key is queued, or in the log or the outbox and not yet kept: it will be there before.
    later_comes: bool = False
    # Its inbox has dropped what it kept of that time: nobody can say whether it had the message. Of an id without a time:
    # of that part of the log, or nobody knows where it stood.
    forgets: bool = False
    # Whose consumer this is; a tally that knows two of one name tells them apart by it.
    database: str = ""

    @property
    def minds(self) -> bool:
        """Whether it lacks the message, and could be harmed by its coming late."""
        return not (self.has_it or self.by_version or self.unordered)

    @property
    def names(self) -> frozenset[str]:
        """As whom a finding may speak of it."""
        return frozenset({self.consumer, f"{self.database}/{self.consumer}"})


@dataclass(frozen=True, slots=True)
class Wanted:
    """A message that somebody wants to be sent again."""

    id: str
    verdict: str
    consumer: str
    # When it was last found missing; None where nobody looked.
    seen_at: datetime | None


def seen_at(finding: Mapping[str, object]) -> datetime | None:
    """When a finding, as files hold it, was last seen; None where it does not say.

    It is held against when the message was sent again: a time without a zone could be hours off.
    """
    text = finding.get("last_seen")
    if text is None:
        return None
    try:
        at = datetime.fromisoformat(text) if isinstance(text, str) else None
    except ValueError:
        at = None
    if at is None or at.tzinfo is None:
        wrong = f"is no time: {text!r}" if at is None else f"has no time zone: {text}"
        raise UsageError(
            f"last_seen of finding {finding.get('id')} {wrong}",
            remedy="write it as 2026-11-15T08:00:00+00:00, or leave it out: then what the database knows counts",
        )
    return at


def unasked(missed_by: Iterable[str], standings: Sequence[Standing]) -> list[str]:
    """Who lacks it, as a tally has found, and is not among those who were asked."""
    asked = {name for each in standings for name in each.names}
    return sorted({each for each in missed_by if each} - asked)


def refusal(  # noqa: PLR0911 - one return per reason
    wanted: Wanted,
    state: MessageState | None,
    resent_at: datetime | None,
    standings: Sequence[Standing] | None,
    *,
    any_order: bool,
    forgotten: bool = False,
    missed_by: Iterable[str] = (),
    read_by: Iterable[str] = (),
) -> str | None:
    """Why it is not sent again, or None.

    `standings` is None where no consumer's database was asked; `missed_by` are consumers that a tally found to lack it,
    `read_by` those that it knew to read its topic. `any_order` excuses nothing but the order, `forgotten` that a consumer
    no longer remembers whether it had it.
    """
    if state is None:
        return "it is not in this outbox"
    if state in (MessageState.PENDING, MessageState.SENDING, MessageState.DELAYED):
        return f"it is {state}: it will be sent anyway"
    if state is MessageState.FAILED:
        return "it is parked at the relay: `tallymark failed retry` sends it"
    if state is MessageState.DISCARDED:
        return "it was given up by an operator"
    if resent_at is not None and (wanted.seen_at is None or wanted.seen_at < resent_at):
        return "it was resent since it was found missing: let the tally run again first"
    for each in standings or ():
        if each.applied_it and not each.has_it:
            return (
                f"{each.consumer} has made its effect, though its inbox lacks it: it would be applied twice"
            )
        if each.forgets and not each.has_it and id_ms(wanted.id) is None:
            return (
                f"{each.consumer} no longer remembers ids without a time where it stood, or nobody says where that was: "
                "had it applied it, it would be applied twice"
            )
        if each.forgets and not each.has_it and not forgotten:
            return (
                f"{each.consumer} no longer remembers that time: it may have applied it, and would put it among its dead "
                "letters, where it holds its key (--forgotten where that is meant)"
            )
    if others := unasked(missed_by, standings or ()):
        return (
            f"{others[0]} lacks it, and its database was not asked whether its effect was made there, or a later one's "
            "of its key (name it with --database; where that consumer is no more, let the tally run again)"
        )
    if standings is None:
        return _nobody_asked(read_by, any_order=any_order)
    return None if any_order else _too_late(standings)


def _nobody_asked(read_by: Iterable[str], *, any_order: bool) -> str | None:
    """Whether it can go without any consumer's word: only where none is known, and order is no matter."""
    if readers := sorted(read_by):
        return (
            f"no consumer's database was given, and {readers[0]} reads its topic: nobody can say whether its effect was "
            "made there (name it with --database; where that consumer is no more, let the tally run again)"
        )
    if not any_order:
        return (
            "no consumer's database was given: nobody can say whether its effect was made, or a later one's of its key "
            "(name them with --database; --any-order where none of them is known here, and their handlers can take that)"
        )
    return None


def _too_late(standings: Sequence[Standing]) -> str | None:
    """Who would, or could, apply it behind a later one of its key."""
    for each in standings:
        if each.minds and each.applied_later:
            return (
                f"{each.consumer} has applied a later message of its key: applying it now could overwrite newer "
                "state (--any-order where its handlers can take that)"
            )
        if each.minds and each.later_comes:
            return (
                f"a later message of its key is on its way to {each.consumer}: applied behind it, it could overwrite "
                "newer state (resend both where that one is lost too; --any-order where its handlers can take that)"
            )
    return None
