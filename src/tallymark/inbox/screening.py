"""Which messages may be kept as usual, by the age that their ids claim (pitfall 16). Pure.

Saved ids are dropped with the log's own messages. An id older than the oldest kept cannot be known: it may have been
applied before. One from the future was made by a wrong clock, and would be dropped at a wrong time. Both become dead
letters, with the reason, and change nothing. So does one whose id stands among headers that cannot be read.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Sequence
from datetime import datetime

from tallymark.inbox.identity import FUTURE_MARGIN, id_floor, is_named, lacks_headers, named_id
from tallymark.inbox.ports import Received

AHEAD = "its id claims to be from the future: the producer's clock is wrong"
NO_HEADERS = (
    "its headers cannot be read, for a name among them is not UTF-8: nobody knows its id, and a retry applies it "
    "without them"
)
TOO_OLD = "cannot know: its id is older than the saved ids, it may have been applied before"


class Screen:
    """Sorts messages by whether their ids can be trusted today."""

    def __init__(self, needs_saved_id: Callable[[str], bool], kept_from: datetime, now: datetime) -> None:
        self._needs_saved_id = needs_saved_id
        self._lowest = 0
        self._highest = 0
        self.look(kept_from, now)

    def look(self, kept_from: datetime, now: datetime) -> None:
        """Time went on: what is kept, and what counts as the future, moved with it.

        Both by the database's clock: by one that is days behind, all that comes would be from the future.
        """
        self._lowest = id_floor(kept_from)
        self._highest = id_floor(now + FUTURE_MARGIN)

    @property
    def bounds(self) -> tuple[int, int]:
        """The lowest id that is known of, and the first that is from the future, as numbers."""
        return self._lowest, self._highest

    def doubt(self, id: uuid.UUID) -> str | None:
        """Why saved ids cannot say whether this one was there before, or None."""
        if is_named(id) or self._lowest <= id.int < self._highest:
            return None
        if lacks_headers(id):
            return NO_HEADERS
        return TOO_OLD if id.int < self._lowest else AHEAD

    def sort(self, messages: Sequence[Received]) -> tuple[Sequence[Received], list[tuple[Received, str]]]:
        """Those to keep, and those to set apart with the reason. Nearly always all of them, and none."""
        lowest, highest = self._lowest, self._highest
        if all(lowest <= each.id.int < highest or is_named(each.id) for each in messages):
            return messages, []
        good, odd = [], []
        for each in messages:
            doubt = self.doubt(each.id)
            if doubt is None:
                good.append(each)
            elif doubt is NO_HEADERS:  # known by where it stands, like any other that brings no id
                odd.append((each._replace(id=named_id((each.named or "").encode())), doubt))
            elif doubt is AHEAD or self._needs_saved_id(each.topic):
                odd.append((each, doubt))
            else:
                # The handler's own scheme knows. The day's partition is gone, so it is kept under its name.
                name = str(each.id)
                good.append(each._replace(id=named_id(name.encode()), named=name))
        return good, odd
