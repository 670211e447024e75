"""Sending a message again over HTTP: the new row, its audit row and its Idempotency-Key are one transaction."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from tallymark.crashpoint import reached
from tallymark.lifecycle import Role
from tallymark.store.postgres.audit import Once, Request
from tallymark.store.postgres.connection import Connection
from tallymark.store.postgres.resend import Resending

_PATIENCE = "10s"


class AuditedResending(Resending):
    """One outbox, for one request."""

    def __init__(
        self, url: str, consumers: Mapping[str, str], *, schema: str, who: str, request: Request
    ) -> None:
        super().__init__(url, consumers, schema=schema)
        self._who = who
        self._once = Once(schema, request)
        self._changed: list[str] = []

    @contextmanager
    def _open(self, url: str, role: Role) -> Iterator[Connection]:
        with super()._open(url, role) as connection:
            # Whether a later one of its key is on its way takes a scan of the outbox: not for as long as it takes.
            connection.execute(f"set local statement_timeout = '{_PATIENCE}'")
            if role is not Role.PRODUCER:
                yield connection
                return
            self._once.take(connection, self._who)
            yield connection
            self._once.done(connection, self._who, self._changed)
            reached("console.before_commit")
        reached("console.after_commit")

    def _again(self, *arguments: Any, **options: Any) -> dict[str, object]:
        made = super()._again(*arguments, **options)
        self._changed.append(str(made["id"]))
        return made
