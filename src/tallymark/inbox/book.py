"""The partitions that this process holds: epoch, how far was read, how far is committed. Shared by its threads.

A batch remembers the epochs under which it was read. Whoever works on it asks here first: a place that was given up,
or taken anew, in the meantime no longer has that epoch, and its messages are left out.
"""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace

from tallymark.inbox.ports import Place, Position


@dataclass(frozen=True, slots=True)
class Held:
    """One partition of ours."""

    epoch: int
    # What the database has, as far as we know: the next move starts here.
    committed: int
    # What was read from Kafka and handed over.
    read: int
    leader_epoch: int | None


class Book:
    """Which places are ours, under which epoch."""

    def __init__(self) -> None:
        self._held: dict[Place, Held] = {}
        # Assigned to us by Kafka, and not ours to read now: refused, halted, fenced, or the database was away. True
        # while nobody has yet asked the database for it since Kafka gave it to us.
        self._waiting: dict[Place, bool] = {}
        self._lock = threading.Lock()

    def assigned(self, places: Iterable[Place]) -> None:
        """Kafka gave us these; they wait until they are taken."""
        with self._lock:
            self._waiting.update(dict.fromkeys(places, True))

    def take(self, position: Position) -> None:
        """The database gave us this position."""
        with self._lock:
            self._waiting.pop(position.place, None)
            self._held[position.place] = Held(
                position.epoch, position.next_offset, position.next_offset, position.leader_epoch
            )

    def set_aside(self, places: Iterable[Place]) -> None:
        """No longer ours to write, though Kafka still assigns them to us."""
        with self._lock:
            for place in places:
                if self._held.pop(place, None) is not None:
                    self._waiting[place] = False

    def asked(self, place: Place) -> None:
        """The database was asked, and it is not ours to read: from now on only what is free is taken."""
        with self._lock:
            if place in self._waiting:
                self._waiting[place] = False

    def drop(self, places: Iterable[Place]) -> dict[Place, int]:
        """Kafka took these away; gives back the epochs that we held."""
        with self._lock:
            for place in places:
                self._waiting.pop(place, None)
            gone = {place: self._held.pop(place, None) for place in places}
        return {place: held.epoch for place, held in gone.items() if held is not None}

    def epochs(self) -> dict[Place, int]:
        with self._lock:
            return {place: held.epoch for place, held in self._held.items()}

    def held(self) -> dict[Place, Held]:
        with self._lock:
            return dict(self._held)

    def waiting(self) -> dict[Place, bool]:
        """What Kafka assigns to us and we do not hold; whether it was never asked for since."""
        with self._lock:
            return dict(self._waiting)

    def note_read(self, ends: Mapping[Place, int]) -> None:
        """Handed over up to here."""
        with self._lock:
            for place, end in ends.items():
                if (held := self._held.get(place)) is not None:
                    self._held[place] = replace(held, read=end)

    def note_committed(self, ends: Mapping[Place, int], epochs: Mapping[Place, int]) -> None:
        """The database has them, for as long as the epoch was the same."""
        with self._lock:
            for place, end in ends.items():
                held = self._held.get(place)
                if held is not None and held.epoch == epochs[place]:
                    self._held[place] = replace(held, committed=end)

    def ours(self, epochs: Mapping[Place, int]) -> Collection[Place]:
        """Those of these places that are still ours under the same epoch."""
        with self._lock:
            return {
                place
                for place, epoch in epochs.items()
                if (held := self._held.get(place)) is not None and held.epoch == epoch
            }
