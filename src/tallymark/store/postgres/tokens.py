"""Tokens of the query interface: made and shown once, kept as hashes, listed, revoked. Every change is audited."""

from __future__ import annotations

import hashlib
import json
import re
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta

import psycopg

from tallymark.errors import SchemaMismatch, UsageError
from tallymark.lifecycle import TokenRole
from tallymark.store.postgres.connection import Connection, transaction
from tallymark.store.queries import load

PREFIX = "tmk_"
_BYTES = 32
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@-]{0,62}")
LONGEST = timedelta(days=3660)


@dataclass(frozen=True, slots=True)
class Token:
    """What is known of a token: everything but itself."""

    number: int
    name: str
    role: TokenRole
    created_at: datetime
    created_by: str
    expires_at: datetime | None
    revoked_at: datetime | None


@dataclass(frozen=True, slots=True)
class Bearer:
    """Who came with a token, and whether it still counts."""

    name: str
    role: TokenRole
    revoked: bool
    expired: bool

    @property
    def counts(self) -> bool:
        return not self.revoked and not self.expired


def fresh() -> str:
    """A new token: 256 random bits behind a prefix by which it is known in logs and by scanners for leaked secrets."""
    return PREFIX + secrets.token_urlsafe(_BYTES)


def hashed(token: str) -> bytes:
    return hashlib.sha256(token.encode("utf-8", "surrogateescape")).digest()


class Tokens:
    """The tokens of one database. One connection per call: calls are rare."""

    def __init__(self, url: str, *, schema: str = "tallymark") -> None:
        self._url = url
        self._sql = load("tallymark.store.postgres", "tokens.sql", schema)

    def create(
        self, name: str, role: TokenRole, *, who: str, expires: timedelta | None = None
    ) -> tuple[str, Token]:
        """A new token, shown this once, and what is kept of it."""
        if not _NAME.fullmatch(name):
            raise UsageError(
                f"{name!r} is not a token's name",
                remedy="letters, digits, '.', '_', '@' and '-', at most 63, as in --name prometheus",
            )
        if name.isdigit():
            raise UsageError(
                "a token's name is not a number", remedy="numbers are given by the database; choose a word"
            )
        if expires is not None and not timedelta(0) < expires <= LONGEST:
            raise UsageError("a token lives from a moment to ten years", remedy="write --expires 90d")
        token = fresh()
        parameters = {
            "name": name,
            "hash": hashed(token),
            "role": str(role),
            "who": who,
            "seconds": None if expires is None else expires.total_seconds(),
        }
        with self._open() as connection:
            try:
                row = connection.execute(self._sql["create"], parameters).fetchone()
            except psycopg.errors.UniqueViolation:
                raise UsageError(
                    f"there is a token named {name} in use", remedy="revoke it first, or choose another name"
                ) from None
            if row is None:
                raise AssertionError("an insert that returns gives a row")
            made = _token(row)
            self._audit(connection, "tokens.create", made, who, "", {"role": str(role)})
        return token, made

    def all(self) -> list[Token]:
        with self._open() as connection:
            return [_token(row) for row in connection.execute(self._sql["all"])]

    def revoke(self, which: str, *, who: str, reason: str = "") -> Token | None:
        """Revoke by name or number, from the next request on; None where no such token is in use."""
        with self._open() as connection:
            row = connection.execute(self._sql["revoke"], {"which": which}).fetchone()
            if row is None:
                return None
            revoked = _token(row)
            self._audit(connection, "tokens.revoke", revoked, who, reason, {"number": revoked.number})
            return revoked

    def _audit(
        self,
        connection: Connection,
        action: str,
        token: Token,
        who: str,
        reason: str,
        details: dict[str, object],
    ) -> None:
        parameters = {"who": who, "action": action, "subject": f"token {token.name}", "reason": reason}
        connection.execute(self._sql["audit"], {**parameters, "details": json.dumps(details)})

    @contextmanager
    def _open(self) -> Iterator[Connection]:
        with transaction(self._url, application="tallymark tokens") as connection:
            try:
                yield connection
            except psycopg.errors.UndefinedTable as error:
                raise SchemaMismatch(
                    "there is no table of tokens in this database", remedy="run `tallymark init`"
                ) from error


def bearer_of(connection: Connection, query: str, token: str) -> Bearer | None:
    """Whose token this is; None where nobody's."""
    row = connection.execute(query, {"hash": hashed(token)}).fetchone()
    return None if row is None else Bearer(row[0], TokenRole(row[1]), row[2], row[3])


def _token(row: tuple[object, ...]) -> Token:
    number, name, role, *rest = row
    return Token(number, name, TokenRole(str(role)), *rest)  # type: ignore[arg-type] # the table's own types
