"""A database with messages in every state, and `tallymark serve` over it as a child process.

The tables are filled by plain SQL, as relay and inbox would have left them: what is asked of the service is compared
with what was put there, not with what it says itself.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

import httpx
import psycopg

from tallymark.lifecycle import Role, TokenRole
from tallymark.store.postgres.migrations import migrate
from tallymark.store.postgres.tokens import Tokens
from tests.children import Child, start_child
from tests.waiting import wait_for

ROWS = 6_000
SENT = 5_000
SENDING = 5_500
FAILED, WAITING, DISCARDED = 41, 83, 125
DEAD = 7

FILL = f"""
insert into tallymark.outbox (id, topic, key, value, headers)
select tallymark.new_id(), case when n % 10 = 0 then 'notes' else 'transfers' end,
       -- Those that are sent again have keys of their own: nothing later of them is on its way.
       convert_to(case when n between {SENT} - 9 and {SENT} then 'own-' || n else 'key-' || (n % 42) end, 'utf8'),
       case when n % 100 = 99 then null else convert_to('{{"n":' || n || '}}', 'utf8') end,
       json_build_object('ce_source', '/bank', 'ce_type', 'transfer', 'content-type', 'application/json')
  from generate_series(1, {ROWS}) n;
-- Spread over the last hour, in order: as if they had been added then.
update tallymark.outbox set created_at = now() - interval '1 hour' + position * interval '0.5 s';
insert into tallymark.batches (covered, lane, number, token, kind, after_position, upto, messages, mode, state, owner,
                               epoch, receipt_offset, claimed_at, sent_at)
select b * 500, 0, b, gen_random_uuid(), 'range', (b - 1) * 500, b * 500, 500, 'transactional',
       case when b * 500 <= {SENT} then 'sent' else 'sending' end, 'relay-1', 1, b, now(),
       case when b * 500 <= {SENT} then now() end
  from generate_series(1, {SENDING} / 500) b;
update tallymark.lanes set covered = {SENDING}, last_number = {SENDING} / 500, epoch = 1;
insert into tallymark.parked (position, id, slot, topic, key, value, headers, partition, created_at, state, reason,
                              batch)
select position, id, slot, topic, key, value, headers, partition, created_at,
       case position when {FAILED} then 'failed' when {WAITING} then 'waiting' else 'discarded' end, 'too large', 1
  from tallymark.outbox where position in ({FAILED}, {WAITING}, {DISCARDED});
insert into tallymark.delayed (id, due_at, topic, key, value)
select tallymark.new_id(), now() + n * interval '1 day', 'transfers', 'later', 'x' from generate_series(1, 5) n;

insert into tallymark.consumers (name, topics, mode) values ('ledger', '{{transfers}}', 'inline');
insert into tallymark.positions (consumer, topic, partition, next_offset, epoch, logged_at, kept)
values ('ledger', 'transfers', 0, 4000, 3, now(), 4000);
insert into tallymark.inbox (id, source, topic, partition, "offset", position, key, value, headers, logged_at, consumer)
select id, '/bank', topic, 0, position, position, key, value, headers, created_at, 'ledger'
  from tallymark.outbox where position <= 4000 and topic = 'transfers';
insert into tallymark.applications (id, source, consumer, topic, partition, "offset", attempt, outcome)
select id, source, consumer, topic, partition, "offset", 1, 'applied'
  from tallymark.inbox where position > {DEAD * 3} order by position;
insert into tallymark.dead_letters (consumer, source, id, topic, partition, "offset", position, key, value, headers,
                                    state, reason, attempts)
select 'ledger', source, id, topic, partition, "offset", position, key, value, headers, 'dead', 'ValueError: no', 5
  from tallymark.inbox where position <= {DEAD * 3} and position % 3 = 1 order by position;
insert into tallymark.queue (consumer, key_hash, source, id, topic, partition, "offset", attempts, state, due_at, reason)
select 'ledger', position - 5, source, id, topic, partition, "offset", 2, 'retrying', now() + interval '1 day', 'busy'
  from tallymark.inbox where position <= {DEAD * 3} and position % 3 = 2 order by position;
insert into tallymark.findings (id, verdict, consumer, stage, topic, position, evidence, run, over_at)
select id::text, case when position % 2 = 0 then 'lost-in-inbox' else 'late' end, 'ledger', 'inbox', topic, position,
       'the position has passed it', '01941f29-7c00-7000-8000-0123456789ab', case when position > 4010 then now() end
  from tallymark.outbox where position between 4001 and 4015;
insert into tallymark.certificates (number, window_start, window_end, statement, previous, hash)
select n, n * 1000, n * 1000 + 1000, 'all is well', repeat('0', 64), encode(sha256(n::text::bytea), 'hex')
  from generate_series(1, 4) n;
insert into tallymark.tallies (run, who, from_position, to_position, summary)
values ('01941f29-7c00-7000-8000-0123456789ab', 'alice', 1, 5000, '{{"delivered": 4000}}');
insert into tallymark.audit (who, action, subject, reason) select 'alice', 'relay.pause', 'lane ' || n, 'because'
  from generate_series(1, 30) n;
"""


@dataclass
class Service:
    """A running `tallymark serve`, and a token for each role."""

    child: Child
    url: str
    database: str
    tokens: dict[TokenRole, str] = field(default_factory=dict)

    def headers(self, role: TokenRole | None) -> dict[str, str]:
        return {} if role is None else {"Authorization": f"Bearer {self.tokens[role]}"}

    def get(self, path: str, role: TokenRole | None = TokenRole.VIEWER, /, **query: Any) -> httpx.Response:
        return httpx.get(self.url + path, params=query, headers=self.headers(role), timeout=30)

    def post(
        self,
        path: str,
        role: TokenRole | None = TokenRole.OPERATOR,
        *,
        reason: str = "a test",
        key: str | None = None,
    ) -> httpx.Response:
        headers = {**self.headers(role), **({"Idempotency-Key": key} if key else {})}
        return httpx.post(self.url + path, json={"reason": reason}, headers=headers, timeout=30)

    def query(self, sql: str, *parameters: Any) -> list[tuple[Any, ...]]:
        with psycopg.connect(self.database) as connection:
            cursor = connection.execute(sql, parameters or None)
            return cursor.fetchall() if cursor.description else []

    def reset(self) -> None:
        """As it was when it was filled, whatever actions have changed."""
        with psycopg.connect(self.database) as connection:
            connection.execute(RESET.encode())

    def send_all(self) -> None:
        """As if a relay had sent everything."""
        with psycopg.connect(self.database) as connection:
            connection.execute(ALL_SENT.encode())

    def value(self, sql: str, *parameters: Any) -> Any:
        return self.query(sql, *parameters)[0][0]

    def id_at(self, position: int) -> str:
        return str(self.value("select id::text from tallymark.outbox where position = %s", position))


RESET = f"""
delete from tallymark.audit where who like 'token %';
truncate tallymark.api_actions;
update tallymark.lanes set paused = false;
update tallymark.consumers set paused = false;
update tallymark.parked set changed_at = now(),
       state = case position when {FAILED} then 'failed' when {WAITING} then 'waiting' else 'discarded' end;
update tallymark.dead_letters set state = 'dead', seq = null, key_hash = null;
delete from tallymark.queue q using tallymark.dead_letters d where q.id = d.id;
delete from tallymark.outbox where position > {ROWS};
truncate tallymark.resends;
update tallymark.lanes set covered = {SENDING};
update tallymark.batches set state = 'sending', sent_at = null where covered > {SENT};
"""
ALL_SENT = """
update tallymark.batches set state = 'sent', sent_at = now() where state = 'sending';
update tallymark.lanes set covered = (select max(position) from tallymark.outbox);
"""
# Forty thousand messages of 2 kB: more than all buffers on the way together.
LARGE = """
insert into tallymark.outbox (id, topic, key, value)
select tallymark.new_id(), 'large', 'k', convert_to(repeat(md5(n::text), 64), 'utf8') from generate_series(1, 40000) n;
update tallymark.lanes set covered = (select max(position) from tallymark.outbox);
"""


def large(database: str) -> None:
    """A database with nothing but large messages."""
    migrate(database, role=Role.BOTH, lanes=1)
    with psycopg.connect(database) as connection:
        connection.execute(LARGE.encode())


def filled(database: str) -> None:
    """Make the schema, and fill it."""
    migrate(database, role=Role.BOTH, lanes=1)
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute(FILL.encode())
        connection.execute("analyze")


def serve(
    database: str,
    *arguments: str,
    crash_point: str | None = None,
    bootstrap_servers: str | None = None,
    tokens_by: str | None = None,
    suffix: str = "",
) -> Service:
    """Start it, with a token for each role; the caller ends the child.

    `tokens_by` may make tokens, where `database` may not. A `suffix` leaves those of another service alone.
    """
    kafka = ["--bootstrap-servers", bootstrap_servers] if bootstrap_servers else []
    child = start_child(
        ["-m", "tallymark", "serve", "--database", database, "--port", "0", *kafka, *arguments],
        crash_point=crash_point,
    )
    found = wait_for(
        lambda: re.search(r"serving on (\S+)", child.output) or not child.is_alive(),
        what="the service serves",
    )
    assert isinstance(found, re.Match), child.output
    made = Tokens(tokens_by or database)
    names = {role: f"{role}{suffix}" for role in TokenRole}
    for token in made.all():
        if token.revoked_at is None and token.name in names.values():
            made.revoke(token.name, who="tests")
    tokens = {role: made.create(name, role, who="tests")[0] for role, name in names.items()}
    return Service(child, f"http://{found.group(1)}", database, tokens)
