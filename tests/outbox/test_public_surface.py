"""What services import, and with how little it works."""

from __future__ import annotations

import subprocess
import sys

import pytest

import tallymark

BLOCKED = """
import sys
class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {"confluent_kafka", "typer", "rich", "pydantic", "prometheus_client", "pyspark",
                                      "sqlalchemy", "django", "asyncpg", "opentelemetry", "psutil", "filelock"}:
            raise ImportError(f"{name} is not installed")
sys.meta_path.insert(0, Blocked())
"""

ADD = """
import sqlite3
from tallymark import *
import tallymark
outbox = Outbox("/bank")
with sqlite3.connect("edge.db") as tx:
    id = outbox.add(tx, "transfers", {"amount": 5}, key="alice")
    assert outbox.state(tx, id) is MessageState.PENDING
assert all(hasattr(tallymark, name) for name in tallymark.__all__)
print("added")
"""


def test_the_base_dependencies_are_enough(tmp_path: object) -> None:
    ran = subprocess.run(
        [sys.executable, "-c", BLOCKED + ADD], cwd=str(tmp_path), capture_output=True, text=True, check=False
    )
    assert (ran.stdout, ran.returncode) == ("added\n", 0), ran.stderr


def test_the_names() -> None:
    assert tallymark.__all__ == [
        "Draft",
        "Inbox",
        "Message",
        "MessageState",
        "MessageStatus",
        "NotInTransaction",
        "Outbox",
        "Problem",
        "SavedId",
        "SchemaMismatch",
        "TallymarkError",
        "UniqueConstraint",
        "Unreachable",
        "UsageError",
        "Version",
        "__version__",
    ]
    assert all(getattr(tallymark, name) is not None for name in tallymark.__all__)
    assert set(tallymark.__all__) <= set(dir(tallymark))
    with pytest.raises(AttributeError, match="no attribute 'Outbux'"):
        tallymark.Outbux  # noqa: B018 - it must not be there


def test_importing_the_package_alone_imports_no_driver() -> None:
    ran = subprocess.run(
        [
            sys.executable,
            "-c",
            "import tallymark, sys; print('psycopg' in sys.modules, 'sqlite3' in sys.modules)",
        ],
        capture_output=True,
        text=True,
        check=True,
    )
    assert ran.stdout == "False False\n"
