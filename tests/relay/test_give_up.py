"""`give_up_after`, for those who want bounded retries: what was tried and could not be sent is recorded as failed."""

from __future__ import annotations

import re
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import pytest

from tallymark.cli import connections
from tallymark.cli.relay import _config
from tallymark.errors import OutcomeUnknown
from tallymark.lifecycle import BatchKind, Mode
from tallymark.relay.config import RelayConfig
from tallymark.relay.lane import LaneWorker
from tests.cli.conftest import Run
from tests.relay.ground import QUICK, Ground, until_idle

AN_HOUR_AGO = "update tallymark.batches set claimed_at = clock_timestamp() - interval '1 hour'"
HASTY = replace(QUICK, batch_messages=20, give_up_after_s=600.0)


def left_in_doubt(ground: Ground, point: str) -> None:
    """A relay that died with a batch on its way, an hour ago."""
    ground.add(20)
    with ground.relay(crash_point=point, batch_messages=20) as relay:
        assert relay.wait() == -signal.SIGKILL, relay.output
    ground.query(AN_HOUR_AGO)
    ground.query("update tallymark.lanes set owner = null")


@contextmanager
def tried_in_vain(ground: Ground) -> Iterator[LaneWorker]:
    """A lane whose batch was refused when it was sent, at once after its claim: an hour ago."""
    kafka = ground.kafka()
    with ground.worker(HASTY, kafka=kafka) as worker:
        until_idle(worker)
        stranger = kafka.publisher(ground.store().identity(), 0, Mode.TRANSACTIONAL, [])
        stranger.fence()
        ground.add(20)
        with pytest.raises(OutcomeUnknown):
            until_idle(worker)
        stranger.close()
        ground.query(AN_HOUR_AGO)
        worker.reset()
        yield worker


def test_what_could_not_be_tried_for_so_long_is_tried_before_it_is_given_up(ground: Ground) -> None:
    """Kafka was away: its first answer must not be the end of what it could take now."""
    with tried_in_vain(ground) as worker:
        until_idle(worker)
    assert ground.query("select 1 from tallymark.parked") == []
    assert ground.compare().is_clean


def test_what_could_not_be_sent_for_so_long_is_failed_and_can_be_retried(ground: Ground, run: Run) -> None:
    with tried_in_vain(ground) as worker:
        # And once more, an hour after its claim.
        worker.dispatcher._tried = dict.fromkeys(worker.dispatcher._tried, 3600.0)
        until_idle(worker)
        assert ground.log() == []
        parked = ground.query("select state, reason, count(*) from tallymark.parked group by 1, 2")
        ((state, reason, count),) = parked
        assert (state, count) == ("failed", 20)
        assert re.fullmatch(r"given up after 36\d\d s", reason)
        ground.add(12)  # the keys wait behind what was given up
        until_idle(worker)
        assert ground.log() == []
        assert run("failed", "retry", "--all", "--database", ground.url).code == 0
        until_idle(worker)
    found = ground.compare()
    assert (found.expected, found.is_clean) == (32, True), found


def test_without_receipts_what_is_given_up_is_said_to_be_unknown(ground: Ground) -> None:
    ground.add(20)
    with ground.worker(replace(HASTY, mode=Mode.CALLBACK)) as worker:
        batch = worker.ledger.claim(worker.ledger.batch(BatchKind.RANGE, 0, 20, messages=20))
        worker.dispatcher._tried[batch.number] = 3600.0  # and nobody knows what became of it
        ground.query(AN_HOUR_AGO)
        until_idle(worker)
    ((reason, count),) = ground.query("select reason, count(*) from tallymark.parked group by 1")
    assert re.fullmatch(r"given up after 36\d\d s; whether it is in the log is unknown", reason)
    assert count == 20


def test_what_was_not_tried_since_is_tried_first_however_old_it_is(ground: Ground) -> None:
    """Nobody was there, or Kafka was not: that is no reason to give up what can go now."""
    left_in_doubt(ground, "relay.before_kafka_commit:2")
    with ground.worker(HASTY) as worker:
        until_idle(worker)
    assert ground.query("select 1 from tallymark.parked") == []
    assert ground.compare().is_clean


def test_what_is_in_the_log_is_not_given_up_however_old_it_is(ground: Ground) -> None:
    left_in_doubt(ground, "relay.after_kafka_commit:2")
    with ground.worker(HASTY) as worker:
        until_idle(worker)
    assert ground.query("select 1 from tallymark.parked") == []
    assert ground.compare().is_clean


def test_by_default_nothing_is_given_up() -> None:
    assert RelayConfig().give_up_after_s is None


def test_the_setting_reaches_the_relay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TALLYMARK_RELAY__GIVE_UP_AFTER", "10m")
    assert _config(connections.load().settings).give_up_after_s == 600.0
