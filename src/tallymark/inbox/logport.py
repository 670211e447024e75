"""What the inbox needs of Kafka, and what it is told while it polls. The database's side is ports.py."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple, Protocol

from tallymark.inbox.ports import Place, Received


class Polled(NamedTuple):
    """What one look at Kafka gave."""

    messages: Sequence[Received]
    # The offset that comes next, by place: behind its last message, or at its end, where markers and aborted
    # messages may lie in between.
    ends: Mapping[Place, int]
    # The leader's epoch of the last message, by place; left out where the end lies further on.
    leader_epochs: Mapping[Place, int]
    # Places whose position the log does not have, and what Kafka said.
    lost: Mapping[Place, str]
    # How many bytes of keys, values and headers.
    bytes: int
    # Places with something that cannot be read (a wrong checksum), where it stands and what Kafka said: never to be
    # passed over.
    unreadable: Mapping[Place, tuple[int, str]] = {}


class Assignment(Protocol):
    """What the inbox does when Kafka gives and takes partitions. Called while polling, in the polling thread."""

    def given(self, places: Sequence[Place]) -> Mapping[Place, tuple[int, int | None]]:
        """Take these; gives back offset and leader epoch for those to be read now."""

    def revoked(self, places: Sequence[Place]) -> None: ...

    def lost(self, places: Sequence[Place]) -> None: ...


class Log(Protocol):
    """Kafka, as a consumer in a group (or with fixed partitions) sees it."""

    def join(self, topics: Sequence[str], assignment: Assignment) -> None: ...

    def assign(self, places: Sequence[Place], assignment: Assignment) -> None: ...

    def poll(self, max_messages: int, timeout_s: float) -> Polled: ...

    def pause(self, places: Collection[Place]) -> None: ...

    def resume(self, places: Collection[Place]) -> None: ...

    def add(self, starts: Mapping[Place, tuple[int, int | None]]) -> None:
        """Begin to read, at these offsets, places that are assigned to us and stood still."""

    def bounds(self, places: Collection[Place]) -> dict[Place, tuple[int, int]]:
        """The log's first offset and its end (the last stable one), by place."""

    def topic_ids(self, topics: Collection[str]) -> dict[str, str]: ...

    def partitions(self, topics: Collection[str]) -> list[Place]: ...

    def committed(self, places: Collection[Place]) -> dict[Place, int | None]:
        """The group's own offsets in Kafka."""

    def commit(self, ends: Mapping[Place, int], *, wait: bool) -> None:
        """Kafka's own offsets follow ours: for lag tools, or where positions="kafka". With what it refused before."""

    def close(self) -> None: ...
