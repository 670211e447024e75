"""Which positions a run looks at, and from where on it reads the log for them. No Spark: only what is asked of it."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from tallymark.broker.reach import admin_client
from tallymark.pipeline.reconcileground import TallyConfig, choose_range, look
from tallymark.pipeline.reconcilesources import Sources
from tests.tally.ground import Journey


def test_since_reads_the_log_for_the_whole_of_its_first_window(journey: Journey) -> None:
    """The window began long before that moment: its older messages are in the log, and must not seem lost."""
    _older, newer = journey.add(["alice", "alice"])
    journey.send()
    later = datetime.now(UTC) + timedelta(days=1)
    journey.on_bank("update tallymark.outbox set created_at = %s where id = %s", later, newer)
    client = {"bootstrap.servers": journey.bank.servers}
    sources = Sources(
        {"bank": journey.bank.url}, {"ledger": journey.ledger.url}, client, admin_client(client)
    )
    config = TallyConfig(since=later - timedelta(seconds=1))
    ground = look(sources, "bank", config)
    choose_range(ground, sources, config)
    assert ground.first == 0
    assert ground.read_from == ground.starts
