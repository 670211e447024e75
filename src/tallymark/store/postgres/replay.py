"""A consumer's tables, as replay writes them: kept once by their ids, queued behind their keys; positions do not move."""

from __future__ import annotations

import os
import socket
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from tallymark import __version__
from tallymark.apply.incoming import origin_of
from tallymark.errors import Problem
from tallymark.inbox.config import new_owner
from tallymark.inbox.identity import is_named, key_hash
from tallymark.inbox.ports import Instance, Place, Position, Queued, Received, Wanted
from tallymark.inbox.screening import Screen
from tallymark.lifecycle import Role
from tallymark.store.postgres.connection import Connection
from tallymark.store.postgres.inboxoperators import InboxActions
from tallymark.store.postgres.inboxstore import PostgresInboxStore
from tallymark.store.postgres.queue import STEP
from tallymark.store.postgres.session import Session
from tallymark.store.queries import load

BEHIND = "replayed behind a later message of its key: `tallymark failed retry` puts it in its place, or says why not"
CAME = "it came by itself meanwhile"
REUSED = "its id was used before, for other contents"
_BUSY = "its key is being worked on: try again"
_NO_ROOM = "there is no room left between the messages that wait around it: let those be applied first"
FORGOTTEN = (
    "cannot know: its id says nothing of time, and what was kept under such ids in its part of the log has been dropped; "
    "it may have been applied before"
)
_LEASE_S = 10.0
_SKEW = timedelta(days=1)


@dataclass(frozen=True, slots=True)
class Redriven:
    """What one transaction came to."""

    read: int = 0
    # Kept now, and queued for the consumer's workers.
    kept: int = 0
    # Had been kept before: they change nothing.
    repeated: int = 0
    # Kept, and dead letters: a later message of their key was there before.
    behind: int = 0
    # Dead letters: an id used for other contents, or one that is too old to know.
    quarantined: int = 0

    def __add__(self, other: Redriven) -> Redriven:
        return Redriven(
            self.read + other.read,
            self.kept + other.kept,
            self.repeated + other.repeated,
            self.behind + other.behind,
            self.quarantined + other.quarantined,
        )


class ReplayStore(InboxActions):
    """One consumer that is replayed into."""

    def __init__(self, url: str, consumer: str, *, schema: str = "tallymark") -> None:
        super().__init__(url, schema=schema, file="inboxoperators.sql")
        self.consumer = consumer
        self._inbox = PostgresInboxStore(
            url, consumer, schema=schema, application=f"tallymark replay, {consumer}"[:63]
        )
        self._looks = Session(
            url, schema=schema, file="replay.sql", application="tallymark replay", role=Role.CONSUMER
        )
        self._queries = load("tallymark.store.postgres", "replay.sql", schema)

    def topics(self) -> tuple[str, ...] | None:
        """What the consumer reads; None where there is no such consumer yet."""
        row = self._looks.row("consumer", {"consumer": self.consumer})
        return None if row is None else tuple(row[0])

    def positions(self) -> dict[Place, Position]:
        return self._inbox.positions()

    def found(self, topics: Sequence[str], ends: Mapping[Place, int], topic_ids: Mapping[str, str]) -> None:
        """A new consumer: it will go on by itself where the replay ends."""
        owner = new_owner()
        here = socket.gethostname(), os.getpid()
        self._inbox.enlist(
            Instance(owner, self.consumer, tuple(topics), "deferred", __version__, *here), _LEASE_S
        )
        try:
            self._inbox.found_topic(
                [Wanted(*place, topic_ids[place[0]], end) for place, end in sorted(ends.items())]
            )
        finally:
            self._inbox.leave(owner)

    def redrive(self, messages: Sequence[Received], *, any_order: bool) -> Redriven:
        """Keep and queue these, in this order, in one transaction. What was kept before changes nothing."""
        if not messages:
            return Redriven()
        good, odd = self._screened(messages)
        with self._inbox.begin() as tx:
            tx.handed.execute(self._queries["close_gate"], {"consumer": self.consumer})
            kept = tx.keep(good)
            new = [good[index] for index in kept.new]
            forgotten = self._forgotten(tx.handed, new)
            new = [each for number, each in enumerate(new) if number not in forgotten]
            behind = set() if any_order else self._behind(tx.handed, new)
            late = [each for number, each in enumerate(new) if number in behind]
            due = [each for number, each in enumerate(new) if number not in behind]
            odd = [
                *odd,
                *((good[index], REUSED) for index in kept.reused),
                *((each, FORGOTTEN) for each in forgotten.values()),
            ]
            tx.quarantine([*odd, *((each, BEHIND) for each in late)])
            tx.enqueue([Queued(each, key_hash(each.topic, each.key, each.id)) for each in due])
        return Redriven(len(messages), len(due), len(kept.repeated), len(late), len(odd))

    def repair(
        self, messages: Sequence[Received], refused: Callable[[Connection], Mapping[uuid.UUID, str]]
    ) -> tuple[int, dict[uuid.UUID, str]]:
        """Keep these and queue each in its place among those of its key, by position, in one transaction.

        Nobody applies anything of these keys meanwhile: what `refused` names, looking then, is left out. Gives back how
        many were kept, and why for all that were not. None becomes a dead letter: nobody knows that it was ever lost.
        """
        keys = {each.id: key_hash(each.topic, each.key, each.id) for each in messages}
        with self._inbox.begin() as tx:
            locked = set(self._held(tx.handed, keys.values()))
            for key in sorted(locked):
                self._asked(tx.handed, "lock_key", key_hash=key)
            self._asked(tx.handed, "close_gate")
            why = dict(refused(tx.handed))
            for key in set(self._held(tx.handed, keys.values())) - locked:
                # Queued since: whoever has the key may wait for the gate, so it is not waited for.
                if not self._asked(tx.handed, "try_key", key_hash=key)[0][0]:
                    why.update({id_: _BUSY for id_, its in keys.items() if its == key})
            places = self._places(tx.handed, [m for m in messages if m.id not in why], keys)
            why.update({id_: _NO_ROOM for id_, seq in places.items() if seq is None})
            good, odd = self._screened([m for m in messages if m.id not in why])
            why.update({each.id: doubt for each, doubt in odd})
            kept = tx.keep(good)
            new = [good[index] for index in kept.new]
            why.update({good[index].id: REUSED for index in kept.reused})
            why.update({good[index].id: CAME for index in kept.repeated})
            tx.enqueue([Queued(each, keys[each.id]) for each in new if each.id not in places])
            for each in new:
                if each.id in places:
                    row = {
                        name: getattr(each, name) for name in ("source", "id", "topic", "partition", "offset")
                    }
                    self._asked(tx.handed, "put_between", key_hash=keys[each.id], seq=places[each.id], **row)
        return len(new), why

    def _held(self, connection: Connection, keys: Iterable[int]) -> list[int]:
        return [row[0] for row in self._asked(connection, "held_keys", keys=sorted(set(keys)))]

    def _places(
        self, connection: Connection, messages: Sequence[Received], keys: Mapping[uuid.UUID, int]
    ) -> dict[uuid.UUID, int | None]:
        """Where those belong that stand before queued ones of their key; None where there is no room left."""
        held = set(self._held(connection, keys.values()))
        gaps: dict[tuple[int, int | None, int], list[Received]] = {}
        for each in sorted(messages, key=lambda m: origin_of(m) or 0):
            if keys[each.id] in held:
                asked = {"key_hash": keys[each.id], "position": origin_of(each)}
                below, above = self._asked(connection, "neighbours", **asked)[0]
                if above is not None:
                    gaps.setdefault((keys[each.id], below, above), []).append(each)
        found: dict[uuid.UUID, int | None] = {}
        for (_, below, above), between in gaps.items():
            step = STEP if below is None else (above - below) // (len(between) + 1)
            for back, each in enumerate(reversed(between), start=1):
                found[each.id] = above - back * step if step else None
        return found

    def _asked(self, connection: Connection, name: str, **parameters: Any) -> list[tuple[Any, ...]]:
        cursor = connection.execute(self._queries[name], {"consumer": self.consumer, **parameters})
        return cursor.fetchall() if cursor.description else []

    def note(self, who: str, reason: str, details: dict[str, Any]) -> None:
        """Who replayed what, and why."""
        with self._action("pipeline.replay", who, reason) as (_, audit):
            audit(self.consumer, details)

    def close(self) -> None:
        self._inbox.close()
        self._looks.close()

    def _screened(
        self, messages: Sequence[Received]
    ) -> tuple[Sequence[Received], list[tuple[Received, str]]]:
        # Whatever scheme the handler has: here saved ids are what keeps a message once. Looked at each time: a long
        # replay goes on while retention does.
        return Screen(lambda _topic: True, *self._inbox.memory()).sort(messages)

    def _forgotten(self, connection: Any, new: Sequence[Received]) -> dict[int, Received]:
        """Those, by their number, of which nobody can tell whether they were kept before."""
        named = [number for number, each in enumerate(new) if is_named(each.id) and each.offset is not None]
        if not named:
            return {}
        asked = [new[number] for number in named]
        rows = self._asked(
            connection,
            "forgotten",
            topics=[each.topic for each in asked],
            partitions=[each.partition for each in asked],
            offsets=[each.offset for each in asked],
        )
        return {named[number - 1]: new[named[number - 1]] for (number,) in rows}

    def _behind(self, connection: Any, new: Sequence[Received]) -> set[int]:
        keyed = [
            number for number, each in enumerate(new) if each.key is not None and each.offset is not None
        ]
        if not keyed:
            return set()
        asked = [new[number] for number in keyed]
        # A message without a time of its own in its id may be of any age.
        first = min((0 if is_named(each.id) else each.id.int >> 80 for each in asked), default=0)
        since = max(first - int(_SKEW.total_seconds() * 1000), 0)
        rows = connection.execute(
            self._queries["behind"],
            {
                "consumer": self.consumer,
                "topics": [each.topic for each in asked],
                "partitions": [each.partition for each in asked],
                "offsets": [each.offset for each in asked],
                "positions": [origin_of(each) for each in asked],
                "keys": [each.key for each in asked],
                "ids": [each.id for each in asked],
                "sources": [each.source for each in asked],
                "from_id": uuid.UUID(int=since << 80),
            },
        ).fetchall()
        return {keyed[number - 1] for (number,) in rows}


def refuse_other_topic(position: Position, topic_id: str) -> None:
    """A topic that was made anew is another log: its offsets say nothing about what the consumer kept."""
    if position.topic_id not in ("", topic_id):
        raise Problem(
            f"{position.topic}/{position.partition}: the topic was deleted and made anew "
            f"(its id was {position.topic_id}, now {topic_id})",
            remedy="`tallymark inbox seek` starts in the new one",
        )
