"""Ids are judged by the database's clock: by a host's that is days behind, all would be dead letters."""

from __future__ import annotations

import threading
from datetime import datetime, timedelta, tzinfo
from typing import Any, Self, cast

import pytest

from tallymark.apply.applier import Applier
from tallymark.apply.handlers import Handlers
from tallymark.inbox import pulse, station
from tallymark.inbox.book import Book
from tallymark.inbox.config import InboxConfig
from tallymark.inbox.logport import Log
from tallymark.inbox.pulse import Pulse
from tallymark.inbox.station import Station
from tallymark.inbox.tallies import Tallies
from tallymark.message import new_id
from tallymark.observe.metrics import Metrics
from tallymark.store.postgres.inboxstore import PostgresInboxStore
from tests.inbox_store.conftest import instance
from tests.inbox_store.test_unreadable import Script

CONFIG = InboxConfig("ledger", ("transfers",), owner="me")


class Behind(datetime):
    """This host's clock."""

    @classmethod
    def now(cls, tz: tzinfo | None = None) -> Self:
        return super().now(tz) - timedelta(days=3)


def test_an_id_of_today_is_no_doubt(store: PostgresInboxStore, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (pulse, station):
        monkeypatch.setattr(module, "datetime", Behind, raising=False)
    handlers = Handlers()
    handlers.handler("transfers")(lambda _message, _tx: None)
    begun = Station(lambda _name: store, cast(Any, None), Applier(handlers), CONFIG, version="1")
    assert begun._screen.doubt(new_id()) is not None, "this host's clock is behind"
    begun.open()
    assert begun._screen.doubt(new_id()) is None
    kafka, me = cast(Log, Script()), instance()
    beats = Pulse(store, kafka, Book(), begun._screen, threading.Event(), me, CONFIG)
    beats.run_once(Tallies(Metrics(), "ledger"), threading.Event())
    assert begun._screen.doubt(new_id()) is None
