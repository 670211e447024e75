"""Something is tried again: said in one line, with when and why, by whoever waits."""

from __future__ import annotations

import logging
import random

from tallymark.errors import Problem, TallymarkError, said
from tallymark.policy import Backoff


def told_again(
    log: logging.Logger, error: Exception, backoff: Backoff, attempt: int, *, action: str, who: str = ""
) -> tuple[float, str]:
    """How many seconds to wait before the next try, and what stands in the way; the log has both."""
    known = error if isinstance(error, TallymarkError) else Problem(said(error))
    delay = backoff.delay(max(1, attempt), random.random())  # noqa: S311 - jitter is no secret
    log.warning(
        "%stries again in %.1f s: %s",
        f"{who} " if who else "",
        delay,
        known.sentence.replace("\n", ". "),
        extra={"action": action, "attempt": attempt},
        exc_info=not isinstance(error, TallymarkError) and attempt == 1,
    )
    return delay, str(known)
