"""Says in the log what failed, once its transaction is committed: who reads nothing else must learn of a dead letter."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from tallymark.inbox.ports import Failed

log = logging.getLogger("tallymark.inbox")

# Of a batch whose messages all fail, these many are named; the rest stand in the queue and among the dead letters.
_NAMED = 3


def tell(failed: Sequence[Failed]) -> None:
    """A warning for what is tried again, an error for what is dead; the dead come first."""
    for each in sorted(failed, key=lambda one: one.again_in_s is not None)[:_NAMED]:
        message, attempt = each.queued.message, each.queued.attempts + 1
        what = f"{message.named or message.id} ({message.topic}/{message.partition}@{message.offset})"
        if each.again_in_s is None:
            log.error(
                "message %s is dead after attempt %d: %s%s",
                what,
                attempt,
                each.reason,
                "; later ones of its key wait behind it" if each.hold_key else "",
                extra={"action": "inbox.dead"},
            )
        else:
            log.warning(
                "message %s failed in attempt %d, and is tried again in %.1f s: %s",
                what,
                attempt,
                each.again_in_s,
                each.reason,
                extra={"action": "inbox.failed"},
            )
    if len(failed) > _NAMED:
        log.warning("and %d others with them", len(failed) - _NAMED, extra={"action": "inbox.failed"})
