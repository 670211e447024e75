"""Whether a message may be sent again. Pure.

A resend is a new row of the outbox with the original id: a consumer that had the message changes nothing, one that had
not applies it once. What it must not do is overwrite newer state (pitfall 18): behind a later message of its key that
was applied, or is on its way, it is refused, unless the consumer goes by versions, or the caller says that its handlers
can take any order.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from tallymark.lifecycle import MessageState


@dataclass(frozen=True, slots=True)
class Standing:
    """What one consumer would make of it."""

    consumer: str
    has_it: bool
    # Its effect was made; without `has_it`, whoever took its inbox row has left that.
    applied_it: bool
    applied_later: bool
    by_version: bool
    # A later one of its key is queued, or in the log or the outbox and not yet kept: it will be there before.
    later_comes: bool = False


@dataclass(frozen=True, slots=True)
class Wanted:
    """A message that somebody wants to be sent again."""

    id: str
    verdict: str
    consumer: str
    # When it was last found missing; None where nobody looked.
    seen_at: datetime | None


def refusal(  # noqa: PLR0911 - one return per reason
    wanted: Wanted,
    state: MessageState | None,
    resent_at: datetime | None,
    standings: Sequence[Standing] | None,
    *,
    any_order: bool,
) -> str | None:
    """Why it is not sent again, or None. `standings` is None where no consumer's database was asked."""
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
    if any_order:
        return None
    if standings is None:
        return "no consumer's database was given: nobody can say whether a later one of its key was applied"
    for each in standings:
        if not each.has_it and each.applied_later and not each.by_version:
            return (
                f"{each.consumer} has applied a later message of its key: applying it now could overwrite newer "
                "state (--any-order where its handlers can take that)"
            )
        if not each.has_it and each.later_comes and not each.by_version:
            return (
                f"a later message of its key is on its way to {each.consumer}: applied behind it, it could overwrite "
                "newer state (resend both where that one is lost too; --any-order where its handlers can take that)"
            )
    return None
