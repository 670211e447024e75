"""The examples of the documentation run as they stand."""

from __future__ import annotations

import asyncio
import importlib.util
from pathlib import Path
from types import ModuleType

from tests.outbox.callers import alchemy_url, django_connection
from tests.outbox.conftest import Ids, query

EXAMPLES = Path(__file__).parents[2] / "examples"


def example(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def balance(url: str) -> int:
    ((found,),) = query(url, "select balance from accounts where name = 'alice'")
    return int(found)


def test_every_example_commits_both(bank: str, committed: Ids, tmp_path: Path) -> None:
    before = balance(bank)
    added = [
        example("psycopg_outbox").transfer(bank, "alice", 5),
        example("sqlalchemy_outbox").transfer(alchemy_url(bank, "psycopg"), "alice", 5),
        asyncio.run(example("sqlalchemy_async_outbox").transfer(alchemy_url(bank, "asyncpg"), "alice", 5)),
    ]
    assert set(added) <= committed()
    assert balance(bank) == before - 15
    assert example("sqlite_outbox").sell(str(tmp_path / "edge.db"), "apple")


def test_the_django_example(bank: str, committed: Ids) -> None:
    connection = django_connection(bank)
    before = balance(bank)
    try:
        assert example("django_outbox").transfer("alice", 5) in committed()
    finally:
        connection.close()
    assert balance(bank) == before - 5
