"""Takes and gives up partitions as Kafka assigns them: the position comes from the database, with a new epoch.

A place that another owner took while Kafka still assigns it to us is not taken back (pitfall 23), unless its position
stands free: its owner left, or an operator sought. One that does not fit its log any more is halted (gaps.py).
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence

from tallymark.errors import TallymarkError, Unreachable
from tallymark.inbox.book import Book
from tallymark.inbox.config import InboxConfig
from tallymark.inbox.gaps import Bounds, gap, start_of
from tallymark.inbox.handover import Handover
from tallymark.inbox.logport import Log
from tallymark.inbox.ports import InboxStore, Place, Position, Wanted
from tallymark.lifecycle import OwnerKind

log = logging.getLogger("tallymark.inbox")

# Right after a leader's death its successor may know an end that is a little behind: wait before calling it a cut.
_PAST_END_S = 10.0


class Custody:
    """Which partitions are ours. Called in the thread that polls, also from within Kafka's callbacks.

    So `store` must answer within seconds, or raise: Kafka and whoever stops us wait for that thread.
    """

    def __init__(
        self, store: InboxStore, kafka: Log, book: Book, handover: Handover, config: InboxConfig
    ) -> None:
        self._store = store
        self._kafka = kafka
        self._book = book
        self._handover = handover
        self._config = config
        self._past_end: dict[Place, float] = {}
        # Where Kafka would not read on, since when, and when it last said so.
        self._refused: dict[Place, tuple[int, float, float]] = {}
        self.troubles: dict[Place, str] = {}
        self.rebalances = 0

    def given(self, places: Sequence[Place]) -> Mapping[Place, tuple[int, int | None]]:
        self.rebalances += 1
        self._book.assigned(places)
        return self.take_waiting()

    def revoked(self, places: Sequence[Place]) -> None:
        """Finish what is being kept, then give the positions up; what does not finish in time, the epoch stops."""
        self.rebalances += 1
        if not self._handover.wait_while_busy(places, self._config.revoke_s):
            log.warning("a batch did not finish before its partition went", extra={"action": "inbox.revoke"})
        held = self._book.held()
        epochs = self._book.drop(places)
        self._forget(places)
        if not epochs:
            return
        if self._config.positions == "kafka":
            try:
                self._kafka.commit({place: held[place].committed for place in epochs}, wait=True)
            except TallymarkError as error:  # whoever comes next reads a part again, and knows it
                log.warning("could not commit offsets: %s", error, extra={"action": "inbox.revoke"})
        self._release(epochs)

    def _release(self, epochs: Mapping[Place, int]) -> None:
        if self._config.positions == "kafka" or not epochs:
            return
        try:
            self._store.release(self._config.owner, epochs)
        except TallymarkError as error:  # whoever comes next takes it with a new epoch all the same
            log.warning("could not give up positions: %s", error, extra={"action": "inbox.revoke"})

    def lost(self, places: Sequence[Place]) -> None:
        """Others have them already: nothing is ours to finish. What still bears our name is given up."""
        self.rebalances += 1
        epochs = self._book.drop(places)
        self._forget(places)
        self._release(epochs)

    def misplaced(self, places: Mapping[Place, str]) -> None:
        """Kafka does not have what we want to read: look into it before anything else is read.

        Where it seems to be there, and Kafka refuses it again and again, the log was cut back and has grown since.
        """
        held, now = self._book.held(), time.monotonic()
        cut: dict[Place, str] = {}
        for place, said in places.items():
            log.warning("%s/%d: %s", *place, said, extra={"action": "inbox.misplaced"})
            if place not in held:
                continue
            at, (before, since, last) = held[place].read, self._refused.get(place, (-1, now, now))
            if before != at or now - last > _PAST_END_S:
                since = now
            self._refused[place] = at, since, now
            if now - since >= _PAST_END_S:
                cut[place] = (
                    f"Kafka does not read on at offset {at} ({said}): the log was cut back, and has grown since. "
                    f"`tallymark inbox seek` says where to go on"
                )
        self._stand_still(cut)
        self._book.set_aside(places.keys() - cut)

    def unreadable(self, places: Mapping[Place, str]) -> None:
        """Something in the log cannot be read: the partition stands still there, and is not passed over."""
        self._stand_still(
            {place: f"{said}. `tallymark inbox seek` goes on behind it" for place, said in places.items()}
        )

    def _stand_still(self, places: Mapping[Place, str]) -> None:
        epochs = self._book.epochs()
        self._book.set_aside(places)
        heard = True
        for place, said in places.items():
            reason = f"{place[0]}/{place[1]}: {said}"
            log.critical("%s", reason, extra={"action": "inbox.halt"})
            self._note(place, reason)
            # Where the database does not answer for one, Kafka would not wait until it has not for sixty.
            heard = heard and self._halt(place, epochs.get(place), reason)

    def _halt(self, place: Place, epoch: int | None, reason: str) -> bool:
        """Whether the database knows, as far as it is to."""
        if self._config.positions == "kafka" or epoch is None:
            return True
        try:
            self._store.halt(place, epoch, reason)
        except TallymarkError as error:  # it stands still all the same, and will be found again
            log.warning("could not note it: %s", error, extra={"action": "inbox.halt"})
            return False
        return True

    def take_waiting(self) -> dict[Place, tuple[int, int | None]]:
        """Take what may be taken; gives back where to read on, by place."""
        waiting = self._book.waiting()
        if not waiting:
            return {}
        try:
            bounds = self._bounds(list(waiting))
            if self._config.positions == "kafka":
                taken = self._from_kafka(bounds)
            else:
                taken = self._from_database(waiting, bounds)
        except TallymarkError as error:  # the database or Kafka is away: they wait, and so do we
            log.warning("cannot take partitions yet: %s", error, extra={"action": "inbox.take"})
            for place in waiting:
                self.troubles[place] = str(error)
            return {}
        read_on = {
            position.place: (position.next_offset, position.leader_epoch)
            for position in taken
            if position.place in bounds and self._accepted(position, bounds[position.place])
        }
        if read_on:
            places = ", ".join(f"{topic}/{partition}" for topic, partition in sorted(read_on))
            log.info("took %s", places, extra={"action": "inbox.take"})
        return read_on

    def _bounds(self, places: Sequence[Place]) -> dict[Place, Bounds]:
        ids = self._kafka.topic_ids({topic for topic, _ in places})
        return {
            place: Bounds(first, end, ids[place[0]])
            for place, (first, end) in self._kafka.bounds(places).items()
            if place[0] in ids
        }

    def _all_bounds(self, places: Sequence[Place]) -> dict[Place, Bounds]:
        """Of each of these: whoever is left out where a topic is new is later taken for one that was added."""
        found = self._bounds(places)
        if silent := sorted(set(places) - found.keys()):
            raise Unreachable(
                f"Kafka says nothing of {silent[0][0]}/{silent[0][1]}, and all of a new topic begins at once",
                remedy="see that it has a leader; it is tried again",
            )
        return found

    def _from_database(self, waiting: Mapping[Place, bool], bounds: Mapping[Place, Bounds]) -> list[Position]:
        known = self._known(waiting)
        wanted = []
        for place, fresh in waiting.items():
            position = known.get(place)
            if place not in bounds:
                continue
            if position is not None and position.halted is not None:
                self._note(place, position.halted)
                continue
            others = position is not None and position.owner not in (None, self._config.owner)
            if not fresh and others and position is not None and position.lease_alive:
                self._note(place, f"{place[0]}/{place[1]} is held by {position.owner}")
                continue
            # Where there is no position although the topic is known, the partition was added later.
            start = start_of(bounds[place], known_topic=True, at_end=False)
            wanted.append(Wanted(*place, bounds[place].topic_id, start))
        if not wanted:
            return []
        before = [
            known[each.topic, each.partition] for each in wanted if (each.topic, each.partition) in known
        ]
        gone = {
            each.owner
            for each in before
            if each.owner and (each.owner_kind is OwnerKind.SERVICE or not each.lease_alive)
        }
        if gone := gone - {self._config.owner}:
            # They did not give it up themselves: killed, cut off or stopped. What they have begun can only be in
            # the way; where one of them still lives, it finds its connection lost and asks what was committed.
            self._store.end_sessions(gone)
        return self._store.take(self._config.owner, OwnerKind.SERVICE, self._config.lease_s, wanted)

    def _known(self, waiting: Mapping[Place, bool]) -> dict[Place, Position]:
        """Our positions; those of a topic that is new to this consumer are made first, for all of its partitions."""
        known = self._store.positions()
        new = {topic for topic, _ in waiting} - {topic for topic, _ in known}
        if not new:
            return known
        at_end = self._config.start == "end"
        self._store.found_topic(
            [
                Wanted(*place, bounds.topic_id, start_of(bounds, known_topic=False, at_end=at_end))
                for place, bounds in self._all_bounds(self._kafka.partitions(new)).items()
            ]
        )
        return self._store.positions()

    def _from_kafka(self, bounds: Mapping[Place, Bounds]) -> list[Position]:
        at_end = self._config.start == "end"
        # All of a topic's partitions: whether it is known is not for those alone to say that are given now.
        everywhere = {*self._kafka.partitions({topic for topic, _ in bounds}), *bounds}
        committed = self._kafka.committed(everywhere)
        known = {topic for (topic, _), offset in committed.items() if offset is not None}
        new = self._all_bounds([place for place in everywhere if place[0] not in known])
        starts = {
            place: start_of(found, known_topic=place[0] in known, at_end=at_end)
            for place, found in {**new, **bounds}.items()
            if committed.get(place) is None
        }
        # Written down at once, for all partitions of a new topic: a crash before the first message must not begin at a
        # later end, nor another process take its own for ones that were added.
        self._kafka.commit(starts, wait=False)
        return [
            Position(
                topic=place[0],
                partition=place[1],
                next_offset=starts[place] if offset is None else offset,
                epoch=0,
                owner=self._config.owner,
                owner_kind=OwnerKind.SERVICE,
                leader_epoch=None,
                topic_id=bounds[place].topic_id,
            )
            for place, offset in committed.items()
            if place in bounds
        ]

    def _accepted(self, position: Position, bounds: Bounds) -> bool:
        place = position.place
        if position.refused:
            self._note(place, f"{place[0]}/{place[1]} is held by {position.owner} ({position.owner_kind})")
            return False
        reason = gap(position, bounds)
        if reason is not None and position.next_offset > bounds.end and position.topic_id == bounds.topic_id:
            since = self._past_end.setdefault(place, time.monotonic())
            if time.monotonic() - since < _PAST_END_S:
                self.troubles[place] = reason
                return False
        if reason is not None:
            log.critical("%s", reason, extra={"action": "inbox.halt"})
            self._note(place, reason)
            self._halt(place, position.epoch, reason)
            return False
        self._forget([place])
        self._book.take(position)
        return True

    def _note(self, place: Place, reason: str) -> None:
        if self.troubles.get(place) != reason:
            log.warning("%s", reason, extra={"action": "inbox.wait"})
        self.troubles[place] = reason
        self._book.asked(place)

    def _forget(self, places: Sequence[Place]) -> None:
        for place in places:
            self.troubles.pop(place, None)
            self._past_end.pop(place, None)
