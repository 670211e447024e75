"""The inbox's port, on PostgreSQL: who runs, who owns which position at which epoch, and the transactions between.

Each method but `begin` is one statement and one commit. `begin` has a session of its own, which handlers see.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import datetime
from typing import Any

import psycopg

from tallymark.errors import AccessDenied, UsageError
from tallymark.inbox.ports import InboxTx, Instance, Place, Position, Standing, Wanted
from tallymark.lifecycle import OwnerKind, Role
from tallymark.store.postgres.connection import Connection, commit, connect, explain
from tallymark.store.postgres.handed import IDLE_LIMIT_S, Hands, PsycopgHands
from tallymark.store.postgres.inboxtx import PostgresInboxTx
from tallymark.store.postgres.migrations import INBOX_AHEAD, require_schema
from tallymark.store.postgres.prompt import connect_promptly
from tallymark.store.postgres.session import Session
from tallymark.store.queries import load

log = logging.getLogger("tallymark.inbox")


def application_of(owner: str) -> str:
    """How a process's sessions are known in the database: by its token, for the whole name may not fit."""
    return f"tallymark inbox {owner.rpartition(':')[2]}"


class PostgresInboxStore:
    """One consumer's tables. One per thread; `abort_other` alone may be called from elsewhere.

    `tx` is what handlers get: "psycopg", "sqlalchemy" or "django" (then `alias` names Django's database). `prepared`
    must be off behind a pooler in transaction mode that does not carry prepared statements. `prompt` is for a thread that
    must not wait for a database that stands still: all but enlisting and transactions raises after seconds.
    """

    def __init__(
        self,
        url: str,
        consumer: str,
        *,
        schema: str = "tallymark",
        tx: str = "psycopg",
        alias: str = "default",
        prepared: bool = True,
        prompt: bool = False,
        idle_limit_s: float = IDLE_LIMIT_S,
        application: str = "tallymark inbox",
        dead_letter_topic: str | None = None,
    ) -> None:
        self._url = url
        self._consumer = consumer
        self._schema = schema
        self._application = application
        self._connect: Callable[..., Connection] = connect_promptly if prompt else connect
        self._db = Session(
            url,
            schema=schema,
            file="inbox.sql",
            application=application,
            role=Role.CONSUMER,
            connect=self._connect,
        )
        self._hands: Hands
        if tx == "django":
            from tallymark.store.postgres.handeddjango import DjangoHands

            self._hands = DjangoHands(
                url, schema=schema, application=application, alias=alias, idle_limit_s=idle_limit_s
            )
        else:
            self._hands = _kind_of_hands(tx)(
                url,
                schema=schema,
                application=application,
                prepare_threshold=5 if prepared else None,
                idle_limit_s=idle_limit_s,
            )
        self._dead_letter_topic = dead_letter_topic
        self._lease_s = 0.0

    def enlist(self, instance: Instance, lease_s: float) -> None:
        self._lease_s = lease_s
        queries = load("tallymark.store.postgres", "inbox.sql", self._schema)
        topics = sorted(instance.topics)
        parameters = {
            "consumer": instance.consumer,
            "owner": instance.owner,
            "topics": topics,
            "mode": instance.mode,
            "unordered": None if instance.unordered is None else sorted(instance.unordered),
            "versioned": None if instance.versioned is None else sorted(instance.versioned),
            "positions": instance.positions,
            "version": instance.version,
            "host": instance.host,
            "pid": instance.pid,
            "lease_s": lease_s,
        }
        with connect(self._url, application=self._application, autocommit=False) as connection:
            try:
                require_schema(connection, self._schema, Role.CONSUMER)
                if self._dead_letter_topic is not None:
                    require_schema(connection, self._schema, Role.PRODUCER)  # they leave through the outbox
                connection.execute(queries["make_ahead"], {"ahead": INBOX_AHEAD})
                commit(connection, connection.commit, self._url)
                connection.execute(queries["enlist_consumer"], parameters)
                other = connection.execute(queries["other_topics"], parameters).fetchone()
                if other is not None:
                    raise UsageError(
                        f"consumer {instance.consumer} reads {', '.join(other[1])} (in {other[0]}, which is running), "
                        f"not {', '.join(topics)}",
                        remedy="give this one a name of its own, or stop the others first",
                    )
                connection.execute(queries["enlist_instance"], parameters)
                connection.execute(queries["forget_instances"])
                commit(connection, connection.commit, self._url)
            except psycopg.Error as error:
                raise explain(error, self._url) from error

    def heartbeat(self, owner: str, lease_s: float, epochs: Mapping[Place, int]) -> Standing:
        self._lease_s = lease_s
        ours = {**_places(epochs), "epochs": list(epochs.values())}
        rows = self._db.rows("heartbeat", self._named(owner=owner, lease_s=lease_s, **ours))
        return Standing(
            paused=bool(rows and rows[0][0]),
            epochs={(topic, partition): epoch for _, _, topic, partition, epoch in rows if topic is not None},
            known=bool(rows and rows[0][1]),
        )

    def leave(self, owner: str) -> None:
        self._db.rows("leave", self._named(owner=owner))

    def kept_from(self) -> datetime:
        return self.memory()[0]

    def memory(self) -> tuple[datetime, datetime]:
        kept_from, now = self._db.row("memory")
        return kept_from, now

    def positions(self) -> dict[Place, Position]:
        found = (_position(row) for row in self._db.rows("positions", self._named()))
        return {position.place: position for position in found}

    def found_topic(self, wanted: Sequence[Wanted]) -> None:
        parameters = self._named(**_wanted(wanted))
        new = [row[0] for row in self._db.rows("unknown_topics", parameters)]
        if not new:
            return
        queries = load("tallymark.store.postgres", "inbox.sql", self._schema)
        with self._connect(self._url, application=self._application, autocommit=False) as connection:
            try:
                for topic in new:
                    connection.execute(queries["lock_topic"], self._named(topic=topic))
                connection.execute(queries["found_topic"], parameters)
                # Not left to the block's end: what is raised there is past this try, and ends whoever polls.
                commit(connection, connection.commit, self._url)
            except psycopg.Error as error:
                raise explain(error, self._url) from error

    def take(self, owner: str, kind: OwnerKind, lease_s: float, wanted: Sequence[Wanted]) -> list[Position]:
        if not wanted:
            return []
        self._lease_s = lease_s
        parameters = self._named(owner=owner, kind=str(kind), lease_s=lease_s, **_wanted(wanted))
        taken = {p.place: p for p in map(_position, self._db.rows("take", parameters))}
        refused = {(w.topic, w.partition) for w in wanted} - taken.keys()
        if refused:
            standing = self.positions()
            taken |= {place: replace(standing[place], refused=True) for place in refused if place in standing}
        return [taken[w.topic, w.partition] for w in wanted if (w.topic, w.partition) in taken]

    def end_sessions(self, owners: Collection[str]) -> None:
        try:
            self._db.rows("end_sessions", {"applications": [f"{application_of(each)},%" for each in owners]})
        except (
            AccessDenied
        ) as error:  # other services may have roles of their own; then their time-outs end them
            log.warning("may not end sessions of %s: %s", owners, error, extra={"action": "inbox.take"})

    def end_lapsed(self, owner: str) -> int:
        try:
            return int(self._db.row("end_lapsed", self._named(owner=owner))[0])
        except AccessDenied as error:
            log.warning("may not end sessions of those gone: %s", error, extra={"action": "inbox.pulse"})
            return 0

    def release(self, owner: str, epochs: Mapping[Place, int]) -> None:
        if epochs:
            self._db.rows(
                "release", self._named(owner=owner, **_places(epochs), epochs=list(epochs.values()))
            )

    def halt(self, place: Place, epoch: int, reason: str) -> None:
        self._db.rows("halt", self._named(topic=place[0], partition=place[1], epoch=epoch, reason=reason))

    def count_fenced(self, places: Collection[Place]) -> None:
        if places:
            self._db.rows("count_fenced", self._named(**_places(places)))

    @contextmanager
    def begin(self) -> Iterator[InboxTx]:
        with self._hands.transaction() as connection:
            yield PostgresInboxTx(
                connection,
                self._hands,
                url=self._url,
                schema=self._schema,
                consumer=self._consumer,
                lease_s=self._lease_s,
                dead_letter_topic=self._dead_letter_topic,
            )

    def abort_other(self) -> None:
        self._hands.abort()

    def close(self) -> None:
        self._db.close()
        self._hands.close()

    def _named(self, **parameters: Any) -> dict[str, Any]:
        return {"consumer": self._consumer, **parameters}


def _kind_of_hands(tx: str) -> type[PsycopgHands]:
    if tx == "psycopg":
        return PsycopgHands
    if tx == "sqlalchemy":
        from tallymark.store.postgres.handedalchemy import AlchemyHands

        return AlchemyHands
    raise UsageError(f"tx={tx!r} is not known", remedy='choose "psycopg", "sqlalchemy" or "django"')


def _places(places: Collection[Place]) -> dict[str, Any]:
    return {"topics": [topic for topic, _ in places], "partitions": [partition for _, partition in places]}


def _wanted(wanted: Sequence[Wanted]) -> dict[str, Any]:
    return {
        "topics": [w.topic for w in wanted],
        "partitions": [w.partition for w in wanted],
        "starts": [w.start for w in wanted],
        "topic_ids": [w.topic_id for w in wanted],
    }


def _position(row: Sequence[Any]) -> Position:
    topic, partition, next_offset, epoch, owner, kind, leader_epoch, topic_id, halted, logged_at, alive = row
    return Position(
        topic=topic,
        partition=partition,
        next_offset=next_offset,
        epoch=epoch,
        owner=owner,
        owner_kind=None if kind is None else OwnerKind(kind),
        leader_epoch=leader_epoch,
        topic_id=topic_id,
        halted=halted,
        logged_at=logged_at,
        lease_alive=alive,
    )
