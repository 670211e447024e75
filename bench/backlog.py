"""An outbox with rows waiting to be sent: filled once, rewound between repetitions.

A rewound outbox has a new identity, so that neither receipts nor transactional ids of an earlier repetition are met.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import psycopg

from bench.payloads import payloads
from tallymark.errors import Problem
from tallymark.outbox.outbox import Draft, Outbox
from tallymark.store.postgres.migrations import migrate
from tallymark.store.postgres.writer import PostgresWriter

SOURCE = "/bench"
TYPE = "transfer.made"
# Made one by one; a larger backlog repeats them, at a distance that no compression sees.
_DISTINCT = 100_000
_PIECE = 10_000


@dataclass(frozen=True)
class Drained:
    """What the batch rows say of a drain: `count` messages in `seconds`, from one batch's mark to the last's."""

    count: int
    seconds: float
    first_claim: float
    batches: int


class Backlog:
    """One outbox in a database of its own, all of its rows for one topic."""

    def __init__(self, url: str, topic: str, count: int) -> None:
        self.url = url
        self.count = count
        migrate(url, partition_rows=10_000_000, partitions_ahead=2)
        outbox = Outbox(SOURCE, writer=PostgresWriter())
        with psycopg.connect(url) as connection:
            drafts = [
                Draft(topic, one.value, key=one.key, type=TYPE) for one in payloads(min(count, _DISTINCT))
            ]
            for start in range(0, len(drafts), _PIECE):
                outbox.add_many(connection, drafts[start : start + _PIECE])
            while (have := len(drafts)) < count:
                more = min(_DISTINCT, count - have)
                connection.execute(
                    "insert into tallymark.outbox (id, topic, key, value, headers) "
                    "select tallymark.new_id(), topic, key, value, headers from tallymark.outbox "
                    "where position <= %s order by position",
                    [more],
                )
                drafts += drafts[:more]
            connection.commit()
            connection.autocommit = True
            connection.execute("vacuum analyze tallymark.outbox")

    def rewind(self, lanes: int, *, covered: int = 0) -> None:
        """As if nothing above `covered` had ever been sent, by nobody."""
        with psycopg.connect(self.url) as connection:
            connection.execute(
                "truncate tallymark.batches, tallymark.relays, tallymark.topics, tallymark.lanes"
            )
            connection.execute(
                "update tallymark.outbox_identity set lanes = %s, outbox_id = gen_random_uuid(), "
                "receipts_topic_id = null",
                [lanes],
            )
            connection.execute(
                "insert into tallymark.lanes (lane, covered) select n, %s from generate_series(0, %s - 1) n",
                [covered, lanes],
            )

    def set_sequence(self, last: int) -> None:
        """The relay reads up to the sequence's value: rows above it are as if not yet written."""
        with psycopg.connect(self.url) as connection:
            connection.execute(
                "select setval('tallymark.outbox_position', greatest(%s, 1), %s)", [last, last > 0]
            )

    def last_position(self) -> int:
        return int(self._one("select last_value - (not is_called)::int from tallymark.outbox_position"))

    def receipts_topic(self) -> str:
        """Where its relay keeps receipts: of no more use once the outbox is rewound."""
        return f"tallymark.receipts.{self._one('select outbox_id::text from tallymark.outbox_identity')}"

    def sent(self) -> int:
        return int(self._one("select sum(sent) from tallymark.lanes"))

    def owned(self) -> bool:
        """Whether every lane has an owner that is ready to send."""
        # Without transactions there is no receipt to wait for.
        return bool(
            self._one(
                "select bool_and(owner is not null and (receipt_number is not null or "
                "exists (select from tallymark.relays where mode <> 'transactional'))) from tallymark.lanes"
            )
        )

    def drained(self, *, after: int = 1, first: int | None = None) -> Drained:
        """Of everything that followed `after` batches, up to the last or to the first so many messages."""
        with psycopg.connect(self.url) as connection:
            rows = connection.execute(
                "select extract(epoch from claimed_at)::float, extract(epoch from sent_at)::float, messages "
                "from tallymark.batches where kind = 'range' and state = 'sent' order by sent_at"
            ).fetchall()
        if first is not None:
            totals = accumulate(row[2] for row in rows)
            rows = [row for row, total in zip(rows, totals, strict=True) if total <= first]
        if len(rows) <= after:
            raise Problem(f"{len(rows)} batches give no rate")
        return Drained(
            count=sum(row[2] for row in rows[after:]),
            seconds=rows[-1][1] - rows[after - 1][1],
            first_claim=min(row[0] for row in rows),
            batches=len(rows),
        )

    def _one(self, query: str) -> Any:
        with psycopg.connect(self.url) as connection:
            row = connection.execute(query).fetchone()
        assert row is not None
        return row[0] or 0


def now() -> float:
    """The clock that the database's timestamps are read against: the same machine's."""
    return time.time()
