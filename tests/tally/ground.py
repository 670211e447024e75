"""The whole journey: an outbox, its topic and a consumer, with relays and inboxes as child processes."""

from __future__ import annotations

import io
import json
import os
from collections.abc import Iterable, Sequence
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass, field
from typing import Any

import psycopg
import pytest

from tallymark.cli.main import main
from tallymark.outbox.outbox import Draft, Outbox
from tallymark.store.postgres.writer import PostgresWriter
from tests import journal
from tests.children import Child, start_child
from tests.inbox.ground import Ground as InboxGround
from tests.leaders import wait_for_markers
from tests.relay.ground import Ground as RelayGround
from tests.waiting import wait_for


@dataclass
class Journey:
    """One outbox (`bank`), one topic, one consumer (`ledger`)."""

    bank: RelayGround
    ledger: InboxGround
    written: list[str] = field(default_factory=list)
    # Where the consumer begins.
    start: str = "beginning"

    @property
    def databases(self) -> list[str]:
        return ["--database", self.bank.url, "--database", self.ledger.url]

    def add(self, keys: Sequence[str]) -> list[str]:
        """Commit one message per key, in one transaction; their ids."""
        drafts = [
            Draft(self.bank.topic, {"n": n, "filler": os.urandom(20).hex()}, key=key)
            for n, key in enumerate(keys)
        ]
        with psycopg.connect(self.bank.url) as connection:
            ids = [
                str(each) for each in Outbox("/bank", writer=PostgresWriter()).add_many(connection, drafts)
            ]
        self.written += ids
        return ids

    def send(self) -> None:
        self.bank.send_all(batch_messages=5000, within=600)
        wait_for_markers(self.bank.servers, self.bank.topic)

    def receive(self) -> None:
        """An inbox until it has passed the log's end."""
        with self.inbox() as child:
            wait_for(
                lambda: self.caught_up() or not child.is_alive(),
                within=600,
                what="the inbox is at the log's end",
            )
            assert child.is_alive(), child.output
            child.terminate()
            assert child.wait() == 0, child.output

    def inbox(self) -> Child:
        return start_child(
            [
                *("-m", "tallymark", "inbox", "run", "tests.tally.app:inbox"),
                *("--database", self.ledger.url, "--bootstrap-servers", self.ledger.servers),
            ],
            environment={
                "APP_CONSUMER": self.ledger.name,
                "APP_DATABASE": self.ledger.url,
                "APP_TOPIC": self.bank.topic,
                "APP_START": self.start,
                "TALLYMARK_INBOX__LEASE_SECONDS": "2",
                "TALLYMARK_INBOX__SESSION_TIMEOUT": "6s",
            },
        )

    def caught_up(self) -> bool:
        from tests.inbox.ground import ends

        where = self.ledger.positions()
        return bool(where) and where == ends(self.bank.servers, self.bank.topic, len(where))

    def on_bank(self, sql: str, *parameters: Any) -> list[tuple[Any, ...]]:
        return journal.query(self.bank.url, sql, parameters)

    def on_ledger(self, sql: str, *parameters: Any) -> list[tuple[Any, ...]]:
        return journal.query(self.ledger.url, sql, parameters)

    def tallymark(self, *arguments: str) -> tuple[int, Any]:
        """One command line with --json; its exit code and what it says. Where a Spark session is there, it is used."""
        said, remarks = io.StringIO(), io.StringIO()
        with pytest.MonkeyPatch.context() as patch, redirect_stdout(said), redirect_stderr(remarks):
            for name in [each for each in os.environ if each.startswith("TALLYMARK_")]:
                if name != "TALLYMARK_CACHE":
                    patch.delenv(name)
            code = main([*arguments, "--json"])
        try:
            return code, json.loads(said.getvalue())
        except ValueError:
            raise AssertionError(f"{arguments}: {code}\n{said.getvalue()}\n{remarks.getvalue()}") from None

    def tally(self, *arguments: str) -> tuple[int, Any]:
        servers = ["--bootstrap-servers", self.bank.servers]
        return self.tallymark("tally", "run", *self.databases, *servers, "--master", "local[2]", *arguments)


def named(found: Iterable[dict[str, Any]]) -> set[tuple[str, str, str, str]]:
    """Findings as (id, consumer, verdict, stage)."""
    return {(each["id"], each["consumer"] or "", each["verdict"], each["stage"]) for each in found}
