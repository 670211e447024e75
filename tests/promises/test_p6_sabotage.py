"""P6: nothing hides. Whatever somebody does to the stations by hand is found, named by id and stage, and nothing else is.

What is missing is then sent again; what cannot be mended stays, and is said.
"""

from __future__ import annotations

from typing import Any

import pytest
from confluent_kafka import Producer, TopicPartition

from tallymark.broker.kafka import AdminClient
from tallymark.broker.reach import admin_client
from tallymark.message import new_id
from tallymark.pipeline.reconcile import Tally
from tallymark.pipeline.reconcileground import TallyConfig
from tallymark.pipeline.reconcilesources import Sources
from tallymark.pipeline.reconcileverify import Verification, data, links
from tallymark.store.postgres.findings import Findings
from tallymark.tally.report import TallyReport
from tests.deleting import deleted
from tests.inbox.conftest import MakeInboxGround
from tests.inbox.ground import Ground as InboxGround
from tests.relay.conftest import MakeGround
from tests.tally.ground import Journey, named

FEW, MANY, MOST = 20_000, 200_000, 1_000_000
Named = set[tuple[str, str, str, str]]


@pytest.mark.timeout(2400)
@pytest.mark.parametrize("messages", [FEW, *(pytest.param(n, marks=pytest.mark.full) for n in (MANY, MOST))])
def test_sabotage_is_found_and_mended(
    spark: Any, make_ground: MakeGround, make_inbox_ground: MakeInboxGround, admin: AdminClient, messages: int
) -> None:
    bank = make_ground(partition_rows=1_000_000)
    journey = Journey(bank, make_inbox_ground(like=InboxGround("", bank.servers, bank.topic)))
    ledger = journey.ledger.name
    window = str(messages // 20)
    # Most keys are shared; some messages have one of their own, so that nothing later of it was applied.
    own = [f"own-{n}" for n in range(10)]
    ids = journey.add([f"key-{n % 50}" for n in range(messages - len(own))] + own)
    alone = ids[-len(own) :]
    swapped = sabotage_order(journey)
    journey.receive()

    expected: Named = {(swapped, "", "reordered", "log")}
    mendable: Named = set()
    # Inbox rows: two are lost with their effects, of the third the effect is left.
    lost, behind, applied = alone[0], ids[100], alone[1]
    for id_ in (lost, behind, applied):
        journey.on_ledger("delete from tallymark.inbox where id = %s", id_)
    for id_ in (lost, behind):
        journey.on_ledger("delete from tallymark.applications where id = %s", id_)
    expected |= {(id_, ledger, "lost-in-inbox", "inbox") for id_ in (behind, applied)}
    mendable.add((lost, ledger, "lost-in-inbox", "inbox"))
    # Outbox rows.
    for id_ in ids[200:202]:
        journey.on_bank("delete from tallymark.outbox where id = %s", id_)
        expected.add((id_, "", "phantom", "log"))
    # Contents, on both sides.
    journey.on_bank("update tallymark.outbox set value = value || '!'::bytea where id = %s", ids[300])
    expected.add((ids[300], "", "altered", "log"))
    journey.on_ledger("update tallymark.inbox set value = value || '!'::bytea where id = %s", ids[301])
    expected.add((ids[301], ledger, "altered", "inbox"))
    # An effect that was made twice.
    journey.on_ledger(
        "insert into tallymark.applications (id, source, consumer, topic, partition, attempt, outcome)"
        " select id, source, consumer, topic, partition, 1, 'applied' from tallymark.inbox where id = %s",
        ids[400],
    )
    expected.add((ids[400], ledger, "applied-twice", "apply"))
    # An effect that was made after those of later messages of its key.
    journey.on_ledger(
        "update tallymark.applications set seq = nextval('tallymark.applications_seq'), applied_at = now()"
        " where id = %s",
        ids[500],
    )
    expected.add((ids[500], ledger, "reordered", "apply"))
    # Two copies, and one that nobody has written.
    copies = [record for record in journey.bank.log() if record.id in (ids[-100], ids[-200])]
    for record in copies:
        produce(journey, record.key, record.value, list(record.headers), record.partition)
        expected.add((record.id, "", "doubled-in-log", "log"))
    phantom = str(new_id())
    headers = [(name, value) for name, value in copies[0].headers if name not in ("ce_id", "tm_position")]
    produce(journey, b"nobody", b"{}", [*headers, ("ce_id", phantom.encode()), ("tm_position", b"77")], 1)
    expected.add((phantom, "", "phantom", "log"))
    journey.receive()
    # A position that was moved on by five: whatever stands there was never kept.
    more = journey.add([f"later-{n}" for n in range(40)])
    journey.send()
    skipped = skip(journey, set(more))
    mendable |= {(id_, ledger, "lost-in-inbox", "inbox") for id_ in skipped}
    journey.receive()
    # Records that were deleted.
    deleted = delete_records(journey, admin)
    mendable |= {(id_, "", "lost-in-log", "log") for id_ in deleted}

    code, found = journey.tally("--window", window)
    assert code == 1
    assert named(found["findings"]) == expected | mendable
    assert found["missing"] == len(mendable) + 2
    assert (found["doubled"], found["reordered"], found["truncated"]) == (3, 2, False)
    assert found["certified"] > 0
    if messages >= MANY:
        # A phantom far behind and a pair the wrong way round move nobody to look at all that stands between.
        assert found["differing"] < found["windows"] / 2
    code, kept = journey.tallymark("tally", "list", *journey.databases)
    assert (code, named(kept)) == (0, expected | mendable)

    # What is missing is sent again, but for what would do harm.
    code, would = journey.tallymark("tally", "resend", "--dry-run", *journey.databases)
    code, done = journey.tallymark("tally", "resend", "--reason", "sabotage", *journey.databases)
    assert code == 1
    assert {row["id"] for row in done["resent"]} == {row["id"] for row in would["resent"]}
    assert {row["id"] for row in done["resent"]} == {id_ for id_, *_ in mendable}
    assert set(done["refused"]) == {behind, applied}
    assert "a later message of its key" in done["refused"][behind]
    assert "applied twice" in done["refused"][applied]
    journey.send()
    journey.receive()
    left = tallied(spark, journey).as_json()
    assert named(left["findings"]) == expected
    verify_certificates(spark, journey)
    # Where the handlers can take any order, that one is mended too; and nothing is sent twice.
    code, done = journey.tallymark("tally", "resend", "--any-order", behind, *journey.databases)
    assert (code, [row["id"] for row in done["resent"]]) == (0, [behind])
    effects = dict(
        journey.on_ledger(
            "select id::text, count(*) from tallymark.applications where outcome = 'applied' group by 1"
        )
    )
    assert {id_ for id_, n in effects.items() if n > 1} == {ids[400]}


def sabotage_order(journey: Journey) -> str:
    """Two of one key that come into the log the wrong way round; gives back the id that stands behind."""
    first, second = journey.add(["swap", "swap"])
    rows = journey.on_bank(
        "select id::text, position, key, value from tallymark.outbox where id = any(%s::uuid[]) order by position",
        [first, second],
    )
    for id_, position, key, value in reversed(rows):
        headers = [("ce_source", b"/bank"), ("ce_id", id_.encode()), ("tm_position", str(position).encode())]
        produce(journey, key, value, headers, 2)
    # The relay takes them for covered: they are its lane's last, and it has sent all before them.
    journey.on_bank("delete from tallymark.outbox where id = any(%s::uuid[])", [first, second])
    journey.send()
    journey.on_bank("update tallymark.lanes set covered = %s", rows[-1][1])
    for id_, position, key, value in rows:
        journey.on_bank(
            "insert into tallymark.outbox (position, id, topic, key, value, headers) values (%s, %s, %s, %s, %s, %s)",
            position,
            id_,
            journey.bank.topic,
            key,
            value,
            '{"ce_source":"/bank"}',
        )
    return str(rows[0][0])


def produce(journey: Journey, key: Any, value: Any, headers: list[Any], partition: int) -> None:
    producer = Producer({"bootstrap.servers": journey.bank.servers, "log_level": 0})
    producer.produce(journey.bank.topic, value, key, partition, headers=headers)
    assert producer.flush(30) == 0


def skip(journey: Journey, among: set[str]) -> set[str]:
    """Move one position on by five; gives back the messages that it passes over."""
    positions = journey.ledger.positions()
    ahead = [record for record in journey.bank.log() if record.offset >= positions[record.partition]]
    partition = max(positions, key=lambda p: sum(record.partition == p for record in ahead))
    upto = positions[partition] + 5
    journey.on_ledger(
        "update tallymark.positions set next_offset = %s where topic = %s and partition = %s",
        upto,
        journey.bank.topic,
        partition,
    )
    passed = {record.id for record in ahead if record.partition == partition and record.offset < upto}
    assert passed
    assert passed <= among
    return passed


def delete_records(journey: Journey, admin: AdminClient) -> set[str]:
    """DeleteRecords up to the sixth message of a partition; gives back the messages that are gone."""
    records = [record for record in journey.bank.log() if record.partition == 0]
    upto = records[5].offset
    deleted(admin, TopicPartition(journey.bank.topic, 0, upto))
    return {record.id for record in records if record.offset < upto}


def sources(journey: Journey) -> Sources:
    client = {"bootstrap.servers": journey.bank.servers}
    return Sources({"bank": journey.bank.url}, {"ledger": journey.ledger.url}, client, admin_client(client))


def tallied(spark: Any, journey: Journey) -> TallyReport:
    return Tally(spark, sources(journey), TallyConfig()).run()


def verified(spark: Any, journey: Journey) -> Verification:
    """What `tallymark tally verify` does."""
    found = Verification()
    chain = Findings(journey.bank.url).chain()
    links(chain, found)
    ground, cells = Tally(spark, sources(journey), TallyConfig(everything=True, keep=False)).digests("bank")
    data(chain, ground, cells, found)
    return found


def verify_certificates(spark: Any, journey: Journey) -> None:
    found = verified(spark, journey)
    assert found.wrong == []
    assert found.certificates == found.recomputed > 0
    # One byte of one row in a certified window, and one effect.
    ((number, start, end),) = journey.on_bank(
        "select number, window_start, window_end from tallymark.certificates order by number desc limit 1"
    )
    journey.on_bank(
        "update tallymark.outbox set value = overlay(value placing '?'::bytea from 1) where position = %s",
        start + 7,
    )
    journey.on_ledger(
        "delete from tallymark.applications where id = (select id from tallymark.inbox where position = %s)",
        start + 8,
    )
    found = verified(spark, journey)
    assert [(each["certificate"], each["window"]) for each in found.wrong] == [(number, [start, end])] * 2
    assert "the outbox holds" in found.wrong[0]["what"]
    assert f"{journey.ledger.name} has applied" in found.wrong[1]["what"]
    # One byte of a certificate: seen without any data.
    journey.on_bank(
        "update tallymark.certificates set statement = replace(statement, '\"parked\":0', '\"parked\":1')"
        " where number = 1"
    )
    code, said = journey.tallymark("tally", "verify", "--chain-only", *journey.databases)
    assert (code, [each["certificate"] for each in said["wrong"]]) == (1, [1])
