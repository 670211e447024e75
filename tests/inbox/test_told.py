"""What is said of messages: each failed attempt a warning, a death an error; a trace tells no more than is known."""

from __future__ import annotations

import logging
import uuid

import pytest

from tallymark.cli.trace import _sentence, _where
from tallymark.inbox.obituary import tell
from tallymark.inbox.ports import Failed, Queued, Received
from tallymark.lifecycle import Verdict
from tallymark.tally.trace import Trace, TraceEvent

ID = uuid.UUID("01941f29-7c00-7000-8000-0123456789ab")


def failed(again_in_s: float | None, *, attempts: int = 0, hold_key: bool = True) -> Failed:
    message = Received(ID, "/bank", None, "transfers", 0, 7, 1, b"k", b"v", "{}", None)
    return Failed(Queued(message, 1, attempts=attempts), "ValueError: no credit", "", again_in_s, hold_key)


def test_an_attempt_is_a_warning_and_a_death_an_error(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "tallymark.inbox"):
        tell([failed(2.0), failed(None, attempts=4)])
    assert [(each.levelname, each.getMessage()) for each in caplog.records] == [
        (
            "ERROR",
            f"message {ID} (transfers/0@7) is dead after attempt 5: ValueError: no credit; "
            "later ones of its key wait behind it",
        ),
        (
            "WARNING",
            f"message {ID} (transfers/0@7) failed in attempt 1, and is tried again in 2.0 s: ValueError: no credit",
        ),
    ]


def test_of_many_some_are_named_and_all_are_counted(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "tallymark.inbox"):
        tell([failed(1.0)] * 10)
        tell([])
    assert len(caplog.records) == 4
    assert caplog.records[-1].getMessage() == "and 7 others with them"


def test_partition_and_offset_zero_are_places_too() -> None:
    event = TraceEvent(None, "log", "logged", {"partition": 0, "offset": 0, "held": False, "note": ""})
    assert _where(event) == "partition 0, offset 0"


def test_what_nobody_is_to_apply_is_not_said_to_be_applied() -> None:
    sent = TraceEvent(None, "relay", "marked as sent")
    applied = TraceEvent(None, "apply", "applied")
    alone = Trace(str(ID), "t", None, (sent,), Verdict.DELIVERED, "adding")
    assert "No consumer of its topic is known" in _sentence(alone)
    whole = Trace(str(ID), "t", None, (sent, applied), Verdict.DELIVERED, "adding")
    assert _sentence(whole) == Verdict.DELIVERED.sentence
