"""What operators do with messages that failed at an inbox: list, show, retry, discard. Every change is audited.

Both changes lock the message's key as a worker does, so that they never race one. A message that left the queue (its
key went on without it) is put back only where nothing later of its key was applied, and then in its place (pitfall 18).
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

import psycopg

from tallymark.errors import UsageError
from tallymark.inbox.identity import key_hash as hash_of_key
from tallymark.inbox.identity import named_id
from tallymark.lifecycle import DeadState
from tallymark.store.postgres.connection import Connection
from tallymark.store.postgres.inboxoperators import InboxActions
from tallymark.store.postgres.queue import STEP
from tallymark.store.queries import load

# Of a message that was set apart, and read again since an operator sought back: there is nothing to try, and its dead
# letter says so from now on.
READ_AGAIN = "it was read again since, and applied: nothing is left to do, and its dead letter is closed"

# Producers' clocks may differ: how much older than an earlier message a later one's id may claim to be.
_SKEW = timedelta(days=1)
_ALL = 1_000_000


@dataclass(frozen=True, slots=True)
class FailedMessage:
    """A dead letter, or a message that is being tried again (then it has no number, and a time)."""

    number: int | None
    consumer: str
    id: uuid.UUID
    named: str | None
    source: str
    topic: str
    partition: int
    offset: int | None
    key: bytes | None
    state: DeadState
    reason: str | None
    attempts: int
    since: datetime
    due_at: datetime | None
    key_hash: int | None
    # Its place in the queue; None where its key goes on without it.
    seq: int | None
    behind: int

    @property
    def name(self) -> str:
        return self.named or str(self.id)


@dataclass(frozen=True, slots=True)
class Change:
    """What a retry or a discard did: names that changed, and why others did not."""

    changed: list[str] = field(default_factory=list)
    refused: dict[str, str] = field(default_factory=dict)


class InboxFailed(InboxActions):
    """Messages that failed, of all consumers of a database."""

    # Whether one call is one transaction: for a few messages, of which all or nothing is promised.
    _together = False

    def __init__(self, url: str, *, schema: str = "tallymark") -> None:
        super().__init__(url, schema=schema, file="inboxfailed.sql")
        self._lock_key = load("tallymark.store.postgres", "queue.sql", schema)["lock_key"]

    def messages(
        self,
        *,
        consumer: str | None = None,
        states: Sequence[DeadState] = (DeadState.DEAD, DeadState.RETRYING),
        topic: str | None = None,
        ids: Sequence[str] | None = None,
        limit: int = 100,
    ) -> list[FailedMessage]:
        """The oldest first. `ids` are the messages' ids, or a producer's own names for them."""
        with self._open() as connection:
            return self._found(connection, consumer, states, topic, ids, limit)

    def show(self, id: str, *, consumer: str | None = None) -> list[dict[str, Any]]:
        """Everything that is known of a message that failed; one entry per consumer and place in the log."""
        with self._open() as connection, connection.cursor(row_factory=psycopg.rows.dict_row) as cursor:
            parameters = {"id": id, "consumer": consumer}
            dead = cursor.execute(self._sql["one"], parameters).fetchall()
            return dead or cursor.execute(self._sql["one_queued"], parameters).fetchall()

    def retry(
        self,
        *,
        who: str,
        reason: str = "",
        ids: Sequence[str] | None = None,
        consumer: str | None = None,
        topic: str | None = None,
        any_order: bool = False,
        never_applied: bool = False,
    ) -> Change:
        """Try again, at once and with all attempts: these ids, or all that failed of a consumer or a topic.

        `never_applied` is the caller's word for what nobody can know, of ids that are older than the saved ones.
        """

        def act(connection: Connection, message: FailedMessage) -> str | None:
            return self._retry(connection, message, any_order=any_order, never_applied=never_applied)

        return self._change("failed.retry", act, who, reason, ids, consumer, topic)

    def discard(
        self,
        *,
        who: str,
        reason: str,
        ids: Sequence[str] | None = None,
        consumer: str | None = None,
        topic: str | None = None,
    ) -> Change:
        """Give up for good; the key's later messages go on."""
        if not reason:
            raise UsageError("a message is discarded with a reason", remedy="say why with --reason")
        return self._change("failed.discard", self._discard, who, reason, ids, consumer, topic)

    def _change(
        self,
        action: str,
        act: Callable[[Connection, FailedMessage], str | None],
        who: str,
        reason: str,
        ids: Sequence[str] | None,
        consumer: str | None,
        topic: str | None,
    ) -> Change:
        """One transaction each: nobody waits for the others' keys, and what was done stays done. Or all in one."""
        change = Change()
        with self._open() as connection:
            states = (DeadState.DEAD, DeadState.RETRYING)
            found = self._found(connection, consumer, states, topic, ids, _ALL)
        # Within a key by place in the log.
        ordered = sorted(found, key=_order)
        for messages in [ordered] if self._together and ordered else [[each] for each in ordered]:
            with self._action(action, who, reason) as (connection, audit):
                for message in messages:
                    refused = act(connection, message)
                    if refused in (None, READ_AGAIN):
                        place = {"consumer": message.consumer, **_place(message)}
                        audit(message.name, {"at": "inbox", **place})
                    if refused is None:
                        change.changed.append(message.name)
                    else:
                        change.refused[message.name] = refused
        return change

    def _retry(
        self, connection: Connection, message: FailedMessage, *, any_order: bool, never_applied: bool
    ) -> str | None:
        place = self._locked(connection, message)
        if place is None:
            return "it is no longer failed: someone was quicker"
        if place["seq"] is None:
            return self._put_back(
                connection, message, place, any_order=any_order, never_applied=never_applied
            )
        if self._one(connection, "ready", place) is None:
            return "it waits for a worker already"
        if place["number"] is not None:
            self._mark(connection, DeadState.RETRYING, place)
        return None

    def _put_back(
        self,
        connection: Connection,
        message: FailedMessage,
        place: dict[str, Any],
        *,
        any_order: bool,
        never_applied: bool,
    ) -> str | None:
        """One that left the queue: refused with the reason, or back in its place among those of its key."""
        self._one(connection, "close_gate", place)
        kept = self._one(connection, "kept", place)
        if kept is not None and not kept[0]:
            return "its id was used for another message, which was kept: the two cannot be told apart"
        if kept is not None and (found := self._one(connection, "read_again", place)) is not None:
            return self._joined(connection, place, *found)
        if not any_order and message.key is not None:
            since = max((message.id.int >> 80) - int(_SKEW.total_seconds() * 1000), 0)
            from_id = uuid.UUID(int=since << 80)
            later = self._one(connection, "later_applied", {**place, "from_id": from_id})
            if later is not None and later[0]:
                return (
                    "a later message of its key was applied: applying it now could overwrite newer state "
                    "(--any-order where the handler can take that)"
                )
        below, above = self._one(connection, "neighbours", place) or (None, None)
        if above is not None:
            place["seq"] = above - STEP if below is None else (below + above) // 2
            if place["seq"] == below:
                return "there is no room left between the messages that wait around it: retry those first"
        if kept is None and (refused := self._keep(connection, message, place, never_applied=never_applied)):
            return refused
        put = self._one(connection, "put_back", place)
        self._mark(connection, DeadState.RETRYING, {**place, "seq": put[0] if put else None})
        return None

    def _joined(
        self, connection: Connection, place: dict[str, Any], key_hash: int | None, seq: int | None
    ) -> str | None:
        """One that was kept as usual after it had been set apart: tried where it stands, or done."""
        if seq is None:
            self._mark(connection, DeadState.APPLIED, place)
            return READ_AGAIN
        place.update(key_hash=key_hash, seq=seq)
        self._one(connection, "ready", place)
        self._mark(connection, DeadState.RETRYING, place)
        return None

    def _keep(
        self, connection: Connection, message: FailedMessage, place: dict[str, Any], *, never_applied: bool
    ) -> str | None:
        """Into the inbox; under its name, where there is no place for its id and somebody answers for it."""
        try:
            with connection.transaction():
                connection.execute(self._sql["keep"], place)
        except psycopg.errors.CheckViolation:
            if not never_applied:
                return (
                    "the saved ids of its time are gone, or its id is from the future: it cannot be kept, for nobody "
                    "knows whether it was applied (--never-applied where you do)"
                )
        else:
            return None
        named = {**place, "id": named_id(message.name.encode()), "name": message.name}
        try:
            with connection.transaction():
                connection.execute(self._sql["give_name"], named)
                connection.execute(self._sql["keep"], place)
        except psycopg.errors.UniqueViolation:
            return "it was kept under its name before"
        return None

    def _discard(self, connection: Connection, message: FailedMessage) -> str | None:
        place = self._locked(connection, message)
        if place is None:
            return "it is no longer failed: someone was quicker"
        if place["number"] is None:
            connection.execute(self._sql["bury_discarded"], place)
        if place["seq"] is None:
            return self._discard_apart(connection, message, place)
        if self._one(connection, "remove", place) is None:
            return "it waits for a worker: it was put back, and has not failed again"
        if place["number"] is not None:
            self._mark(connection, DeadState.DISCARDED, {**place, "seq": None})
        return None

    def _discard_apart(
        self, connection: Connection, message: FailedMessage, place: dict[str, Any]
    ) -> str | None:
        """One without a place in the queue; unless it was kept since, and has one now, or was applied."""
        if message.key_hash is not None:
            # It has been in the queue's hands, so it was kept: read again, it is known. Nobody need wait at the gate.
            self._mark(connection, DeadState.DISCARDED, place)
            return None
        self._one(connection, "close_gate", place)
        kept = self._one(connection, "kept", place)
        if kept is not None and kept[0] and (found := self._one(connection, "read_again", place)) is not None:
            key_hash, seq = found
            if seq is None:
                self._mark(connection, DeadState.APPLIED, place)
                return READ_AGAIN
            place["key_hash"] = key_hash
            connection.execute(self._sql["take_out"], {**place, "seq": seq})
        self._mark(connection, DeadState.DISCARDED, place)
        return None

    def _locked(self, connection: Connection, message: FailedMessage) -> dict[str, Any] | None:
        """Lock its key, then read again where it stands; None where it is not failed any more."""
        key = message.key_hash
        keys: Sequence[int | None] = [key]
        if key is None:  # never kept, so nobody has worked out its key yet
            key = hash_of_key(message.topic, message.key, message.id)
            # Kept since, it stands alone where its handler takes any order. In rising order, as others lock several.
            keys = sorted({key, hash_of_key(message.topic, None, message.id)})
        place = {"consumer": message.consumer, "key_hash": key, "seq": message.seq, "number": message.number}
        for each in keys:
            connection.execute(self._lock_key, {**place, "key_hash": each})
        place["keys"] = keys
        if message.number is None and (died := self._one(connection, "died_meanwhile", _name(message))):
            place["number"] = died[0]
        if place["number"] is not None:
            row = self._one(connection, "reread_dead", place)
            if row is None or row[0] not in (DeadState.DEAD, DeadState.RETRYING):
                return None
            place["seq"] = row[2]
        return place

    def _mark(self, connection: Connection, state: DeadState, place: dict[str, Any]) -> None:
        connection.execute(self._sql["mark"], {**place, "state": str(state)})

    def _found(
        self,
        connection: Connection,
        consumer: str | None,
        states: Sequence[DeadState],
        topic: str | None,
        ids: Sequence[str] | None,
        limit: int,
    ) -> list[FailedMessage]:
        parameters = {
            "consumer": consumer,
            "states": [str(state) for state in states],
            "topic": topic,
            "ids": None if ids is None else list(ids),
            "limit": limit,
        }
        rows = connection.execute(self._sql["failed"], parameters).fetchall()
        return [FailedMessage(*(*row[:9], DeadState(row[9]), *row[10:])) for row in rows]

    def _one(self, connection: Connection, name: str, parameters: dict[str, Any]) -> tuple[Any, ...] | None:
        return connection.execute(self._sql[name], parameters).fetchone()


def _order(message: FailedMessage) -> tuple[Any, ...]:
    return message.consumer, message.key_hash or 0, message.offset or 0, message.number or 0


def _name(message: FailedMessage) -> dict[str, Any]:
    """By what its dead letter is known."""
    return {"consumer": message.consumer, "source": message.source, "id": message.id, **_place(message)}


def _place(message: FailedMessage) -> dict[str, Any]:
    return {"topic": message.topic, "partition": message.partition, "offset": message.offset}
