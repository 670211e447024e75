"""Retention may pass while a run reads, which takes minutes: what it has taken meanwhile is no loss.

Retention says how far it goes before it takes anything (outbox: the partition is detached; inbox: `kept_from`). So
whoever asks again when all was read knows of everything that may have been missing from that reading.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from tallymark.pipeline.reconcileground import Ground
from tallymark.pipeline.reconcilemarks import Single
from tallymark.pipeline.reconcileports import Stations
from tallymark.tally.history import id_ms
from tallymark.tally.verdicts import Marks


@dataclass(frozen=True, slots=True)
class Taken:
    """How far retention has come: of the outbox, and of each consumer's inbox."""

    outbox_from: int = 0
    # … and how far it had when the run began.
    was_from: int = 0
    kept_from_ms: Mapping[str, int] = field(default_factory=dict)
    # Topics of which an inbox has dropped messages whose ids carry no time.
    pruned: Mapping[str, frozenset[str]] = field(default_factory=dict)

    def passed_by(self, single: Single) -> Single:
        """A message with what nobody can know of it any more."""
        common = single.common
        last = single.position if single.last_position is None else single.last_position
        if last is not None and last < self.outbox_from:
            common = replace(common, forgotten=True)
        elif common.rows and self.was_from <= (single.first_claim or 0) < self.outbox_from:
            # It was sent again, and the row of its first copy may have gone before it was read: which copies have one,
            # the next run knows.
            common = replace(common, altered_in_log=False, repeats=0)
        at_consumers = {name: self._at(name, single, marks) for name, marks in single.at_consumers.items()}
        return replace(single, common=common, at_consumers=at_consumers)

    def shorten(self, ground: Ground) -> None:
        """What is compared as a whole: how far back it can be."""
        lowest = max(ground.view.outbox_from, self.outbox_from)
        ground.view = replace(ground.view, outbox_from=lowest)
        ground.consumers = {
            label: replace(
                view,
                kept_from_ms=max(view.kept_from_ms, self.kept_from_ms.get(label, 0)),
                pruned=view.pruned | self.pruned.get(label, frozenset()),
            )
            for label, view in ground.consumers.items()
        }

    def _at(self, name: str, single: Single, marks: Marks) -> Marks:
        made = id_ms(single.id)
        # Of ids that carry no time an inbox drops only what the log has dropped.
        timeless = made is None and not marks.copies and single.topic in self.pruned.get(name, ())
        if not timeless and (made is None or made >= self.kept_from_ms.get(name, 0)):
            return marks
        # Its effect goes with it: seen before and without one, it was taken in between.
        seen = marks.effects or marks.finished or marks.queued or marks.dead or marks.given_up
        return replace(marks, kept=marks.kept if seen else 0, forgotten_in_inbox=True)


NOTHING = Taken()


def taken(sources: Stations, ground: Ground) -> Taken:
    """As it is now."""
    views = {
        (view.database, view.name): view
        for inbox in sources.inboxes().values()
        # What is queued was read long ago, and may be more by now than anybody can hold.
        for view in inbox.views(unfinished=False)
    }
    now = {label: views.get((view.database, view.name), view) for label, view in ground.consumers.items()}
    return Taken(
        sources.producer(ground.name).view().outbox_from,
        ground.view.outbox_from,
        {label: view.kept_from_ms for label, view in now.items()},
        {label: view.pruned for label, view in now.items()},
    )
