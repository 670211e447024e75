"""What is away, or refuses, just when a relay needs it: others are not harmed by that."""

from __future__ import annotations

from pathlib import Path

from confluent_kafka.admin import ResourceType

from tests.children import start_child
from tests.relay.conftest import MakeGround
from tests.relay.ground import Ground
from tests.relay.test_denied import run_relay
from tests.secured import Secured
from tests.waiting import wait_for

PARTITIONS = "select count(*) from pg_inherits where inhparent = 'tallymark.outbox'::regclass"


def test_a_relay_that_cannot_start_keeps_house_before_it_ends(make_ground: MakeGround) -> None:
    """A supervisor starts it again and again: nobody else makes partitions meanwhile."""
    ground = make_ground(partition_rows=10, ahead=1)
    before = ground.value(PARTITIONS)
    away = ("--bootstrap-servers", "127.0.0.1:1")
    with start_child(["-m", "tallymark", "relay", "run", "--database", ground.url, *away]) as relay:
        assert relay.wait() == 3, relay.output
        assert "Kafka at 127.0.0.1:1 cannot be reached" in relay.output
        assert "Traceback" not in relay.output
    assert ground.value(PARTITIONS) > before
    ground.add(30)


def test_one_that_is_denied_what_it_needs_does_so_too(
    make_ground: MakeGround, secured: Secured, tmp_path: Path
) -> None:
    """Reached, and refused: by then it is past the first question."""
    ground = make_ground(partition_rows=10, ahead=1)
    before = ground.value(PARTITIONS)
    with (
        secured.denied(ResourceType.TRANSACTIONAL_ID, f"tallymark.{ground.outbox_id}"),
        run_relay(ground, secured, tmp_path) as relay,
    ):
        assert relay.wait() == 3, relay.output
    assert ground.value(PARTITIONS) > before


def test_a_finding_that_cannot_be_written_down_ends_no_thread_with_a_traceback(ground: Ground) -> None:
    """PostgreSQL is away just then, or refuses: whoever takes the lane next finds the same."""
    ground.add(10)
    ground.send_all()
    ground.query("update tallymark.lanes set receipt_token = gen_random_uuid()")
    ground.query(
        "create function refuse() returns trigger language plpgsql as"
        " $$ begin raise exception 'not now'; end $$"
    )
    ground.query(
        "create trigger refuse before update on tallymark.lanes for each row"
        " when (new.halted is not null) execute function refuse()"
    )
    with ground.relay() as relay:
        relay.wait_output("lane 0 is not halted")
        ground.query("drop trigger refuse on tallymark.lanes")
        relay.wait_output("lane 0 stops")
        wait_for(lambda: ground.value("select halted is not null from tallymark.lanes"), what="it is halted")
        assert "Traceback" not in relay.output
