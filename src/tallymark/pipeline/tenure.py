"""The positions that one run holds: taken as Spark's, with a lease that a thread renews, given back at the end.

A service that holds them, or another run of the same consumer, is not pushed aside: the run ends and says who it is
(pitfall 23). A run that was killed on this machine is known to be gone by its process, and not waited for (machine.py).
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import Protocol

from tallymark.errors import Problem, TallymarkError, Unreachable
from tallymark.inbox.gaps import Bounds, gap, start_of
from tallymark.inbox.ports import Place, Position, Wanted
from tallymark.inbox.screening import Screen
from tallymark.lifecycle import OwnerKind
from tallymark.pipeline.machine import lives_here
from tallymark.pipeline.patience import PAST_END_S
from tallymark.store.postgres.inboxstore import PostgresInboxStore

log = logging.getLogger("tallymark.pipeline")

_LOOK_S = 0.5
# How often it is looked whether topics are still the same: a question to Kafka each time.
_TOPICS_S = 2.0


class Logs(Protocol):
    """Where topics begin and end."""

    def bounds(self, places: Collection[Place]) -> dict[Place, tuple[int, int]]: ...

    def topic_ids(self, topics: Collection[str]) -> dict[str, str]: ...

    def partitions(self, topics: Collection[str]) -> list[Place]: ...


class Held(Problem):
    """Somebody else reads for this consumer."""


class PastEnd(Unreachable):
    """A position lies past its log's end, or Kafka does not read on there; too early to say that the log was cut."""


# Where Kafka does not read on at an offset beside its leader's epoch, and what it says.
Refused = Callable[[Mapping[Place, tuple[int, int]]], Mapping[Place, str]]


class Tenure:
    """Positions of one consumer, for the length of a run."""

    def __init__(
        self,
        store: PostgresInboxStore,
        beats: PostgresInboxStore,
        logs: Logs,
        screen: Screen,
        *,
        owner: str,
        topics: Sequence[str],
        lease_s: float,
        at_end: bool = False,
        refused: Refused = lambda _positions: {},
    ) -> None:
        self._refused = refused
        self._store = store
        self._beats = beats
        self._logs = logs
        self._screen = screen
        self._owner = owner
        self._topics = tuple(topics)
        self._lease_s = lease_s
        self._at_end = at_end
        self._held: dict[Place, Position] = {}
        self._lock = threading.Lock()
        self._over = threading.Event()
        # Set while an operator has paused this consumer.
        self.paused = threading.Event()
        self.lost: str | None = None
        self._looked_at = 0.0
        # Positions that lie past their log's end, and those where Kafka does not read on: since when that is seen.
        self._past_end: dict[Place, float] = {}
        self._cut: dict[Place, float] = {}

    def epochs(self) -> dict[Place, int]:
        with self._lock:
            return {place: position.epoch for place, position in self._held.items()}

    def positions(self) -> dict[Place, Position]:
        with self._lock:
            return dict(self._held)

    def take(self, wait: Callable[[float], object] = time.sleep) -> dict[Place, Position]:
        """All partitions of the topics; waits for the lease of a run that was killed, and for nobody who lives.

        And for a log whose end is too low: for a while, before that counts as a cut.
        """
        self._past_end.clear()
        self._cut.clear()
        deadline = time.monotonic() + self._lease_s + 1
        while True:
            try:
                found = self._take(self._places())
            except PastEnd:
                if wait(_LOOK_S):
                    raise
                continue
            refused = {each.owner: each for each in found if each.refused and each.owner}
            if not refused:
                break
            for owner, position in refused.items():
                self._refuse_living(owner, position, patient=time.monotonic() < deadline)
            if wait(_LOOK_S):
                raise Held(f"{next(iter(refused))} still held the positions when we were told to stop")
        with self._lock:
            # A beat under way still goes by the epochs of before: taking anew, we took them from ourselves.
            self._held, self.lost = {each.place: each for each in found}, None
        return self.positions()

    def _places(self) -> list[Place]:
        """All of all topics: one that Kafka does not tell of for a moment must not drop out of the run in silence."""
        places = self._logs.partitions(self._topics)
        if silent := sorted(set(self._topics) - {topic for topic, _ in places}):
            raise Unreachable(
                f"Kafka says nothing of topic {silent[0]}",
                remedy="look with `tallymark topics check` whether it is still there",
            )
        return places

    def add(self, places: Collection[Place]) -> None:
        """Partitions that were added to a topic since: they begin at 0, so that nothing of them is passed over."""
        found = self._take(places)
        if taken := [each for each in found if each.refused]:
            raise Held(f"{taken[0].topic}/{taken[0].partition} is held by {taken[0].owner}")
        with self._lock:
            self._held |= {each.place: each for each in found}

    def refuse_recreated(self) -> None:
        """Before a commit, now and then: a topic that was made anew is another log, whatever its offsets (fault S6)."""
        if time.monotonic() - self._looked_at < _TOPICS_S:
            return
        self._looked_at = time.monotonic()
        held = self.positions()
        try:
            ids = self._logs.topic_ids({topic for topic, _ in held})
        except TallymarkError as error:  # the next look may be luckier
            log.warning("looking at the topics: %s", error, extra={"action": "pipeline.look"})
            return
        for position in held.values():
            # Only the id is looked at here: the batch has been read.
            at = position.next_offset
            self._refuse_gap(position, Bounds(at, at, ids.get(position.topic, position.topic_id)))

    def note_moved(self, ends: Mapping[Place, int]) -> None:
        with self._lock:
            for place, end in ends.items():
                self._held[place] = replace(self._held[place], next_offset=end)

    def keep_alive(self) -> threading.Thread:
        """Renew the lease until `release`."""
        thread = threading.Thread(target=self._beat, name="tallymark-lease", daemon=True)
        thread.start()
        return thread

    def release(self) -> None:
        self._over.set()
        try:
            self._store.leave(self._owner)
        except TallymarkError as error:  # the lease runs out by itself
            log.warning("could not give up positions: %s", error, extra={"action": "pipeline.release"})

    def _beat(self) -> None:
        while not self._over.wait(min(1.0, self._lease_s / 3)):
            ours = self.epochs()
            try:
                standing = self._beats.heartbeat(self._owner, self._lease_s, ours)
                # A run may last for weeks: what counts as too old, and as the future, moves with the days.
                self._screen.look(*self._beats.memory())
            except Exception as error:  # noqa: BLE001 - whatever it is, the next beat may get through
                log.warning("heartbeat: %s", error, extra={"action": "pipeline.pulse"})
                continue
            (self.paused.set if standing.paused else self.paused.clear)()
            gone = [place for place, epoch in ours.items() if standing.epochs.get(place) != epoch]
            with self._lock:
                if gone and {place: position.epoch for place, position in self._held.items()} == ours:
                    self.lost = (
                        f"{gone[0][0]}/{gone[0][1]} was taken by another owner, or sought by an operator"
                    )
        self._beats.close()

    def _take(self, places: Collection[Place]) -> list[Position]:
        bounds = self._bounds(places)
        known = self._store.positions()
        if new := {topic for topic, _ in places} - {topic for topic, _ in known}:
            self._store.found_topic(
                [
                    Wanted(*place, each.topic_id, start_of(each, known_topic=False, at_end=self._at_end))
                    for place, each in bounds.items()
                    if place[0] in new
                ]
            )
        wanted = [Wanted(*place, each.topic_id, 0) for place, each in bounds.items()]
        gone = {each.owner for each in known.values() if each.owner and not each.lease_alive} - {self._owner}
        if gone:
            # They did not give it up: killed, cut off or stopped. What they have begun can only be in the way; one that
            # lives still finds its connection lost, and asks what was committed.
            self._store.end_sessions(gone)
        found = self._store.take(self._owner, OwnerKind.SPARK, self._lease_s, wanted)
        ours = [position for position in found if not position.refused]
        for position in ours:
            self._refuse_gap(position, bounds[position.place])
        self._refuse_cut(ours)
        return found

    def _refuse_cut(self, positions: Collection[Position]) -> None:
        """A log that was cut and has grown since: known where whoever moved the position has left the leader's epoch.

        Spark reads without one, so that it is asked before Spark begins, as the service's client asks.
        """
        known = {
            each.place: (each.next_offset, each.leader_epoch)
            for each in positions
            if each.leader_epoch is not None
        }
        refused = self._refused(known)
        for position in positions:
            if (said := refused.get(position.place)) is None:
                self._cut.pop(position.place, None)
            else:
                self._halt(
                    position,
                    f"{position.topic}/{position.partition}: Kafka does not read on at offset {position.next_offset} "
                    f"({said}): the log was cut back, and has grown since. `tallymark inbox seek` says where to go on",
                    self._cut,
                )

    def _bounds(self, places: Collection[Place]) -> dict[Place, Bounds]:
        ids = self._logs.topic_ids({topic for topic, _ in places})
        found = {
            place: Bounds(first, end, ids[place[0]])
            for place, (first, end) in self._logs.bounds(places).items()
            if place[0] in ids
        }
        if silent := sorted(set(places) - found.keys()):
            raise Unreachable(
                f"Kafka says nothing of {silent[0][0]}/{silent[0][1]}",
                remedy="try again when it has a leader",
            )
        return found

    def _refuse_gap(self, position: Position, bounds: Bounds) -> None:
        """An expired, cut or recreated log is never skipped."""
        reason = position.halted or gap(position, bounds)
        if reason is None:
            self._past_end.pop(position.place, None)
            return
        # A low end may be a new leader's; or a service has moved on since we asked where the log ends.
        same = position.halted is None and position.topic_id == bounds.topic_id
        self._halt(position, reason, self._past_end if same and position.next_offset > bounds.end else None)

    def _halt(self, position: Position, reason: str, seen: dict[Place, float] | None = None) -> None:
        """The position is halted, and the range named; with `seen` when that has been seen for a while."""
        said, _, remedy = reason.partition(". ")
        now = time.monotonic()
        if seen is not None and now - seen.setdefault(position.place, now) < PAST_END_S:
            raise PastEnd(said, remedy=remedy)
        if position.halted is None:
            self._store.halt(position.place, position.epoch, reason)
        raise Problem(said, remedy=remedy)

    def _refuse_living(self, owner: str, position: Position, *, patient: bool) -> None:
        if position.owner_kind is OwnerKind.SPARK:
            alive = lives_here(owner)
            if alive is False:
                held = self._store.positions().values()
                self._store.release(owner, {each.place: each.epoch for each in held if each.owner == owner})
                return
            if alive is None and patient:
                return  # nobody here can tell: if it was killed, its lease runs out
        what = "a service" if position.owner_kind is OwnerKind.SERVICE else "another run of this job"
        raise Held(
            f"{position.topic}/{position.partition} is held by {owner}: {what} reads for this consumer",
            remedy="stop it first, or wait until its lease has run out if it was killed",
        )
