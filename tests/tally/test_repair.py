"""A consumer takes what it lacks from the producer's side, without Kafka: kept, queued and applied, each once.

The producer's side is a real `tallymark serve` over the outbox's database alone, asked over HTTP: it knows no Kafka and
no consumer. `tallymark tally repair` is given the consumer's database alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from tallymark.lifecycle import TokenRole
from tallymark.local.cluster import LocalCluster
from tests.children import Child
from tests.console.ground import Service, serve
from tests.tally.ground import Journey
from tests.waiting import wait_for

LOST = 1000


@pytest.fixture
def service(journey: Journey) -> Iterator[Service]:
    """The producer's query interface. Nobody tells it of a Kafka."""
    made = serve(journey.bank.url)
    with made.child:
        assert "no Kafka is given" in made.child.output
        yield made


def repaired(journey: Journey, service: Service, *options: str) -> tuple[int, dict[str, Any]]:
    code, said = journey.tallymark(
        *("tally", "repair", "--consumer", journey.ledger.name, "--database", journey.ledger.url),
        *("--from", service.url, "--token", service.tokens[TokenRole.OPERATOR], "--reason", "lost", *options),
    )
    return code, dict(said)


def lose(journey: Journey, ids: Sequence[str]) -> None:
    """With their effects: as if they had never come."""
    for table, column in (
        ("tallymark.inbox", "id"),
        ("tallymark.applications", "id"),
        ("effect", "message_id"),
    ):
        journey.on_ledger(f"delete from {table} where {column}::text = any(%s)", list(ids))


def effects(journey: Journey) -> dict[str, int]:
    return dict(journey.on_ledger("select message_id, count(*) from effect group by 1"))


def applied(journey: Journey, child: Child, count: int) -> None:
    wait_for(
        lambda: len(effects(journey)) == count or not child.is_alive(),
        what="what was repaired is applied",
    )
    assert child.is_alive(), child.output


def test_what_would_do_harm_is_refused(journey: Journey, service: Service) -> None:
    ids = journey.add(["alice", "bob", "alice", "carol"])
    journey.send()
    journey.receive()
    assert repaired(journey, service)[1]["lacking"] == 0
    # Of alice's first one, a later one was applied.
    lose(journey, ids[:2])
    code, said = repaired(journey, service, "--dry-run")
    assert (said["asked"], said["lacking"], said["missing"], said["kept"]) == (4, 2, [ids[1]], 0)
    code, said = repaired(journey, service)
    assert (code, said["kept"], list(said["refused"])) == (1, 1, [ids[0]])
    assert "a later message of its key" in said["refused"][ids[0]]
    assert repaired(journey, service, "--any-order")[1]["kept"] == 1
    assert repaired(journey, service) == (
        0,
        {
            **{"dry_run": False, "asked": 4, "lacking": 0, "kept": 0, "unread": 0, "forgotten": 0},
            **{"missing": [], "refused": {}},
        },
    )


def lost_and_brought_back(journey: Journey, service: Service) -> list[str]:
    """A thousand rows are lost, and repaired; gives back all ids."""
    ids = journey.written
    lost = sorted(ids[500 : 500 + LOST])
    lose(journey, lost)
    assert len(effects(journey)) == len(ids) - LOST
    code, said = repaired(journey, service)
    assert (code, said["asked"], said["lacking"], said["kept"]) == (0, len(ids), LOST, LOST)
    assert sorted(said["missing"]) == lost
    kept = journey.on_ledger('select id::text from tallymark.inbox where "offset" is null order by 1')
    assert [id_ for (id_,) in kept] == lost
    # Asked again before anything was applied: it has them, and takes nothing.
    assert repaired(journey, service)[1]["kept"] == 0
    return ids


def test_a_thousand_lost_rows_come_back_without_kafka(journey: Journey, service: Service) -> None:
    journey.add([f"key-{n}" for n in range(2 * LOST)])
    journey.send()
    journey.receive()
    ids = lost_and_brought_back(journey, service)
    with journey.inbox() as child:
        applied(journey, child, len(ids))
    assert effects(journey) == dict.fromkeys(ids, 1)


@pytest.mark.full
def test_the_same_while_the_brokers_are_down(
    journey: Journey, service: Service, cluster: LocalCluster
) -> None:
    journey.add([f"key-{n}" for n in range(2 * LOST)])
    journey.send()
    with journey.inbox() as child:
        applied(journey, child, 2 * LOST)
        for broker in cluster.brokers:
            broker.kill()
        try:
            ids = lost_and_brought_back(journey, service)
            applied(journey, child, len(ids))
        finally:
            for broker in cluster.brokers:
                broker.start(wait=False)
            for broker in cluster.brokers:
                broker.start()
    assert effects(journey) == dict.fromkeys(ids, 1)
