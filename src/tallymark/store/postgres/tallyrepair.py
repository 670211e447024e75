"""Takes what a consumer lacks from whoever can say what was sent: kept and queued, in order, each once."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from datetime import datetime
from functools import partial
from itertools import islice
from typing import Any

from tallymark.errors import AccessDenied, Problem, UsageError
from tallymark.inbox.identity import is_named, received, saved_id, saved_source
from tallymark.inbox.ports import Received
from tallymark.inbox.screening import AHEAD, Screen
from tallymark.lifecycle import MessageState, Role
from tallymark.message import CE_ID, CE_SOURCE, TM_ORIGIN, TM_POSITION, TM_RESEND, kafka_headers
from tallymark.store.postgres.connection import Connection, connect
from tallymark.store.postgres.migrations import require_schema
from tallymark.store.postgres.replay import CAME, FORGOTTEN, ReplayStore
from tallymark.store.postgres.tally import TallyConsumers
from tallymark.store.queries import load
from tallymark.tally.repairing import Repaired, Sent, SentSource
from tallymark.tally.resending import Standing, Wanted, refusal

_CHUNK = 1000
# More than was asked for: no reason of its own.
_NOT_NOW = "beyond the limit"
_NOWHERE = (
    "it was sent again, and nobody says where its original stood: begin before that with --since "
    "(--any-order where its handlers can take any)"
)
# It is left to Kafka, which brings the earlier ones of its key first.
_UNREAD = "not read yet"

# Which partition of so many a key belongs to.
Place = Callable[[bytes, int], int]
# By topic, partition and source: the highest position that was kept from the log.
Reached = dict[tuple[str, int, str], int]
# By the id that an inbox saves it under, which is another than its own where that is no UUIDv7; in order.
Lacking = dict[uuid.UUID, Sent]


class Repair:
    """One consumer of one database."""

    def __init__(self, url: str, consumer: str, *, place: Place, schema: str = "tallymark") -> None:
        self._url = url
        self._schema = schema
        self._consumer = consumer
        self._place = place
        self._inbox = TallyConsumers("", url, schema=schema)
        self._sql = load("tallymark.store.postgres", "resend.sql", schema)

    def run(
        self,
        source: SentSource,
        *,
        since: datetime | int | None,
        until: datetime | int | None,
        topics: Sequence[str],
        limit: int,
        any_order: bool,
        dry_run: bool,
        who: str,
        reason: str,
    ) -> Repaired:
        """Ask, compare, and take what is lacking, a thousand at a time."""
        views = self._inbox.views(unfinished=False)
        view = next((each for each in views if each.name == self._consumer), None)
        if view is None:
            raise UsageError(
                f"there is no consumer {self._consumer} in this database",
                remedy="`tallymark inbox status` lists them",
            )
        partitions = {topic: sum(place[0] == topic for place in view.next_offsets) for topic in view.topics}
        done = Repaired()
        store = ReplayStore(self._url, self._consumer, schema=self._schema)
        try:
            # Named, because the producer's side need not know who reads.
            wanted = list(topics) or sorted(view.topics)
            # Where all is asked for, the earlier ones of a key are taken with it, in order.
            reached = None if since is None or any_order else self._reached(wanted)
            sent = source.sent_to(self._consumer, since=since, until=until, topics=wanted)
            for chunk in _chunks(sent):
                done.asked += len(chunk)
                lacking = self._lacking(chunk)
                for id_, doubt in self._doubts(lacking).items():
                    each = lacking.pop(id_)
                    if doubt is AHEAD:
                        done.lacking += 1
                        done.refused[str(each.id)] = doubt
                    else:
                        done.forgotten += 1
                done.lacking += len(lacking)
                if not lacking:
                    continue
                room = limit - len(done.missing)
                unread = self._unread(lacking, partitions, reached)
                refused = partial(
                    self._refused, lacking=lacking, unread=unread, any_order=any_order, room=room
                )
                if dry_run:
                    with self._open() as connection:
                        why = refused(connection)
                else:
                    rows = [self._received(each, partitions) for each in lacking.values()]
                    kept, why = store.repair(rows, refused)
                    done.kept += kept
                done.unread += sum(text is _UNREAD for text in why.values())
                done.refused.update(
                    (str(lacking[id_].id), text)
                    for id_, text in why.items()
                    if text not in (_NOT_NOW, _UNREAD, CAME)
                )
                done.missing += [str(each.id) for id_, each in lacking.items() if id_ not in why]
                if len(done.missing) >= limit:
                    break
            if done.kept:
                store.note(who, reason, {"repaired": done.kept, "ids": done.missing[:_CHUNK]})
        finally:
            store.close()
        return done

    def _lacking(self, chunk: Sequence[Sent]) -> Lacking:
        has = self._inbox.kept(self._consumer, [str(each.id) for each in chunk])
        # A resend has the id of its original: one of them is enough, and it stands where the first one does.
        found: dict[uuid.UUID, Sent] = {}
        for each in chunk:
            if str(each.id) not in has:
                found.setdefault(saved_id(str(each.id)), each)
        return dict(sorted(found.items(), key=lambda item: _stands_at(item[1]) or item[1].position))

    def _doubts(self, lacking: Lacking) -> dict[uuid.UUID, str]:
        """Of which of these nobody can say whether they were applied long ago, and why.

        Asked after `_lacking`: what retention has dropped by then, it has said before it did.
        """
        if not lacking:
            return {}
        with self._open() as connection:
            row = connection.execute(self._sql["remembered_here"], {"consumer": self._consumer}).fetchone()
        if row is None:
            raise Problem("this inbox has no identity", remedy="run `tallymark init`")
        kept_from, pruned, now = row
        screen = Screen(lambda _topic: True, kept_from, now)
        found = {}
        for id_, each in lacking.items():
            doubt = FORGOTTEN if is_named(id_) and each.topic in pruned else screen.doubt(id_)
            if doubt is not None:
                found[id_] = doubt
        return found

    def _reached(self, topics: Sequence[str]) -> Reached:
        with self._open() as connection:
            asked = {"consumer": self._consumer, "topics": topics}
            rows = connection.execute(self._sql["reached_here"], asked).fetchall()
        return {(topic, partition, source): position for topic, partition, source, position in rows}

    def _unread(
        self, lacking: Lacking, partitions: Mapping[str, int], reached: Reached | None
    ) -> set[uuid.UUID]:
        """Those that the consumer has yet to come to, and earlier ones of their keys perhaps: nothing later is kept."""
        if reached is None:
            return set()
        found = set()
        for id_, each in lacking.items():
            place = (each.topic, self._partition(each, partitions), _source(each))
            if each.key is not None and (_stands_at(each) or each.position) >= reached.get(place, 0):
                found.add(id_)
        return found

    @contextmanager
    def _open(self) -> Iterator[Connection]:
        with connect(self._url, application="tallymark tally repair") as connection:
            require_schema(connection, self._schema, Role.CONSUMER)
            yield connection

    def _refused(
        self,
        connection: Connection,
        *,
        lacking: Lacking,
        unread: Set[uuid.UUID],
        any_order: bool,
        room: int,
    ) -> dict[uuid.UUID, str]:
        """Why some of these would do harm; and that there is no room for the last of them."""
        found = {}
        ids, asked = list(lacking), lacking.values()
        parameters = {
            "consumer": self._consumer,
            "ids": ids,
            "topics": [each.topic for each in asked],
            "keys": [each.key for each in asked],
            "positions": [_stands_at(each) for each in asked],
        }
        for at, *standing in connection.execute(self._sql["standing_here"], parameters).fetchall():
            id_, stands = ids[at], Standing(self._consumer, *standing)
            wanted = Wanted(str(id_), "", self._consumer, None)
            why = refusal(wanted, MessageState.SENT, None, [stands], any_order=any_order)
            if why is None and not any_order and _stands_at(lacking[id_]) is None:
                why = _NOWHERE
            if why is None and id_ in unread and stands.minds:
                why = _UNREAD
            if why is not None:
                found[id_] = why
        allowed = [id_ for id_ in ids if id_ not in found]
        return found | dict.fromkeys(allowed[room:], _NOT_NOW)

    def _received(self, sent: Sent, partitions: Mapping[str, int]) -> Received:
        # Not shown: a value that is said to be there, or a tombstone that would have to come with its headers.
        if sent.value is None and (sent.value_bytes is not None or not sent.headers):
            raise AccessDenied(
                "the token may not see payloads, and without them nothing can be repaired",
                remedy="use an operator's token",
            )
        headers: list[tuple[str, Any]] = [
            *kafka_headers(json.dumps(dict(sent.headers))),
            (CE_ID, str(sent.id).encode()),
            (TM_POSITION, str(sent.position).encode()),
        ]
        partition = self._partition(sent, partitions)
        made = received(sent.topic, partition, 0, sent.key, sent.value, headers, -1)
        return made._replace(offset=None)

    def _partition(self, sent: Sent, partitions: Mapping[str, int]) -> int:
        if sent.partition is not None:
            return sent.partition
        count = partitions.get(sent.topic, 0)
        return self._place(sent.key, count) if sent.key is not None and count else 0


def _source(sent: Sent) -> str:
    """As an inbox saves it."""
    named = sent.headers.get(CE_SOURCE)
    return saved_source(named.encode()) if isinstance(named, str) else f"kafka:{sent.topic}"


def _stands_at(sent: Sent) -> int | None:
    """Where it stands in the order of the outbox; None for a resend that does not say where its original stood."""
    origin = sent.headers.get(TM_ORIGIN)
    if isinstance(origin, str) and origin.isdigit():
        return min(int(origin), sent.position)
    return None if TM_RESEND in sent.headers else sent.position


def _chunks(sent: Iterable[Sent]) -> Iterator[list[Sent]]:
    rows = iter(sent)
    while chunk := list(islice(rows, _CHUNK)):
        yield chunk
