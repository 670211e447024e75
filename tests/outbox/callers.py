"""Transactions as callers have them: each driver's own, behind one way to begin, commit and roll back."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import (
    AbstractAsyncContextManager,
    AbstractContextManager,
    asynccontextmanager,
    closing,
    contextmanager,
)
from typing import Any

import asyncpg
import psycopg
from django.conf import settings
from psycopg.conninfo import conninfo_to_dict
from sqlalchemy import create_engine, text
from sqlalchemy.engine import URL
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session
from sqlalchemy.pool import NullPool, QueuePool


class Rollback(Exception):
    """Raised inside a transaction so that its owner rolls it back."""


Begin = Callable[[str], AbstractContextManager[Any]]
BeginAsync = Callable[[str], AbstractAsyncContextManager[Any]]


def alchemy_url(url: str, driver: str) -> URL:
    parts = conninfo_to_dict(url)
    return URL.create(
        f"postgresql+{driver}",
        username=str(parts["user"]),
        password=str(parts["password"]),
        host=str(parts["host"]),
        port=int(str(parts["port"])),
        database=str(parts["dbname"]),
    )


@contextmanager
def psycopg_connection(url: str) -> Iterator[Any]:
    with psycopg.connect(url) as connection:
        yield connection


@contextmanager
def psycopg_cursor(url: str) -> Iterator[Any]:
    with psycopg.connect(url) as connection, connection.cursor() as cursor:
        yield cursor


@contextmanager
def psycopg_block(url: str) -> Iterator[Any]:
    """Autocommit with a block of its own: a transaction all the same. Rows come as dicts."""
    with (
        psycopg.connect(url, autocommit=True, row_factory=psycopg.rows.dict_row) as connection,
        connection.transaction(),
    ):
        yield connection


@contextmanager
def alchemy_connection(url: str) -> Iterator[Any]:
    engine = create_engine(alchemy_url(url, "psycopg"), poolclass=NullPool)
    with engine.begin() as connection:
        yield connection


@contextmanager
def alchemy_session(url: str) -> Iterator[Any]:
    engine = create_engine(alchemy_url(url, "psycopg"), poolclass=NullPool)
    with Session(engine) as session, session.begin():
        yield session


def django_connection(url: str) -> Any:
    """Django's default connection, to this database. A process is configured once; where it points can change."""
    import django
    from django import db

    parts = conninfo_to_dict(url)
    names = {"NAME": "dbname", "USER": "user", "PASSWORD": "password", "HOST": "host", "PORT": "port"}
    default = {name: parts[part] for name, part in names.items()}
    if not settings.configured:
        settings.configure(DATABASES={"default": {"ENGINE": "django.db.backends.postgresql", **default}})
        django.setup()
    db.connection.close()
    db.connection.settings_dict.update(default)
    return db.connection


@contextmanager
def django_atomic(url: str) -> Iterator[Any]:
    from django.db import transaction

    connection = django_connection(url)
    try:
        with transaction.atomic():
            yield connection
    finally:
        connection.close()


@asynccontextmanager
async def psycopg_async(url: str) -> AsyncIterator[Any]:
    async with await psycopg.AsyncConnection.connect(url) as connection:
        yield connection


@asynccontextmanager
async def psycopg_async_cursor(url: str) -> AsyncIterator[Any]:
    async with await psycopg.AsyncConnection.connect(url) as connection, connection.cursor() as cursor:
        yield cursor


def alchemy_async(driver: str) -> BeginAsync:
    @asynccontextmanager
    async def begin(url: str) -> AsyncIterator[Any]:
        engine = create_async_engine(alchemy_url(url, driver), poolclass=NullPool)
        async with AsyncSession(engine) as session, session.begin():
            yield session

    return begin


@asynccontextmanager
async def alchemy_async_connection(url: str) -> AsyncIterator[Any]:
    engine = create_async_engine(alchemy_url(url, "asyncpg"), poolclass=NullPool)
    async with engine.begin() as connection:
        yield connection


@asynccontextmanager
async def asyncpg_transaction(url: str) -> AsyncIterator[Any]:
    connection = await asyncpg.connect(url)
    try:
        async with connection.transaction():
            yield connection
    finally:
        await connection.close()


SYNC: dict[str, Begin] = {
    "psycopg connection": psycopg_connection,
    "psycopg cursor": psycopg_cursor,
    "psycopg transaction block": psycopg_block,
    "SQLAlchemy connection": alchemy_connection,
    "SQLAlchemy session": alchemy_session,
    "Django atomic": django_atomic,
}

ASYNC: dict[str, BeginAsync] = {
    "psycopg connection": psycopg_async,
    "psycopg cursor": psycopg_async_cursor,
    "SQLAlchemy session, psycopg": alchemy_async("psycopg"),
    "SQLAlchemy session, asyncpg": alchemy_async("asyncpg"),
    "SQLAlchemy connection": alchemy_async_connection,
    "asyncpg transaction": asyncpg_transaction,
}


# The same, in autocommit: no transaction that a message could share the fate of.


@contextmanager
def psycopg_autocommit(url: str) -> Iterator[Any]:
    with psycopg.connect(url, autocommit=True) as connection:
        yield connection


@contextmanager
def psycopg_autocommit_cursor(url: str) -> Iterator[Any]:
    with psycopg.connect(url, autocommit=True) as connection, connection.cursor() as cursor:
        yield cursor


@contextmanager
def alchemy_autocommit_engine(url: str) -> Iterator[Any]:
    engine = create_engine(alchemy_url(url, "psycopg"), poolclass=NullPool, isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        yield connection


@contextmanager
def alchemy_autocommit_connection(url: str) -> Iterator[Any]:
    engine = create_engine(alchemy_url(url, "psycopg"), poolclass=NullPool)
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        yield connection


@contextmanager
def alchemy_autocommit_session(url: str) -> Iterator[Any]:
    engine = create_engine(alchemy_url(url, "psycopg"), poolclass=NullPool, isolation_level="AUTOCOMMIT")
    with Session(engine) as session:
        session.execute(text("select 1"))
        yield session


@contextmanager
def django_autocommit(url: str) -> Iterator[Any]:
    connection = django_connection(url)
    try:
        yield connection
    finally:
        connection.close()


@asynccontextmanager
async def psycopg_async_autocommit(url: str) -> AsyncIterator[Any]:
    async with await psycopg.AsyncConnection.connect(url, autocommit=True) as connection:
        yield connection


def alchemy_async_autocommit(driver: str) -> BeginAsync:
    @asynccontextmanager
    async def begin(url: str) -> AsyncIterator[Any]:
        engine = create_async_engine(
            alchemy_url(url, driver), poolclass=NullPool, isolation_level="AUTOCOMMIT"
        )
        async with AsyncSession(engine) as session:
            yield session

    return begin


@asynccontextmanager
async def asyncpg_autocommit(url: str) -> AsyncIterator[Any]:
    connection = await asyncpg.connect(url)
    try:
        yield connection
    finally:
        await connection.close()


AUTOCOMMIT: dict[str, Begin] = {
    "psycopg connection": psycopg_autocommit,
    "psycopg cursor": psycopg_autocommit_cursor,
    "SQLAlchemy engine": alchemy_autocommit_engine,
    "SQLAlchemy connection": alchemy_autocommit_connection,
    "SQLAlchemy session": alchemy_autocommit_session,
    "Django": django_autocommit,
}

ASYNC_AUTOCOMMIT: dict[str, BeginAsync] = {
    "psycopg connection": psycopg_async_autocommit,
    "SQLAlchemy session, psycopg": alchemy_async_autocommit("psycopg"),
    "SQLAlchemy session, asyncpg": alchemy_async_autocommit("asyncpg"),
    "asyncpg connection": asyncpg_autocommit,
}


# Connected, and nothing begun: what is done first begins it, and the caller commits by hand, or does not.


@contextmanager
def psycopg_unbegun(url: str) -> Iterator[Any]:
    with closing(psycopg.connect(url)) as connection:
        yield connection


def alchemy_unbegun(pool: Any) -> Begin:
    @contextmanager
    def begin(url: str) -> Iterator[Any]:
        engine = create_engine(alchemy_url(url, "psycopg"), poolclass=pool)
        with engine.connect() as connection:
            yield connection
        engine.dispose()

    return begin


@contextmanager
def alchemy_session_unbegun(url: str) -> Iterator[Any]:
    engine = create_engine(alchemy_url(url, "psycopg"), poolclass=NullPool)
    with Session(engine) as session:
        yield session


@contextmanager
def alchemy_session_on_a_connection(url: str) -> Iterator[Any]:
    """A session that is bound to a connection of the caller's."""
    engine = create_engine(alchemy_url(url, "psycopg"), poolclass=NullPool)
    with engine.connect() as connection, Session(connection) as session:
        yield session


@contextmanager
def django_by_hand(url: str) -> Iterator[Any]:
    connection = django_connection(url)
    connection.set_autocommit(False)
    try:
        yield connection
    finally:
        connection.close()


@asynccontextmanager
async def psycopg_async_unbegun(url: str) -> AsyncIterator[Any]:
    connection = await psycopg.AsyncConnection.connect(url)
    try:
        yield connection
    finally:
        await connection.close()


def alchemy_async_unbegun(driver: str) -> BeginAsync:
    @asynccontextmanager
    async def begin(url: str) -> AsyncIterator[Any]:
        engine = create_async_engine(alchemy_url(url, driver), poolclass=NullPool)
        async with engine.connect() as connection:
            yield connection

    return begin


def alchemy_async_session_unbegun(driver: str) -> BeginAsync:
    @asynccontextmanager
    async def begin(url: str) -> AsyncIterator[Any]:
        engine = create_async_engine(alchemy_url(url, driver), poolclass=NullPool)
        async with AsyncSession(engine) as session:
            yield session

    return begin


UNBEGUN: dict[str, Begin] = {
    "psycopg connection": psycopg_unbegun,
    "SQLAlchemy connection": alchemy_unbegun(NullPool),
    "SQLAlchemy connection of a pool": alchemy_unbegun(QueuePool),
    "SQLAlchemy session": alchemy_session_unbegun,
    "SQLAlchemy session on a connection": alchemy_session_on_a_connection,
    "Django by hand": django_by_hand,
}

ASYNC_UNBEGUN: dict[str, BeginAsync] = {
    "psycopg connection": psycopg_async_unbegun,
    "SQLAlchemy connection, psycopg": alchemy_async_unbegun("psycopg"),
    "SQLAlchemy connection, asyncpg": alchemy_async_unbegun("asyncpg"),
    "SQLAlchemy session, psycopg": alchemy_async_session_unbegun("psycopg"),
    "SQLAlchemy session, asyncpg": alchemy_async_session_unbegun("asyncpg"),
}
