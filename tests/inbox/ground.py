"""A consumer's database with accounts in it, a topic with transfers, and inboxes for them as child processes.

What is compared is read by plain SQL and a plain consumer: nothing under test is used.
"""

from __future__ import annotations

import dataclasses
import json
import random
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from confluent_kafka import Producer, TopicPartition

from tallymark.message import new_id
from tests import journal
from tests.children import Child, start_child
from tests.leaders import wait_for_markers
from tests.waiting import wait_for

ACCOUNTS = 12
TABLES = """
create table account (id text primary key, balance bigint not null default 0);
create table effect (seq bigserial, message_id text, account text, n bigint, amount bigint);
create table ledger_entry (id bigint primary key);
create table parent (id bigint primary key);
create table child (parent bigint references parent deferrable initially deferred);
create table switch (fixed boolean not null);
insert into switch values (false);
"""


@dataclasses.dataclass(frozen=True, slots=True)
class Verdict:
    """How the log and what was applied of it differ."""

    expected: int
    missing: frozenset[str]
    doubled: Counter[str]
    reordered: tuple[str, ...]
    strangers: frozenset[str]
    balances_differ: tuple[str, ...]

    @property
    def is_clean(self) -> bool:
        return not (self.missing or self.doubled or self.reordered or self.strangers or self.balances_differ)


@dataclasses.dataclass
class Ground:
    """Where one test stands."""

    url: str
    servers: str
    topic: str
    name: str = "ledger"
    sent: int = 0
    more_topics: list[str] = dataclasses.field(default_factory=list)

    # Producing, in Kafka transactions as the relay does: markers stand between the messages.

    def send(
        self,
        count: int,
        *,
        accounts: int = ACCOUNTS,
        account: str | None = None,
        do: str | None = None,
        transaction: int = 50,
        id: str | None = None,
    ) -> list[str]:
        """Produce transfers; gives back their ids."""
        values = []
        for _ in range(count):
            self.sent += 1
            values.append(
                {
                    "n": self.sent,
                    # In turn: by chance a partition may stay empty.
                    "account": account or f"account-{self.sent % accounts}",
                    "amount": random.randrange(1, 100),  # noqa: S311
                    **({"do": do} if do else {}),
                }
            )
        return self.send_values(values, transaction=transaction, id=id)

    def send_values(
        self, values: Sequence[Mapping[str, Any]], *, transaction: int = 50, id: str | None = None
    ) -> list[str]:
        ids = [id or str(new_id()) for _ in values]
        records = [
            (value["account"].encode(), json.dumps(value).encode(), headers(each))
            for value, each in zip(values, ids, strict=True)
        ]
        self.send_raw(records, transaction=transaction)
        return ids

    def send_raw(
        self,
        records: Iterable[tuple[bytes | None, bytes | None, list[tuple[str, bytes]] | None]],
        *,
        transaction: int = 50,
        topic: str | None = None,
        partition: int | None = None,
    ) -> None:
        producer = Producer(
            {
                "bootstrap.servers": self.servers,
                "transactional.id": str(new_id()),
                "partitioner": "murmur2_random",
                "retry.backoff.ms": 10,
                "log_level": 0,
            }
        )
        producer.init_transactions(30)
        pending = list(records)
        where: Any = {} if partition is None else {"partition": partition}
        for start in range(0, len(pending), transaction):
            producer.begin_transaction()
            for key, value, carried in pending[start : start + transaction]:
                producer.produce(
                    topic or self.topic, value=value, key=key, headers=list(carried or ()), **where
                )
            producer.commit_transaction(30)
        wait_for_markers(self.servers, topic or self.topic)

    # Looking

    def query(self, sql: str, *parameters: Any) -> list[tuple[Any, ...]]:
        return journal.query(self.url, sql, parameters)

    def value(self, sql: str, *parameters: Any) -> Any:
        return journal.value(self.url, sql, parameters)

    def log(self, *topics: str) -> list[journal.LogRecord]:
        return journal.log_records(self.servers, topics or (self.topic, *self.more_topics))

    def applied(self) -> int:
        return int(self.value("select count(*) from effect"))

    def positions(self) -> dict[int, int]:
        return dict(
            self.query(
                "select partition, next_offset from tallymark.positions where consumer = %s and topic = %s",
                self.name,
                self.topic,
            )
        )

    def compare(self, *, without: Iterable[str] = ()) -> Verdict:
        """The log and the effects, by id; the order within each account; the balances, to the cent."""
        left_out = set(without)
        expected: dict[str, dict[str, Any]] = {}
        for record in self.log():
            if record.id not in left_out and record.value is not None:
                expected.setdefault(record.id, json.loads(record.value))
        effects = self.query("select message_id, account, n, amount from effect order by seq")
        seen = Counter(row[0] for row in effects)
        highest: dict[str, int] = {}
        reordered = []
        for id_, account, n, _ in effects:
            if n < highest.get(account, 0):
                reordered.append(id_)
            highest[account] = max(n, highest.get(account, 0))
        sums: Counter[str] = Counter()
        for value in expected.values():
            sums[value["account"]] += value["amount"]
        balances = dict(self.query("select id, balance from account"))
        return Verdict(
            expected=len(expected),
            missing=frozenset(expected.keys() - seen.keys()),
            doubled=Counter({id_: count - 1 for id_, count in seen.items() if count > 1}),
            reordered=tuple(reordered),
            strangers=frozenset(seen.keys() - expected.keys()),
            balances_differ=tuple(
                account for account, balance in balances.items() if balance != sums[account]
            ),
        )

    # Running

    def inbox(
        self,
        *arguments: str,
        crash_point: str | None = None,
        batch_messages: int = 40,
        lease_seconds: float = 2.0,
        settings: Mapping[str, str] | None = None,
        url: str | None = None,
        **options: Any,
    ) -> Child:
        """`tallymark inbox run` as a child: use it with `with`, and it is gone at the end."""
        chosen = {"name": self.name, "topics": [self.topic, *self.more_topics], "url": self.url, **options}
        return start_child(
            [
                *("-m", "tallymark", "inbox", "run", "tests.inbox.app:inbox"),
                *("--database", url or self.url, "--bootstrap-servers", self.servers, *arguments),
            ],
            crash_point=crash_point,
            environment={
                "APP_OPTIONS": json.dumps(chosen),
                "TALLYMARK_INBOX__BATCH_MESSAGES": str(batch_messages),
                "TALLYMARK_INBOX__LEASE_SECONDS": str(lease_seconds),
                "TALLYMARK_INBOX__SESSION_TIMEOUT": "6s",
                **(settings or {}),
            },
        )

    def wait_applied(self, count: int, *children: Child, within: float = 60.0) -> None:
        """Until so many effects are there; at once an error where a child has died."""
        try:
            wait_for(
                lambda: self.applied() >= count or not all(child.is_alive() for child in children),
                within=within,
                what=f"{count} effects",
            )
        except AssertionError as late:
            wrote = "\n".join(child.output for child in children)
            raise AssertionError(f"{late}; there are {self.applied()}. They wrote:\n{wrote}") from None
        for child in children:
            assert child.is_alive(), child.output

    def apply_all(self, count: int, *, within: float = 60.0, **options: Any) -> str:
        """An inbox until so many effects are there, ended in good order; gives back what it wrote."""
        with self.inbox(**options) as child:
            self.wait_applied(count, child, within=within)
            child.terminate()
            assert child.wait() == 0, child.output
            return child.output


def headers(id: str, source: str = "/bank") -> list[tuple[str, bytes]]:
    """What the relay puts on a message."""
    return [
        ("ce_specversion", b"1.0"),
        ("ce_source", source.encode()),
        ("ce_type", b"transfer"),
        ("content-type", b"application/json"),
        ("ce_id", id.encode()),
        ("tm_position", b"1"),
    ]


def ends(servers: str, topic: str, partitions: int) -> dict[int, int]:
    """The log's ends, as a plain consumer sees them."""
    from confluent_kafka import Consumer

    consumer = Consumer({"bootstrap.servers": servers, "group.id": "ends", "log_level": 0})
    try:
        return {
            each: consumer.get_watermark_offsets(TopicPartition(topic, each), timeout=30)[1]
            for each in range(partitions)
        }
    finally:
        consumer.close()
