"""Which positions a run looks at, and from where on it reads the log for them. No Spark: only what is asked of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from tallymark.broker.reach import admin_client
from tallymark.pipeline.reconcileground import TallyConfig, look
from tallymark.pipeline.reconcilerange import choose_range
from tallymark.pipeline.reconcilesources import LiveLog, Sources
from tallymark.store.postgres.inboxoperators import InboxOperators
from tallymark.store.postgres.migrations import migrate
from tallymark.tally.records import Place
from tests import journal
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


def test_certificates_may_name_one_that_was_retired_by_its_name_or_with_its_database(
    journey: Journey, database: str
) -> None:
    journey.add(["alice"])
    journey.send()
    journey.receive()
    name, client = journey.ledger.name, {"bootstrap.servers": journey.bank.servers}
    inboxes = {"ledger": journey.ledger.url, "other": database}
    sources = Sources({"bank": journey.bank.url}, inboxes, client, admin_client(client))
    migrate(database)

    def looked() -> tuple[set[str], frozenset[str]]:
        ground = look(sources, "bank", TallyConfig())
        return set(ground.consumers), ground.retired

    assert looked() == ({name}, frozenset())
    journal.query(
        database,
        "insert into tallymark.consumers (name, topics, mode) values (%s, %s, 'inline')",
        [name, [journey.bank.topic]],
    )
    assert looked() == ({f"ledger/{name}", f"other/{name}"}, frozenset())
    InboxOperators(journey.ledger.url).retire(name, who="ann", reason="moved")
    # The other one is known as before.
    assert looked() == ({f"other/{name}"}, frozenset({name, f"ledger/{name}"}))
    journal.query(database, "update tallymark.consumers set topics = '{others}'")
    assert looked() == (set(), frozenset({name, f"ledger/{name}", f"other/{name}"}))


@dataclass(frozen=True)
class Meanwhile(LiveLog):
    """A log whose ends are asked for; before anybody asks for anything else, a relay has sent what was parked."""

    database: str = ""

    def bounds(self, topics: Sequence[str]) -> dict[Place, tuple[int, int]]:
        found = super().bounds(topics)
        journal.query(self.database, "update tallymark.parked set state = 'sent', retry_batch = 2")
        return found


@dataclass(frozen=True)
class MeanwhileSources(Sources):
    @property
    def log(self) -> Meanwhile:
        return Meanwhile(self.client, self.admin, database=self.producers["bank"])


def test_what_was_parked_is_read_before_the_ends_of_the_log(database: str, bootstrap_servers: str) -> None:
    """Sent behind them, it would seem lost: a batch covers it, and the log that is read lacks it."""
    migrate(database)
    journal.query(
        database,
        "insert into tallymark.parked (position, id, slot, topic, headers, created_at, state, reason, batch)"
        " values (1, '0199f1f0-0000-7000-8000-000000000001', 0, 't', '{}', now(), 'failed', '', 1)",
    )
    journal.query(database, "select setval('tallymark.outbox_position', 5)")
    client = {"bootstrap.servers": bootstrap_servers}
    sources = MeanwhileSources({"bank": database}, {}, client, admin_client(client))
    config = TallyConfig()
    ground = look(sources, "bank", config)
    choose_range(ground, sources, config)
    assert [row.state for row in ground.parked] == ["failed"]


@dataclass(frozen=True)
class Growing(LiveLog):
    """A log that grows between its ends and the moment that is asked for: what was logged then lies behind them."""

    def at_time(self, places: Sequence[Place], moment_ms: int) -> dict[Place, int]:
        return dict.fromkeys(super().at_time(places, moment_ms), 1000)


@dataclass(frozen=True)
class GrowingSources(Sources):
    @property
    def log(self) -> Growing:
        return Growing(self.client, self.admin)


def test_since_reads_no_further_than_to_the_ends_that_were_asked_for_before(journey: Journey) -> None:
    """Else the log would seem to have been cut back."""
    journey.add(["alice"])
    journey.send()
    client = {"bootstrap.servers": journey.bank.servers}
    sources = GrowingSources({"bank": journey.bank.url}, {}, client, admin_client(client))
    config = TallyConfig(since=datetime.now(UTC) - timedelta(days=1))
    ground = look(sources, "bank", config)
    choose_range(ground, sources, config)
    assert ground.read_from == ground.ends
