"""A dead letter's copy for a topic, through the outbox of the same database: sent once, if and only if it died.

It carries the message's own headers, and what became of it. Each copy is added behind a savepoint of its own: one that
the outbox refuses (larger than the topic takes) is named in its dead letter, and stands in nobody's way.
"""

from __future__ import annotations

import json
import logging
from typing import Any

import psycopg

from tallymark.errors import text_of
from tallymark.inbox.ports import Failed
from tallymark.store.postgres.connection import Connection, is_gone
from tallymark.store.postgres.handed import ours
from tallymark.store.postgres.queue import clean

log = logging.getLogger("tallymark.inbox")

_TRANSIENT = ("40P01", "40001")
# What says which message this is, and not what it is: the copy is a message of its own.
_NOT_CARRIED = ("ce_", "tm_")


class DeadCopies:
    """Copies of one consumer's dead letters, for one topic."""

    def __init__(self, connection: Connection, queries: dict[str, Any], *, consumer: str, topic: str) -> None:
        self._connection = connection
        self._sql = queries
        self._consumer = consumer
        self._topic = topic

    def add(self, dead: Failed) -> None:
        message = dead.queued.message
        copy = {
            "topic": self._topic,
            "value": message.value,
            "key": message.key,
            "headers": headers_of(dead, self._consumer),
        }
        try:
            with self._connection.transaction():
                ours(self._connection).execute(self._sql["announce"], copy)
        except psycopg.Error as error:
            if error.sqlstate in _TRANSIENT or is_gone(error) or self._connection.closed:
                raise
            self._refused(dead, error)

    def _refused(self, dead: Failed, error: psycopg.Error) -> None:
        message = dead.queued.message
        said = error.diag.message_primary or text_of(error)
        log.error(
            "message %s is dead and has no copy in %s: %s",
            message.named or message.id,
            self._topic,
            said,
            extra={"action": "inbox.no_copy"},
        )
        parameters = {
            "consumer": self._consumer,
            "source": clean(message.source),
            "id": message.id,
            "topic": message.topic,
            "partition": message.partition,
            "offset": message.offset,
            "said": clean(f"; no copy in {self._topic}: {said}"),
        }
        ours(self._connection).execute(self._sql["note_no_copy"], parameters)


def headers_of(dead: Failed, consumer: str) -> str:
    """The message's own headers, and what became of it. Pure."""
    message = dead.queued.message
    about: dict[str, Any] = {
        "ce_source": message.source,
        "ce_type": "tallymark.dead",
        "tm_dead_consumer": consumer,
        "tm_dead_id": message.named or str(message.id),
        "tm_dead_from": f"{message.topic}/{message.partition}/{message.offset}",
        "tm_dead_attempts": str(dead.queued.attempts + 1),
        "tm_dead_reason": dead.reason,
        "tm_dead_traceback": dead.traceback,
    }
    own: list[tuple[str, Any]] = json.loads(message.headers, object_pairs_hook=list)
    carried = [
        (name, dict(value) if isinstance(value, list) else value)
        for name, value in own
        if value is not None and not name.startswith(_NOT_CARRIED)
    ]
    if kind := dict(own).get("ce_type"):
        about["tm_dead_type"] = kind if isinstance(kind, str) else dict(kind)
    # As text: names may stand twice.
    pairs = (f"{_json(name)}:{_json(value)}" for name, value in [*about.items(), *carried])
    return "{" + ",".join(pairs) + "}"


def _json(value: Any) -> str:
    return clean(json.dumps(value, ensure_ascii=False))
