"""Where failed messages are dealt with: at the relay (parked) or at an inbox (dead letters). One way to ask for both."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from tallymark.errors import UsageError
from tallymark.lifecycle import DeadState, ParkedState
from tallymark.store.postgres.inboxfailed import InboxFailed
from tallymark.store.sqlite.schema import is_sqlite
from tallymark.store.stores import AnyOperators, operators_for

Station = Literal["relay", "inbox"]


@dataclass(frozen=True, slots=True)
class Choice:
    """Which messages: by id, or all of a topic or a consumer."""

    ids: Sequence[str] | None
    topic: str | None
    consumer: str | None


@dataclass(frozen=True, slots=True)
class Changed:
    """What was changed, and why the rest was not."""

    changed: list[str]
    refused: dict[str, str] = field(default_factory=dict)


class Desk(Protocol):
    """What can be done with failed messages. Rows are ready to be shown."""

    def listed(
        self, *, topic: str | None, consumer: str | None, waiting: bool, limit: int
    ) -> list[dict[str, Any]]: ...

    def show(self, id: str, consumer: str | None) -> list[dict[str, Any]]: ...

    def count(self, choice: Choice) -> int: ...

    def retry(
        self, choice: Choice, *, who: str, reason: str, any_order: bool, never_applied: bool
    ) -> Changed: ...

    def discard(self, choice: Choice, *, who: str, reason: str) -> Changed: ...


def desk_at(station: Station, url: str, schema: str) -> Desk:
    """The desk for a station of this database."""
    if station == "relay":
        return RelayDesk(operators_for(url, schema=schema))
    if is_sqlite(url):
        raise UsageError(
            "SQLite holds an outbox only", remedy="use --at relay, or name the consumer's database"
        )
    return InboxDesk(InboxFailed(url, schema=schema))


class RelayDesk:
    """Messages parked at the relay."""

    def __init__(self, operators: AnyOperators) -> None:
        self._operators = operators

    def listed(
        self,
        *,
        topic: str | None,
        consumer: str | None,  # noqa: ARG002 - a relay has none
        waiting: bool,
        limit: int,
    ) -> list[dict[str, Any]]:
        states = [ParkedState.FAILED, ParkedState.RETRYING] + ([ParkedState.WAITING] if waiting else [])
        return [
            {
                "at": "relay",
                "id": each.id,
                "state": each.state.value,
                "topic": each.topic,
                "key": text_of(each.key),
                "position": each.position,
                "reason": each.reason,
                "attempts": each.attempts,
                "parked_at": each.parked_at.isoformat(),
                "behind": each.behind,
            }
            for each in self._operators.parked(states=states, topic=topic, after=-1, limit=limit)
        ]

    def show(self, id: str, consumer: str | None) -> list[dict[str, Any]]:  # noqa: ARG002 - as above
        found = self._operators.parked_one(_uuids([id])[0])
        return [] if found is None else [found]

    def count(self, choice: Choice) -> int:
        return len(self._ids(choice))

    def retry(
        self,
        choice: Choice,
        *,
        who: str,
        reason: str,
        any_order: bool,  # noqa: ARG002 - the inbox's
        never_applied: bool,  # noqa: ARG002
    ) -> Changed:
        ids = self._ids(choice)
        return _told(ids, self._operators.retry(ids, who=who, reason=reason))

    def discard(self, choice: Choice, *, who: str, reason: str) -> Changed:
        ids = self._ids(choice)
        return _told(ids, self._operators.discard(ids, who=who, reason=reason))

    def _ids(self, choice: Choice) -> list[str]:
        if choice.ids:
            return _uuids(choice.ids)
        failed = self._operators.parked(
            states=[ParkedState.FAILED], topic=choice.topic, after=-1, limit=1_000_000
        )
        return [each.id for each in failed]


class InboxDesk:
    """Dead letters, and messages that are being tried again, at an inbox."""

    def __init__(self, failed: InboxFailed) -> None:
        self._failed = failed

    def listed(
        self,
        *,
        topic: str | None,
        consumer: str | None,
        waiting: bool,  # noqa: ARG002 - those behind are counted in `behind`
        limit: int,
    ) -> list[dict[str, Any]]:
        return [
            {
                "at": "inbox",
                "consumer": each.consumer,
                "id": each.name,
                "state": each.state.value,
                "topic": each.topic,
                "partition": each.partition,
                "offset": each.offset,
                "key": text_of(each.key),
                "reason": each.reason,
                "attempts": each.attempts,
                "since": each.since.isoformat(),
                "due_at": each.due_at.isoformat() if each.due_at else None,
                "holds_key": each.seq is not None,
                "behind": each.behind,
            }
            for each in self._failed.messages(consumer=consumer, topic=topic, limit=limit)
        ]

    def show(self, id: str, consumer: str | None) -> list[dict[str, Any]]:
        return self._failed.show(id, consumer=consumer)

    def count(self, choice: Choice) -> int:
        if choice.ids:
            return len(choice.ids)
        states = (DeadState.DEAD, DeadState.RETRYING)
        return len(
            self._failed.messages(
                consumer=choice.consumer, topic=choice.topic, states=states, limit=1_000_000
            )
        )

    def retry(
        self, choice: Choice, *, who: str, reason: str, any_order: bool, never_applied: bool
    ) -> Changed:
        done = self._failed.retry(
            who=who,
            reason=reason,
            ids=choice.ids,
            consumer=choice.consumer,
            topic=choice.topic,
            any_order=any_order,
            never_applied=never_applied,
        )
        return Changed(done.changed, _with_unknown(choice, done.changed, done.refused))

    def discard(self, choice: Choice, *, who: str, reason: str) -> Changed:
        done = self._failed.discard(
            who=who, reason=reason, ids=choice.ids, consumer=choice.consumer, topic=choice.topic
        )
        return Changed(done.changed, _with_unknown(choice, done.changed, done.refused))


def text_of(value: bytes | memoryview | None) -> str | None:
    """A key or a value as people can read it."""
    return None if value is None else bytes(value).decode("utf-8", "backslashreplace")


def _with_unknown(choice: Choice, changed: Sequence[str], refused: dict[str, str]) -> dict[str, str]:
    missing = set(choice.ids or ()) - set(changed) - refused.keys()
    return {**refused, **dict.fromkeys(sorted(missing), "it has not failed")}


def _told(asked: Sequence[str], changed: Sequence[str]) -> Changed:
    return Changed(list(changed), dict.fromkeys(sorted(set(asked) - set(changed)), "it has not failed"))


def _uuids(ids: Sequence[str]) -> list[str]:
    try:
        return [str(uuid.UUID(each)) for each in ids]
    except ValueError:
        raise UsageError(
            "that is not a message's id", remedy="ids are UUIDs, as `failed list` shows them"
        ) from None
