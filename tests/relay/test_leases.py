"""Who owns a lane: relays share, join, leave and die; the lease decides, not Kafka's fence (pitfall 8)."""

from __future__ import annotations

import signal
import threading
from dataclasses import replace

import psycopg
import pytest

from tallymark.errors import OutcomeUnknown, Stale, Unreachable
from tallymark.lifecycle import Mode
from tallymark.relay.ports import RelayStore
from tallymark.relay.relay import Relay
from tallymark.store.postgres.relaystore import PostgresRelayStore
from tests.relay.conftest import MakeGround
from tests.relay.ground import QUICK, Ground, until_idle
from tests.waiting import wait_for


def shares(ground: Ground) -> list[int]:
    """How many lanes each owner holds, with a lease that runs."""
    rows = ground.query(
        "select count(*) from tallymark.lanes where owner is not null and lease_until > clock_timestamp()"
        " group by owner order by 1"
    )
    return [row[0] for row in rows]


def test_relays_share_join_leave_and_die(make_ground: MakeGround) -> None:
    ground = make_ground(lanes=4)
    with ground.relay(lease_seconds=3) as first, ground.relay(lease_seconds=3) as second:
        wait_for(lambda: shares(ground) == [2, 2], what="two relays have two lanes each")
        with ground.relay(lease_seconds=3) as third:
            wait_for(
                lambda: ground.value("select count(*) from tallymark.relays") == 3,
                what="the third has joined",
            )
            ground.add(200)
            ground.wait_sent()
            first.terminate()
            assert first.wait(20) == 0, first.output
            # It gave its lanes back: nobody waits for a lease.
            wait_for(lambda: sum(shares(ground)) == 4 and len(shares(ground)) == 2, what="two have all lanes")
            second.kill()
            wait_for(lambda: shares(ground) == [4], what="the last one has all lanes")
            ground.add(200)
            ground.wait_sent()
            assert third.is_alive(), third.output
    found = ground.compare()
    assert found.expected == 400
    assert found.is_clean, found


def test_a_lane_that_was_taken_and_could_not_be_started_is_given_back(ground: Ground) -> None:
    """PostgreSQL has no connection left just then: the heartbeat must not keep the lane for nobody."""
    nowhere = ["lane 0 ahead"]

    def stores(name: str) -> RelayStore:
        if name in nowhere:
            nowhere.remove(name)
            return PostgresRelayStore("postgresql://nobody@127.0.0.1:1/none")
        return PostgresRelayStore(ground.url)

    relay = Relay(stores, ground.kafka(), replace(QUICK, mode=Mode.CALLBACK))
    try:
        with pytest.raises(Unreachable):
            relay.run_once()
        assert ground.query("select owner, epoch from tallymark.lanes") == [("test", 1)]
        assert relay.run_once().owned == {0}
        ground.add(10)
        ground.wait_sent()
    finally:
        relay.shut_down()
    assert ground.value("select owner is null from tallymark.lanes")


def test_a_fault_of_our_own_in_a_round_does_not_end_the_relay(ground: Ground) -> None:
    class Flawed(PostgresRelayStore):
        def renew(self, owner: str, seconds: float) -> frozenset[tuple[int, int]]:
            if not faults:
                return super().renew(owner, seconds)
            raise faults.pop()

    faults: list[Exception] = [ZeroDivisionError("a fault of our own")]
    config = replace(QUICK, mode=Mode.CALLBACK, lease_s=1.0)
    relay, stop = Relay(lambda _: Flawed(ground.url), ground.kafka(), config), threading.Event()
    running = threading.Thread(target=relay.run, args=(stop,))
    running.start()
    try:
        ground.add(10)
        ground.wait_sent()
        assert not faults
    finally:
        stop.set()
        running.join(30)


def test_what_falls_due_at_once_is_moved_in_one_round(ground: Ground) -> None:
    ground.query(
        "insert into tallymark.delayed (id, due_at, topic)"
        " select gen_random_uuid(), clock_timestamp() - interval '1 s', %s from generate_series(1, 2500)",
        ground.topic,
    )
    relay = Relay(
        lambda _: PostgresRelayStore(ground.url), ground.kafka(), replace(QUICK, mode=Mode.CALLBACK)
    )
    try:
        assert relay.run_once().moved == 2500
    finally:
        relay.shut_down()


def test_a_second_sigterm_ends_it_at_once_and_harms_nothing(ground: Ground) -> None:
    ground.add(200)
    with ground.relay(batch_messages=10) as relay, psycopg.connect(ground.url) as blocker:
        wait_for(lambda: ground.value("select sum(sent) from tallymark.lanes") > 0, what="it is at work")
        blocker.execute("lock table tallymark.lanes in access exclusive mode")  # it cannot finish now
        relay.terminate()
        relay.wait_output("stopping")
        assert relay.is_alive()
        relay.terminate()
        assert relay.wait(10) == -signal.SIGTERM, relay.output
        blocker.rollback()
    ground.send_all()
    assert ground.compare().is_clean


def test_sigterm_ends_a_busy_relay_in_seconds_with_nothing_in_doubt(ground: Ground) -> None:
    ground.add(2000)
    with ground.relay(batch_messages=20) as relay:
        wait_for(lambda: ground.value("select sum(sent) from tallymark.lanes") > 0, what="it is at work")
        relay.terminate()
        assert relay.wait(10) == 0, relay.output
    assert ground.value("select count(*) from tallymark.batches where state = 'sending'") == 0
    assert ground.value("select count(owner) from tallymark.lanes") == 0
    assert ground.value("select count(*) from tallymark.relays") == 0
    ground.send_all(batch_messages=1000)
    assert ground.compare().is_clean


def test_a_stale_claimant_that_fences_late_sends_nothing(ground: Ground) -> None:
    """Kafka's fence is last-comer-wins: the stale one fences the rightful owner, and stops at the lease."""
    ground.add(100)
    with ground.worker(replace(QUICK, owner="stale")) as stale:
        stale.run_once()
        stale.dispatcher.drain()
        assert len(ground.log()) == 50
        ground.query("update tallymark.lanes set lease_until = clock_timestamp() - interval '1 s'")
        with ground.worker(replace(QUICK, owner="rightful")) as rightful:
            until_idle(rightful)
            with pytest.raises(Stale, match="another relay has taken it over"):
                stale.dispatcher.start(Mode.TRANSACTIONAL)
            ground.add(50)
            with pytest.raises(OutcomeUnknown):  # fenced although it is right: it looks again, and goes on
                until_idle(rightful)
            assert len(ground.log()) == 100
            rightful.reset()
            until_idle(rightful)
    assert ground.compare().is_clean


@pytest.mark.parametrize("mode", list(Mode))
def test_what_is_acknowledged_and_not_marked_yet_is_not_sent_again_for_a_passing_error(
    ground: Ground, mode: Mode
) -> None:
    ground.add(20)
    # Who looks for what operators want marks before it does: not here.
    with ground.worker(replace(QUICK, mode=mode, refresh_s=60.0)) as worker:
        for _ in range(10):
            worker.run_once()
            if worker.ledger.unmarked and ground.log(committed=False):
                break
        assert worker.ledger.unmarked
        worker.reset()  # as after any error that passes
        until_idle(worker)
    assert ground.compare(committed=False).is_clean
    assert ground.value("select count(*) from tallymark.batches where state = 'sending'") == 0


def test_every_write_of_a_stale_owner_changes_nothing(ground: Ground) -> None:
    ground.add(100)
    with ground.worker(replace(QUICK, owner="stale")) as stale:
        stale.run_once()
        ground.query("update tallymark.lanes set lease_until = clock_timestamp() - interval '1 s'")
        with ground.worker(replace(QUICK, owner="rightful")) as rightful:
            until_idle(rightful)
            rows = (
                ground.query("select * from tallymark.lanes"),
                ground.query("select * from tallymark.batches"),
            )
            with pytest.raises(Stale):
                stale.run_once()
            assert rows == (
                ground.query("select * from tallymark.lanes"),
                ground.query("select * from tallymark.batches"),
            )
    assert ground.compare().is_clean


def test_a_stale_owner_does_not_fence_to_learn_why_its_batch_was_refused(ground: Ground) -> None:
    """To find out, a publisher fences anew: that is the rightful owner's alone."""
    insert = "insert into tallymark.outbox (id, topic, partition) values (gen_random_uuid(), %s, 99)"
    ground.query(insert, ground.topic)
    ground.add(10)
    with ground.worker(replace(QUICK, owner="stale")) as stale:
        stale.run_once()
        ground.query("update tallymark.lanes set lease_until = clock_timestamp() - interval '1 s'")
        with ground.worker(replace(QUICK, owner="rightful")) as rightful:
            until_idle(rightful)
            with pytest.raises(Stale):
                stale.dispatcher.drain()
            ground.add(10)
            until_idle(rightful)  # not fenced: that would be OutcomeUnknown
    assert ground.query("select state, count(*) from tallymark.parked group by 1") == [("failed", 1)]
    assert len(ground.compare().missing) == 1
    assert not ground.compare().doubled
