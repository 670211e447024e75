"""A consumer's database: Tallymark's tables, accounts that handlers write to, and the bare loop's tables beside them.

The bare loop's inbox has the same columns and the same primary key, and is not cut into partitions: the quicker of the
two. Both sides' times are read from these tables by the same query: from the beginning of the first batch's transaction
to the last move of a position.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import psycopg

from bench.filled import key_of
from bench.payloads import KEYS
from tallymark.lifecycle import Role
from tallymark.store.postgres.migrations import migrate

SLOW = key_of(KEYS // 2).decode()

_TABLES = """
create table account (id text primary key, balance bigint not null default 0, applied bigint not null default 0)
       with (fillfactor = 50);
create table effect (seq bigint generated always as identity primary key, id uuid not null);
create schema bare;
create table bare.inbox (like tallymark.inbox including all);
create table bare.positions (consumer text, topic text, partition integer, next_offset bigint not null,
       changed_at timestamptz not null default clock_timestamp(), primary key (consumer, topic, partition));
"""


@dataclass(frozen=True)
class Span:
    """When keeping began and ended, in seconds of the machine's clock, and how many messages it kept."""

    began: float
    ended: float
    count: int

    @property
    def seconds(self) -> float:
        return self.ended - self.began


class Ledger:
    """One consumer's database."""

    def __init__(self, url: str) -> None:
        self.url = url
        migrate(url, role=Role.CONSUMER)
        # One for all looks: a new session costs the server more than a hundred messages do.
        self._connection = psycopg.connect(url, autocommit=True)
        self._connection.execute(_TABLES)
        self.reset()

    def reset(self) -> None:
        """As if nothing had ever come, by nobody."""
        self._connection.execute(
            "truncate tallymark.inbox, tallymark.applications, tallymark.queue, tallymark.positions, "
            "tallymark.consumers, tallymark.instances, tallymark.dead_letters, "
            "bare.inbox, bare.positions, account, effect"
        )
        self._connection.execute(
            "insert into account (id) select 'account-' || lpad(n::text, 4, '0') from generate_series(0, %s) n",
            [KEYS - 1],
        )
        self._connection.execute("vacuum analyze account")
        self._connection.execute("checkpoint")  # now, and not while somebody is measured

    def kept(self) -> int:
        return int(self._one("select coalesce(sum(kept), 0)::bigint from tallymark.positions"))

    def owned(self, partitions: int, owners: int) -> bool:
        """Whether so many processes share all partitions evenly."""
        return bool(
            self._one(
                "select count(*) = %s and bool_and(each * %s = %s) from "
                "(select count(*) as each from tallymark.positions where owner is not null group by owner) p",
                owners,
                owners,
                partitions,
            )
        )

    def applied(self, *, without: str = "") -> int:
        """Messages that handlers counted in the accounts."""
        return int(self._one("select sum(applied)::bigint from account where id <> %s", without))

    def span(self, schema: str = "tallymark") -> Span:
        return self._span(
            f"select (select min(kept_at) from {schema}.inbox), (select max(changed_at) from {schema}.positions), "
            f"(select count(*) from {schema}.inbox)"
        )

    def span_applied(self, *, without: str) -> Span:
        """From the first message kept to the last applied, leaving out those of one account."""
        return self._span(
            "select (select min(kept_at) from tallymark.inbox), max(a.applied_at), count(*) "
            "from tallymark.applications a join tallymark.inbox i using (id, source, consumer) "
            f"where i.key <> '{without}'::bytea"
        )

    def _span(self, query: str) -> Span:
        began, ended, count = self._row(
            f"select extract(epoch from a)::float, extract(epoch from b)::float, c from ({query}) s(a, b, c)"
        )
        return Span(began, ended, count)

    def _one(self, query: str, *parameters: Any) -> Any:
        return self._row(query, *parameters)[0]

    def _row(self, query: str, *parameters: Any) -> tuple[Any, ...]:
        row = self._connection.execute(query, parameters).fetchone()
        assert row is not None
        return row
