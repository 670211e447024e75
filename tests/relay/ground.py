"""An outbox in a database of its own, topics to publish into, and relays for it: as child processes or in this one."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import psycopg

from tallymark.broker.cluster import KafkaCluster
from tallymark.errors import TallymarkError
from tallymark.lifecycle import Mode
from tallymark.outbox.outbox import Draft, Outbox
from tallymark.relay.config import RelayConfig
from tallymark.relay.frontier import Frontier
from tallymark.relay.lane import Did, LaneWorker
from tallymark.store.postgres.operators import Operators
from tallymark.store.postgres.relaystore import PostgresRelayStore
from tallymark.store.postgres.writer import PostgresWriter
from tests import journal
from tests.children import Child, start_child
from tests.waiting import wait_for

KEYS = 12
# What an in-process worker uses: it looks at everything at every turn, and waits for nothing.
QUICK = RelayConfig(owner="test", lease_s=60, batch_messages=50, poll_s=0.0, refresh_s=0.0, hold_check_s=0.0)


@dataclasses.dataclass
class Ground:
    """Where one test stands."""

    url: str
    servers: str
    outbox_id: str
    topics: list[str]

    @property
    def topic(self) -> str:
        return self.topics[0]

    @property
    def receipts(self) -> str:
        return f"tallymark.receipts.{self.outbox_id}"

    @property
    def operators(self) -> Operators:
        return Operators(self.url)

    # Writing

    def add(
        self,
        count: int,
        *,
        keys: int = KEYS,
        topic: str | None = None,
        size: int = 20,
        key: str | None = None,
    ) -> list[str]:
        """Commit `count` messages in one transaction; their ids."""
        with psycopg.connect(self.url) as connection:
            return self.add_in(connection, count, keys=keys, topic=topic, size=size, key=key)

    def add_in(
        self,
        connection: Any,
        count: int,
        *,
        keys: int = KEYS,
        topic: str | None = None,
        size: int = 20,
        key: str | None = None,
    ) -> list[str]:
        """The same in the caller's transaction."""
        outbox = Outbox("/tests", writer=PostgresWriter())
        drafts = [
            Draft(topic or self.topic, os.urandom(size), key=key or f"key-{at % keys}") for at in range(count)
        ]
        return [str(id_) for id_ in outbox.add_many(connection, drafts)]

    # Looking

    def compare(self, *, after: int = 0, committed: bool = True) -> journal.Comparison:
        """Outbox and log from a position on, without what was discarded."""
        discarded = {
            row[0]
            for row in journal.query(
                self.url, "select id::text from tallymark.parked where state = 'discarded'"
            )
        }
        entries = [
            entry for entry in journal.outbox_entries(self.url, after=after) if entry.id not in discarded
        ]
        records = [record for record in self.log(committed=committed) if record.position > after]
        return journal.compare(entries, records)

    def log(self, *topics: str, committed: bool = True) -> list[journal.LogRecord]:
        return journal.log_records(self.servers, topics or self.topics, committed=committed)

    def last_position(self) -> int:
        return int(journal.value(self.url, "select coalesce(max(position), 0) from tallymark.outbox"))

    def value(self, sql: str, *parameters: Any) -> Any:
        return journal.value(self.url, sql, parameters)

    def query(self, sql: str, *parameters: Any) -> list[tuple[Any, ...]]:
        return journal.query(self.url, sql, parameters)

    def wait_sent(self, within: float = 60.0) -> None:
        journal.wait_all_sent(self.url, within=within)

    # Relays as processes

    def relay(
        self,
        *arguments: str,
        crash_point: str | None = None,
        url: str | None = None,
        lease_seconds: float = 1.0,
        batch_messages: int = 50,
        mode: str = "transactional",
        **settings: Any,
    ) -> Child:
        """`tallymark relay run` as a child: use it with `with`, and it is gone at the end."""
        chosen = {
            "lease_seconds": lease_seconds,
            "batch_messages": batch_messages,
            "mode": mode,
            **settings,
        }
        return start_child(
            [
                *("-m", "tallymark", "relay", "run", "--database", url or self.url),
                *("--bootstrap-servers", self.servers, *arguments),
            ],
            crash_point=crash_point,
            environment={f"TALLYMARK_RELAY__{name.upper()}": str(value) for name, value in chosen.items()},
        )

    def send_all(self, *, within: float = 60.0, **settings: Any) -> str:
        """A relay until everything is sent, ended in good order; gives back what it wrote."""
        with self.relay(**settings) as relay:
            wait_for(
                lambda: journal.all_sent(self.url) or not relay.is_alive(),
                within=within,
                what="everything in the outbox is sent and marked",
            )
            assert relay.is_alive(), relay.output
            relay.terminate()
            assert relay.wait() == 0, relay.output
            return relay.output

    # A lane in this process

    def kafka(self, *, accepted: Sequence[str] = ()) -> KafkaCluster:
        return KafkaCluster({"bootstrap.servers": self.servers}, accepted=accepted)

    def store(self) -> PostgresRelayStore:
        store = PostgresRelayStore(self.url, application="tests")
        store.identity()
        return store

    @contextmanager
    def worker(
        self, config: RelayConfig = QUICK, *, kafka: KafkaCluster | None = None
    ) -> Iterator[LaneWorker]:
        """A worker of the first free lane, stepped by the test."""
        kafka = kafka or self.kafka(accepted=config.accepted)
        store, ahead, looking = self.store(), self.store(), self.store()
        identity = store.identity()
        if config.mode is Mode.TRANSACTIONAL and identity.receipts_topic_id is None:
            store.record_receipts_topic(kafka.prepare_receipts(identity))
        lane = store.take(config.owner, config.lease_s)
        assert lane is not None, "no lane is free"
        worker = LaneWorker(
            lane,
            identity=store.identity(),
            store=store,
            ahead=ahead,
            kafka=kafka,
            frontier=Frontier(looking, poll_s=0.0),
            config=config,
        )
        try:
            yield worker
        finally:
            worker.close()
            looking.close()


def until_idle(worker: LaneWorker, *, steps: int = 200) -> int:
    """Step until nothing is left to send; gives back how many messages went."""
    sent = idle = 0
    for _ in range(steps):
        step = worker.run_once()
        sent += step.messages
        idle = idle + 1 if step.did is Did.IDLE else 0
        if idle == 2:  # once more: the first may have been the turn that noticed a topic put right
            return sent
    raise AssertionError(f"the lane still had something to do after {steps} steps")


def idle_in_the_end(worker: LaneWorker) -> bool:
    """Whether nothing is left to send; where something passes, it settles anew the next time, as a station does."""
    try:
        until_idle(worker)
    except TallymarkError:
        worker.reset()
        return False
    return True


def tallymark(*arguments: str) -> Child:
    """The command line as a child."""
    return start_child(["-m", "tallymark", *arguments])
