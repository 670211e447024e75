"""P6 by chance: random sabotage on real parts. What was done is found, and nothing else: precision and recall are 1."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest

from tallymark.broker.kafka import AdminClient
from tallymark.message import new_id
from tallymark.pipeline.reconcile import Tally
from tallymark.pipeline.reconcileground import TallyConfig
from tests.inbox.conftest import MakeInboxGround
from tests.inbox.ground import Ground as InboxGround
from tests.promises.test_p6_sabotage import Named, delete_records, produce, sources
from tests.relay.conftest import MakeGround
from tests.tally.ground import Journey, named

MESSAGES = 2_000
Fault = Callable[[Journey, str], Named]


def lose(journey: Journey, id_: str) -> Named:
    journey.on_ledger("delete from tallymark.inbox where id = %s", id_)
    journey.on_ledger("delete from tallymark.applications where id = %s", id_)
    return {(id_, journey.ledger.name, "lost-in-inbox", "inbox")}


def lose_the_row(journey: Journey, id_: str) -> Named:
    journey.on_ledger("delete from tallymark.inbox where id = %s", id_)
    return {(id_, journey.ledger.name, "lost-in-inbox", "inbox")}


def unwrite(journey: Journey, id_: str) -> Named:
    journey.on_bank("delete from tallymark.outbox where id = %s", id_)
    return {(id_, "", "phantom", "log")}


def rewrite(journey: Journey, id_: str) -> Named:
    journey.on_bank("update tallymark.outbox set value = 'another' where id = %s", id_)
    return {(id_, "", "altered", "log")}


def alter(journey: Journey, id_: str) -> Named:
    journey.on_ledger("update tallymark.inbox set key = 'another' where id = %s", id_)
    return {(id_, journey.ledger.name, "altered", "inbox")}


def unapply(journey: Journey, id_: str) -> Named:
    journey.on_ledger("delete from tallymark.applications where id = %s", id_)
    return {(id_, journey.ledger.name, "unapplied", "apply")}


def apply_again(journey: Journey, id_: str) -> Named:
    journey.on_ledger(
        'insert into tallymark.applications (id, source, consumer, topic, partition, "offset", attempt, outcome)'
        " select id, source, consumer, topic, partition, \"offset\", 1, 'applied' from tallymark.inbox where id = %s",
        id_,
    )
    return {(id_, journey.ledger.name, "applied-twice", "apply")}


def apply_late(journey: Journey, id_: str) -> Named:
    log = journey.bank.log()
    mine = next(each for each in log if each.id == id_)
    later = [each for each in log if each.key == mine.key and each.offset > mine.offset]
    if len(later) < 20:  # other faults may have taken their effects
        return set()
    journey.on_ledger(
        "update tallymark.applications set seq = nextval('tallymark.applications_seq'), applied_at = now()"
        " where id = %s",
        id_,
    )
    return {(id_, journey.ledger.name, "reordered", "apply")}


def copy(journey: Journey, id_: str) -> Named:
    record = next(each for each in journey.bank.log() if each.id == id_)
    produce(journey, record.key, record.value, list(record.headers), record.partition)
    return {(id_, "", "doubled-in-log", "log")}


def phantom(journey: Journey, id_: str) -> Named:
    record = next(each for each in journey.bank.log() if each.id == id_)
    other = str(new_id())
    headers = [(name, other.encode() if name == "ce_id" else value) for name, value in record.headers]
    produce(journey, b"nobody", record.value, headers, record.partition)
    return {(other, "", "phantom", "log")}


FAULTS: tuple[Fault, ...] = (
    lose,
    lose_the_row,
    unwrite,
    rewrite,
    alter,
    unapply,
    apply_again,
    apply_late,
    copy,
    phantom,
)
# Those that write into the log come before the consumer's last run: it must have passed them.
LOGGED = (copy, phantom)


@pytest.mark.full
@pytest.mark.timeout(600)
@pytest.mark.parametrize("seed", range(20))
def test_random_sabotage(
    spark: Any, make_ground: MakeGround, make_inbox_ground: MakeInboxGround, admin: AdminClient, seed: int
) -> None:
    chance = random.Random(seed)  # noqa: S311 - a test's own
    bank = make_ground(partition_rows=1_000_000)
    journey = Journey(bank, make_inbox_ground(like=InboxGround("", bank.servers, bank.topic)))
    ids = journey.add([f"key-{chance.randrange(40)}" for _ in range(MESSAGES)])
    journey.send()
    journey.receive()
    # What stands first in a partition may be deleted there: it is nobody else's victim.
    spared = {record.id for record in journey.bank.log()[:50]}
    victims = chance.sample([id_ for id_ in ids if id_ not in spared], 12)
    chosen = sorted((chance.choice(FAULTS) for _ in victims), key=lambda fault: fault not in LOGGED)
    expected: Named = set()
    logged = [fault for fault in chosen if fault in LOGGED]
    for fault, victim in zip(chosen, victims, strict=True):
        if fault in LOGGED:
            expected |= fault(journey, victim)
    if logged:
        journey.receive()
    for fault, victim in zip(chosen, victims, strict=True):
        if fault not in LOGGED:
            expected |= fault(journey, victim)
    if chance.random() < 0.5:
        expected |= {(id_, "", "lost-in-log", "log") for id_ in delete_records(journey, admin)}
    config = TallyConfig(keep=False, window_rows=chance.choice([100, 300, 1000]))
    report = Tally(spark, sources(journey), config).run().as_json()
    assert named(report["findings"]) == expected
