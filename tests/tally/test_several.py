"""Several outboxes and several consumers' databases in one run, and runs that look at a part of it."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from tallymark.broker.reach import admin_client
from tallymark.pipeline.reconcilesources import Sources
from tallymark.store.postgres.findings import Findings
from tests.inbox.conftest import MakeInboxGround
from tests.inbox.ground import Ground as InboxGround
from tests.relay.conftest import MakeGround
from tests.tally.ground import Journey, named
from tests.tally.test_snapshots import tallied


@pytest.mark.full
def test_several_outboxes_and_consumers_in_one_run(
    spark: Any, make_ground: MakeGround, make_inbox_ground: MakeInboxGround
) -> None:
    bank, shop = (make_ground(partition_rows=1_000_000) for _ in range(2))

    def reader(of: Any) -> Journey:
        return Journey(of, make_inbox_ground(like=InboxGround("", of.servers, of.topic)))

    ledger, audit, sales = reader(bank), reader(bank), reader(shop)
    client = {"bootstrap.servers": bank.servers}
    databases = {"ledger": ledger.ledger.url, "audit": audit.ledger.url, "sales": sales.ledger.url}
    sources = Sources({"bank": bank.url, "shop": shop.url}, databases, client, admin_client(client))

    ids = ledger.add([f"key-{n % 20}" for n in range(300)])
    noon = datetime.now(UTC)
    later = ledger.add([f"key-{n % 20}" for n in range(100)])
    sold = sales.add([f"key-{n % 20}" for n in range(300)])
    for each in (ledger, sales):
        each.send()
    for each in (ledger, audit, sales):
        each.receive()
    # One that the audit has, and the log has no more: neither sent it, and both lanes have passed it.
    (gone,) = ledger.add(["gone"])
    ledger.on_bank("update tallymark.lanes set covered = (select max(position) from tallymark.outbox)")
    ((position,),) = ledger.on_bank("select position from tallymark.outbox where id = %s", gone)
    audit.on_ledger(
        'insert into tallymark.inbox (id, source, topic, partition, "offset", position, key, value, consumer)'
        " values (%s, '/bank', %s, 0, 1, %s, 'gone', 'x', %s)",
        *(gone, bank.topic, position, audit.ledger.name),
    )
    for where, id_ in ((audit, ids[10]), (ledger, later[10]), (sales, sold[10])):
        where.on_ledger("delete from tallymark.inbox where id = %s", id_)
    shop.query("delete from tallymark.outbox where id = %s", sold[20])

    lost_in_log = (gone, "", "lost-in-log", "log")
    by_audit = (ids[10], audit.ledger.name, "lost-in-inbox", "inbox")
    by_ledger = (later[10], ledger.ledger.name, "lost-in-inbox", "inbox")
    phantom = (sold[20], "", "phantom", "log")
    of_shop = {(sold[10], sales.ledger.name, "lost-in-inbox", "inbox"), phantom}
    unlike = {(gone, audit.ledger.name, "altered", "inbox"), (gone, audit.ledger.name, "unapplied", "apply")}

    def found(**options: Any) -> set[tuple[str, str, str, str]]:
        return named(tallied(spark, sources, **options).as_json()["findings"]) - unlike

    assert found(keep=True) == {lost_in_log, by_audit, by_ledger} | of_shop
    # Kept beside the outbox that they speak of.
    assert {each.finding.id for each in Findings(shop.url).listed()} == {sold[10], sold[20]}
    assert found(topics=(shop.topic,)) == of_shop
    # What the audit has was in the log: the ledger's own run knows that, and closes nothing of others.
    assert found(consumers=(ledger.ledger.name,), keep=True) == {lost_in_log, by_ledger, phantom}
    listed = {(each.finding.id, each.finding.verdict.value) for each in Findings(bank.url).listed()}
    assert {(gone, "lost-in-log"), (ids[10], "lost-in-inbox"), (later[10], "lost-in-inbox")} <= listed
    assert (gone, "lost-in-relay") not in listed
    assert found(until=noon, topics=(bank.topic,)) == {by_audit}
    # Nor does a run that was not given the audit's database: it says whom it knows and did not ask.
    alone = Sources({"bank": bank.url}, {"ledger": ledger.ledger.url}, client, admin_client(client))
    said = tallied(spark, alone, keep=True).remarks
    assert any(each.startswith(f"{audit.ledger.name} was not asked") for each in said), said
    listed = {(each.finding.id, each.finding.verdict.value) for each in Findings(bank.url).listed()}
    # Only the audit could say that the lost one had been in the log.
    assert {(gone, "lost-in-relay"), (ids[10], "lost-in-inbox"), (later[10], "lost-in-inbox")} <= listed
