"""dedup_key, serialize_key, deliver_after; the SQL function and triggers; a key's slot."""

from __future__ import annotations

import hashlib
import threading
import uuid
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest

from tallymark import Draft, MessageState, Outbox, UsageError
from tallymark.message import new_id
from tallymark.store.postgres.relaystore import PostgresRelayStore
from tests.outbox.conftest import query
from tests.outbox.test_values import NO_UUID7
from tests.waiting import wait_for

OUTBOX = Outbox("/bank")


def waits_for_a_lock(url: str, pid: int) -> bool:
    return query(url, "select wait_event_type = 'Lock' from pg_stat_activity where pid = %s", [pid]) == [
        (True,)
    ]


def test_a_dedup_key_is_refused_or_ignored_the_second_time(bank: str) -> None:
    with psycopg.connect(bank) as tx:
        first = OUTBOX.add(tx, "orders", 1, dedup_key="order 1")
        with pytest.raises(UsageError, match="dedup_key order 1 was added before"), tx.transaction():
            OUTBOX.add(tx, "orders", 2, dedup_key="order 1")
        assert OUTBOX.add(tx, "orders", 3, dedup_key="order 1", if_exists="ignore") == first
    with psycopg.connect(bank) as tx:
        assert OUTBOX.add(tx, "orders", 4, dedup_key="order 1", if_exists="ignore") == first
    assert query(bank, "select value from tallymark.outbox where topic = 'orders'") == [(b"1",)]


@pytest.mark.parametrize("end", ["commit", "rollback"])
def test_two_transactions_with_one_dedup_key(bank: str, end: str) -> None:
    """The second waits until the first has ended: only then is known whether the name is taken."""
    name = f"order {uuid.uuid4()}"
    with psycopg.connect(bank) as one, psycopg.connect(bank) as two:
        first = OUTBOX.add(one, "orders", 1, dedup_key=name)
        got: list[uuid.UUID] = []
        second = threading.Thread(
            target=lambda: got.append(OUTBOX.add(two, "orders", 2, dedup_key=name, if_exists="ignore"))
        )
        second.start()
        wait_for(lambda: waits_for_a_lock(bank, two.info.backend_pid), what="the second waits")
        getattr(one, end)()
        second.join(20)
        two.commit()
        assert (got[0] == first) is (end == "commit")
    values = query(
        bank,
        "select o.value from tallymark.outbox o join tallymark.dedup_keys d using (id) where dedup_key = %s",
        [name],
    )
    assert values == [(b"1",) if end == "commit" else (b"2",)]


def test_serialize_key_makes_the_second_transaction_of_a_key_wait(bank: str) -> None:
    """Pitfall 5: without a row to lock, positions follow commits only where the key itself is locked."""
    with psycopg.connect(bank) as one, psycopg.connect(bank) as two, psycopg.connect(bank) as other:
        first = OUTBOX.add(one, "transfers", 1, key="carol", serialize_key=True)
        OUTBOX.add(other, "transfers", 1, key="dave", serialize_key=True)  # another key does not wait
        got: list[uuid.UUID] = []
        second = threading.Thread(
            target=lambda: got.append(OUTBOX.add(two, "transfers", 2, key="carol", serialize_key=True))
        )
        second.start()
        wait_for(lambda: waits_for_a_lock(bank, two.info.backend_pid), what="the second waits")
        assert not got
        one.commit()
        second.join(20)
        two.commit()
    rows = query(
        bank, "select id from tallymark.outbox where id = any(%s) order by position", [[first, *got]]
    )
    assert rows == [(first,), (got[0],)]


@pytest.mark.parametrize(
    "after", [timedelta(seconds=-1), datetime(2020, 1, 1, tzinfo=UTC)], ids=["timedelta", "datetime"]
)
def test_deliver_after_waits_in_a_table_of_its_own_and_is_moved_when_due(
    bank: str, store: PostgresRelayStore, after: Any
) -> None:
    with psycopg.connect(bank) as tx:
        due = OUTBOX.add(tx, "later", 1, key="k", deliver_after=after, headers={"h": "v"})
        later = OUTBOX.add(tx, "later", 2, key="k", deliver_after=timedelta(hours=1))
        assert OUTBOX.state(tx, due) is MessageState.DELAYED
    assert query(bank, "select count(*) from tallymark.outbox where id = any(%s)", [[due, later]]) == [(0,)]
    assert store.move_due(100) == 1
    with psycopg.connect(bank) as tx:
        assert OUTBOX.state(tx, due) is MessageState.PENDING
        status = OUTBOX.status(tx, later)
        assert status is not None
        assert (status.state, status.position) == (MessageState.DELAYED, None)
        assert "due at" in str(status.reason)
    assert query(bank, "select headers ->> 'h' from tallymark.outbox where id = %s", [due]) == [("v",)]
    query(bank, "delete from tallymark.delayed")


def test_states_are_derived_from_the_batch_that_covers_the_position(bank: str) -> None:
    with psycopg.connect(bank) as tx:
        id_ = OUTBOX.add(tx, "states", 1, key="k")
        assert OUTBOX.state(tx, str(id_)) is MessageState.PENDING
        (position,) = tx.execute("select position from tallymark.outbox where id = %s", [id_]).fetchone() or (
            0,
        )
        tx.execute(
            "insert into tallymark.batches (covered, lane, number, token, kind, after_position, upto, messages, mode,"
            " state, owner, epoch) values (%s, 0, 900, gen_random_uuid(), 'range', %s, %s, 1, 'sync', 'sending', 'a', 1)",
            [position, position - 1, position],
        )
        assert OUTBOX.state(tx, id_) is MessageState.SENDING
        tx.execute("update tallymark.batches set state = 'sent', sent_at = now() where number = 900")
        status = OUTBOX.status(tx, id_)
        assert status is not None
        assert (status.state, status.batch, status.lane, status.position) == (
            MessageState.SENT,
            900,
            0,
            position,
        )
        assert status.sent_at is not None
        tx.execute(
            "insert into tallymark.parked (position, id, slot, topic, key, value, headers, created_at, state, reason,"
            " batch) select position, id, slot, topic, key, value, headers, created_at, 'failed', 'too large', 900"
            " from tallymark.outbox where id = %s",
            [id_],
        )
        status = OUTBOX.status(tx, id_)
        assert status is not None
        assert (status.state, status.reason) == (MessageState.FAILED, "too large")
        tx.execute("update tallymark.parked set state = 'discarded'")
        assert OUTBOX.state(tx, id_) is MessageState.DISCARDED
        # Sent again, as `tally resend` does: a new row of the same id, and it is what counts.
        tx.execute(
            "insert into tallymark.outbox (id, topic, key, value) select id, topic, key, value"
            " from tallymark.outbox where id = %s",
            [id_],
        )
        status = OUTBOX.status(tx, id_)
        assert status is not None
        assert status.state is MessageState.PENDING
        assert status.position is not None
        assert status.position > position
        tx.rollback()


def test_a_message_is_asked_for_by_its_id(bank: str) -> None:
    with psycopg.connect(bank) as tx:
        for wrong in ("x", None, 5):
            with pytest.raises(UsageError, match="is not a message's id"):
                OUTBOX.state(tx, wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "rows", [psycopg.rows.dict_row, psycopg.rows.scalar_row, psycopg.rows.namedtuple_row]
)
def test_many_are_weighed_whatever_rows_the_connection_gives(bank: str, rows: Any) -> None:
    query(
        bank,
        "insert into tallymark.topics (topic, topic_id, partitions, max_message_bytes)"
        " values ('small', 'id', 1, 100) on conflict do nothing",
    )
    with psycopg.connect(bank, row_factory=rows) as tx:
        with pytest.raises(UsageError, match="a value of 101 bytes is larger than topic small takes"):
            OUTBOX.add_many(tx, [Draft("small", b"x" * 101)])
        assert len(OUTBOX.add_many(tx, [Draft("small", b"x" * 100)])) == 1
        tx.rollback()


def test_plain_sql_adds_the_same(bank: str) -> None:
    with psycopg.connect(bank) as tx:
        row = tx.execute(
            "select tallymark.outbox_add('transfers', convert_to('{\"amount\":5}', 'utf8'), 'alice'::bytea,"
            ' \'{"ce_source":"/sql","ce_type":"transfer.made"}\')'
        ).fetchone()
        assert row is not None
        short = tx.execute("select tallymark.outbox_add(topic => 'transfers', value => null)").fetchone()
        assert short is not None
    assert uuid.UUID(str(row[0])).version == 7
    assert query(
        bank, "select key, value, headers ->> 'ce_type' from tallymark.outbox where id = %s", [row[0]]
    ) == [(b"alice", b'{"amount":5}', "transfer.made")]
    for bad in ("''", "null"):
        with psycopg.connect(bank) as tx, pytest.raises(psycopg.errors.IntegrityError):
            tx.execute(f"select tallymark.outbox_add({bad}, 'x'::bytea)")
        query(bank, "select 1")
    with psycopg.connect(bank) as tx, pytest.raises(psycopg.Error) as refused:
        tx.execute(
            "select tallymark.outbox_add('t', 'x'::bytea, dedup_key => 'sql'),"
            " tallymark.outbox_add('t', 'x'::bytea, dedup_key => 'sql')"
        )
    assert refused.value.sqlstate == "TM002"


@pytest.mark.parametrize("id_", [each for each in NO_UUID7 if isinstance(each, uuid.UUID)])
def test_plain_sql_refuses_an_id_that_is_no_uuid7(bank: str, id_: uuid.UUID) -> None:
    own = new_id()
    with psycopg.connect(bank) as tx:
        assert tx.execute("select tallymark.outbox_add('t', null, id => %s)", [own]).fetchone() == (own,)
        with pytest.raises(psycopg.Error, match=f"id '{id_}' is not a UUIDv7") as refused:
            tx.execute("select tallymark.outbox_add('t', null, id => %s)", [id_])
    assert (refused.value.sqlstate, "dedup_key" in (refused.value.diag.message_hint or "")) == ("TM003", True)


def test_a_trigger_adds_the_same(bank: str) -> None:
    with psycopg.connect(bank, autocommit=True) as connection:
        connection.execute(
            "create function told() returns trigger language plpgsql as $$ begin"
            " perform tallymark.outbox_add('balances', convert_to(new.balance::text, 'utf8'),"
            " convert_to(new.name, 'utf8'));"
            " return new; end $$"
        )
        connection.execute(
            "create trigger told after update on accounts for each row execute function told()"
        )
        connection.execute("update accounts set balance = 77")
        with connection.transaction(force_rollback=True):
            connection.execute("update accounts set balance = 78")
        connection.execute("drop trigger told on accounts")
    rows = query(bank, "select key, value from tallymark.outbox where topic = 'balances' order by key")
    assert rows == [(b"alice", b"77"), (b"bob", b"77")]


def test_a_keys_slot_is_computed_by_the_database_alone(bank: str) -> None:
    """Pitfall 10: no writer can say another, whichever way it writes."""
    with psycopg.connect(bank) as tx:
        OUTBOX.add(tx, "slots", 1, key="alice")
        tx.execute("select tallymark.outbox_add('slots', null, 'alice'::bytea)")
        tx.execute(
            "insert into tallymark.outbox (id, topic, key) values (gen_random_uuid(), 'slots', 'alice')"
        )
        with tx.cursor().copy("copy tallymark.outbox (id, topic, key) from stdin") as copy:
            copy.write_row((str(uuid.uuid4()), "slots", b"alice"))
        with pytest.raises(psycopg.errors.GeneratedAlways), tx.transaction():
            tx.execute(
                "insert into tallymark.outbox (id, topic, key, slot) values (gen_random_uuid(), 'slots', 'a', 3)"
            )
    assert query(bank, "select slot, count(*) from tallymark.outbox where topic = 'slots' group by 1") == [
        (hashlib.md5(b"alice").digest()[0], 4)  # noqa: S324 - a hash for spreading
    ]


def test_partitions_share_the_one_sequence(bank: str) -> None:
    """Pitfall 12: a partition with a sequence of its own would give positions twice."""
    owned = query(
        bank,
        "select count(*) from pg_class c join pg_namespace n on n.oid = c.relnamespace"
        " where n.nspname = 'tallymark' and c.relkind = 'S' and c.relname like 'outbox%%'",
    )
    assert owned == [(1,)]
    defaults = query(
        bank,
        "select distinct pg_get_expr(d.adbin, d.adrelid) from pg_attrdef d join pg_attribute a on a.attrelid = d.adrelid"
        " and a.attnum = d.adnum join pg_inherits i on i.inhrelid = d.adrelid"
        " where i.inhparent = 'tallymark.outbox'::regclass and a.attname = 'position'",
    )
    ((default,),) = defaults  # with or without the schema's name, by the search path
    assert default.removeprefix("nextval('").removeprefix("tallymark.") == "outbox_position'::regclass)"
