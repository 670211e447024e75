"""What executors have loaded, as the transaction that commits it sees it (pitfall 19)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta

import psycopg
import pytest

from tallymark.errors import Problem, Unreachable
from tallymark.inbox.identity import id_floor, key_hash, received
from tallymark.inbox.ports import Queued, Received, TransactionSpoilt
from tallymark.lifecycle import Role
from tallymark.message import new_id
from tallymark.pipeline.runs import new_run
from tallymark.store.postgres import migrations
from tallymark.store.postgres import staged as stageds
from tallymark.store.postgres.connection import connect
from tallymark.store.postgres.inboxstore import PostgresInboxStore
from tallymark.store.postgres.pipelinestore import PipelineStore
from tallymark.store.postgres.staged import StagingLost, stage
from tests.inbox.ground import Ground, headers
from tests.waiting import wait_for

WON, LOST = "a" * 32, "b" * 32
COLUMNS = 'id, source, named, topic, partition, "offset", position, key, value, headers, logged_at'


@pytest.fixture
def store(inbox_ground: Ground) -> Iterator[PipelineStore]:
    inbox = PostgresInboxStore(inbox_ground.url, inbox_ground.name)
    made = PipelineStore(
        inbox_ground.url, lambda: inbox, schema="tallymark", consumer=inbox_ground.name, run=new_run()
    )
    made.begin("tests:1:x", [inbox_ground.topic], "local")
    yield made
    made.end(None)
    inbox.close()


@pytest.fixture
def load(inbox_ground: Ground, store: PipelineStore) -> Callable[[str, int], list[Received]]:
    """What an attempt of a task does, up to its commit."""

    def loaded(token: str, count: int) -> list[Received]:
        rows = [
            received(inbox_ground.topic, 0, offset, b"k", b"v", headers(str(new_id())), 0)
            for offset in range(count)
        ]
        with connect(inbox_ground.url, application="tests", autocommit=False) as connection:
            stage(connection, store.stagings[0], rows, token)
            connection.commit()
        return rows

    return loaded


def unheard(reused: list[Received]) -> None:
    raise AssertionError(reused)


def test_rows_of_an_attempt_that_lost_are_never_looked_at(
    inbox_ground: Ground, store: PipelineStore, load: Callable[[str, int], list[Received]]
) -> None:
    """A zombie's rows, whole and committed, beside those that count."""
    place = inbox_ground.topic, 0
    won = load(WON, 5)
    load(LOST, 7)
    with store.inbox.begin() as tx:
        staged = store.transaction(tx).staged(store.run, store.stagings[0], {WON: 5}, {place: 5})
        staged.check()
        assert staged.keep(unheard) == 0
        with psycopg.ClientCursor(tx.handed) as cursor:
            seen = cursor.execute(f"select id from {staged.relation()}").fetchall()
        assert {row[0] for row in seen} == {each.id for each in won}
        assert staged.record() == 5
        assert staged.number() == 5
        assert {each.id for each in staged.rows(0, 100)} == {each.id for each in won}
    kept = inbox_ground.query("select id from tallymark.inbox")
    assert {row[0] for row in kept} == {each.id for each in won}


@pytest.mark.parametrize("said", [6, 4])
def test_a_count_that_is_not_what_the_task_said_is_refused(
    inbox_ground: Ground, store: PipelineStore, load: Callable[[str, int], list[Received]], said: int
) -> None:
    load(WON, 5)
    with pytest.raises(StagingLost, match=f"5 of {said} rows"), store.inbox.begin() as tx:
        store.transaction(tx).staged(
            store.run, store.stagings[0], {WON: said}, {(inbox_ground.topic, 0): said}
        ).check()
    assert inbox_ground.value("select count(*) from tallymark.inbox") == 0


def test_what_is_counted_or_queued_comes_without_values(
    inbox_ground: Ground, store: PipelineStore, load: Callable[[str, int], list[Received]]
) -> None:
    """P7: a batch read again is counted, one for workers is queued; neither brings its bytes to the driver."""
    place = inbox_ground.topic, 0
    first = load(WON, 5)
    with store.inbox.begin() as tx:
        staged = store.transaction(tx).staged(store.run, store.stagings[0], {WON: 5}, {place: 5})
        staged.check()
        staged.keep(unheard)
        assert staged.drop_all() == [each._replace(value=None, headers="") for each in first]
    with connect(inbox_ground.url, application="tests", autocommit=False) as connection:
        stage(connection, store.stagings[1], [*first[:4], first[4]._replace(value=b"other")], WON)
        connection.commit()
    with store.inbox.begin() as tx:
        staged = store.transaction(tx).staged(store.run, store.stagings[1], {WON: 5}, {place: 5})
        staged.check()
        reused: list[Received] = []
        assert (staged.keep(reused.extend), [each.value for each in reused]) == (4, [b"other"])
        assert staged.count == 0
        assert staged.kept[place] == 0


def test_copies_of_an_id_without_a_time_are_noted_as_the_service_notes_them(
    inbox_ground: Ground, store: PipelineStore
) -> None:
    """Its saved id has to stay for as long as the log has any of them."""

    def order(offset: int, name: str = "order-17") -> Received:
        return received(inbox_ground.topic, 0, offset, b"k", b"v", headers(name), 0)

    def batch(staging: str, *rows: Received) -> int:
        with connect(inbox_ground.url, application="tests", autocommit=False) as connection:
            stage(connection, staging, rows, WON)
            connection.commit()
        place = inbox_ground.topic, 0
        with store.inbox.begin() as tx:
            staged = store.transaction(tx).staged(store.run, staging, {WON: len(rows)}, {place: len(rows)})
            staged.check()
            repeated = staged.keep(unheard)
            if staged.count:
                staged.record()
        return repeated

    noted = 'select "offset" from tallymark.named_again'
    assert batch(store.stagings[0], order(0), order(1, "order-18")) == 0
    # The very same record, read again, is no copy of itself.
    assert batch(store.stagings[1], order(0), order(2, "order-19"), order(3, "order-19")) == 2
    assert inbox_ground.query(noted) == [(3,)]
    inbox_ground.query("delete from tallymark.named_again")
    with connect(inbox_ground.url, application="tests") as connection:
        connection.execute(f"truncate {store.stagings[0]}")
    assert batch(store.stagings[0], order(7), order(9)) == 2
    assert inbox_ground.query(noted) == [(9,)]


@pytest.mark.parametrize("why", ["known", "twice", "odd"])
def test_what_is_set_apart_comes_a_piece_at_a_time(
    inbox_ground: Ground,
    store: PipelineStore,
    load: Callable[[str, int], list[Received]],
    monkeypatch: pytest.MonkeyPatch,
    why: str,
) -> None:
    """P7: with its values, and all of a batch may be bad. A piece can be written before the next one is read."""
    monkeypatch.setattr(stageds, "PIECE", 3)
    place, names = (inbox_ground.topic, 0), [str(new_id()) for _ in range(8)]
    pieces: list[list[Received]] = []

    def row(n: int, value: bytes, name: str) -> Received:
        return received(*place, n, b"k", value, headers(name), 0)

    def put(piece: list[Received]) -> None:
        tx.quarantine([(each, why) for each in piece])
        pieces.append(piece)

    first = [row(n, b"v", name) for n, name in enumerate(names)]
    rows = [row(8 + n, b"other", name) for n, name in enumerate(names)] + [row(16, b"v", str(new_id()))]
    with store.inbox.begin() as tx:
        if why == "known":
            tx.keep(first)
        elif why == "twice":
            rows = [*first, *rows]
        else:
            rows = [row(n, b"v", "09" + name[2:]) for n, name in enumerate(names)] + rows[8:]
    with connect(inbox_ground.url, application="tests", autocommit=False) as connection:
        stage(connection, store.stagings[0], rows, WON)
        connection.commit()
    with store.inbox.begin() as tx:
        staged = store.transaction(tx).staged(
            store.run, store.stagings[0], {WON: len(rows)}, {place: len(rows)}
        )
        staged.check()
        if why == "odd":
            for piece in staged.drop_odd(0, id_floor(datetime.now(UTC) + timedelta(days=2))):
                put(piece)
        assert staged.keep(put) == 0
        assert staged.count == staged.kept[place] == len(rows) - 8
    assert [len(each) for each in pieces] == [3, 3, 2]
    assert sorted(each.offset or 0 for piece in pieces for each in piece) == [
        each.offset for each in rows[-9:-1]
    ]
    assert inbox_ground.value("select count(*) from tallymark.dead_letters") == 8
    assert inbox_ground.value("select count(*) from tallymark.inbox") == (1 if why == "odd" else 9)


@contextmanager
def dumped(ground: Ground, table: str) -> Iterator[None]:
    """As a dump holds it, for as long as it takes."""
    with psycopg.connect(ground.url) as dump:
        dump.execute(f"select from {table}".encode())
        yield


TABLES = "select count(*) from pg_tables where tablename like 'staging_%'"


def test_a_table_that_somebody_holds_is_loaded_no_more(
    inbox_ground: Ground, store: PipelineStore, load: Callable[[str, int], list[Received]]
) -> None:
    """It cannot be emptied, and would only grow. What is given up is used again when nobody holds it any more."""
    first, second = store.stagings
    with dumped(inbox_ground, first):
        load(WON, 5)
        store.clear_staging(first)
        third, also = store.stagings
        assert (third != first, also) == (True, second)
        load(LOST, 7)
        assert inbox_ground.value(f"select array_agg(distinct token) from {third}") == [LOST]
        store.clear_staging(third)
        assert store.stagings == (third, second), "nobody holds this one"
        with dumped(inbox_ground, second):
            store.clear_staging(second)
            assert inbox_ground.value(TABLES) == 4
    store.make_staging()
    with dumped(inbox_ground, third):
        store.clear_staging(third)
    assert store.stagings[0] == first
    assert inbox_ground.value(f"select count(*) from {first}") == 0
    assert inbox_ground.value(TABLES) == 4, "none was made for it"
    store.end(None)
    assert inbox_ground.value(TABLES) == 0


def test_a_run_that_was_killed_leaves_no_table_behind(
    inbox_ground: Ground, store: PipelineStore, load: Callable[[str, int], list[Received]]
) -> None:
    """However many it had: the next run drops them all."""
    with dumped(inbox_ground, store.stagings[0]):
        store.clear_staging(store.stagings[0])
    assert inbox_ground.value(TABLES) == 3
    inbox = PostgresInboxStore(inbox_ground.url, inbox_ground.name)
    after = PipelineStore(
        inbox_ground.url, lambda: inbox, schema="tallymark", consumer=inbox_ground.name, run=new_run()
    )
    after.begin("tests:2:x", [inbox_ground.topic], "local")
    assert inbox_ground.value(TABLES) == 2
    after.end(None)
    inbox.close()


@pytest.mark.parametrize("granted", [True, False])
def test_who_could_make_tables_can_after_the_migration_too(
    database: str, monkeypatch: pytest.MonkeyPatch, granted: bool
) -> None:
    """A run goes on, before anybody repeats `tallymark init --grants`; and nobody else can."""
    everything = migrations.known()
    monkeypatch.setattr(migrations, "known", lambda: tuple(each for each in everything if each.version < 20))
    migrations.migrate(database, role=Role.CONSUMER)
    if granted:
        migrations.apply_grants(database)
    monkeypatch.setattr(migrations, "known", lambda: everything)
    migrations.migrate(database, role=Role.CONSUMER)
    with psycopg.connect(database) as connection:
        can = "select has_function_privilege(%s, 'tallymark.make_staging(text, text)', 'execute')"
        found = [
            connection.execute(can, [who]).fetchone()
            for who in ("public", "tallymark_consumer")[: 1 + granted]
        ]
        # As code of the version before asks for them.
        connection.execute("select tallymark.make_staging(%s)", ["0" * 12])
    assert found == ([(False,), (True,)] if granted else [(True,)])


def test_a_database_that_has_no_room_is_waited_for(store: PipelineStore) -> None:
    """As one that is away: by its own words, and by what is made of them. What a handler did is another matter."""
    full = psycopg.errors.DiskFull("could not extend file")
    found = store.explained(full)
    assert isinstance(found, Unreachable)
    assert "could not extend file" in str(found)
    told = Problem("PostgreSQL says: cannot execute INSERT in a read-only transaction")
    told.__cause__ = psycopg.errors.ReadOnlySqlTransaction()
    assert isinstance(store.explained(told), Unreachable)
    spoilt = TransactionSpoilt("a handler had used the transaction")
    spoilt.__cause__ = psycopg.errors.ReadOnlySqlTransaction()
    assert store.explained(spoilt) is spoilt


def test_what_a_replay_keeps_while_we_look_is_looked_at_again(
    inbox_ground: Ground, store: PipelineStore, load: Callable[[str, int], list[Received]]
) -> None:
    """One was there before; another comes to be between our look and our insert."""
    ground = inbox_ground
    place = ground.topic, 0
    rows = load(WON, 5)
    copy = f"insert into tallymark.inbox (consumer, {COLUMNS}) select %s, {COLUMNS} from {store.stagings[0]}"
    with psycopg.connect(ground.url) as before:
        before.execute(f"{copy} where id = %s".encode(), [ground.name, rows[0].id])

    def commit_when_waited_for(replay: psycopg.Connection) -> None:
        waits = "select count(*) from pg_locks where not granted and locktype = 'transactionid'"
        wait_for(lambda: ground.value(waits), what="our insert waits for the replay")
        replay.commit()

    with psycopg.connect(ground.url) as replay, ThreadPoolExecutor(1) as pool:
        replay.execute(f"{copy} where id = %s".encode(), [ground.name, rows[3].id])
        committed = pool.submit(commit_when_waited_for, replay)
        with store.inbox.begin() as tx:
            staged = store.transaction(tx).staged(store.run, store.stagings[0], {WON: 5}, {place: 5})
            staged.check()
            assert staged.keep(unheard) == 2
            assert (staged.count, staged.kept[place]) == (3, 3)
        committed.result(60)
    assert ground.value("select count(*) from tallymark.inbox") == 5


@pytest.mark.parametrize("queued", ["few wait", "many wait"])
def test_a_batch_waits_behind_its_keys_and_does_not_read_the_whole_queue(
    inbox_ground: Ground, store: PipelineStore, queued: str
) -> None:
    """However long the queue is. What has no key waits for nothing; and of other topics, or in any order, neither."""
    ground, many = inbox_ground, queued == "many wait"
    place = ground.topic, 0

    def row(offset: int, key: bytes | None, topic: str = ground.topic) -> Received:
        return received(topic, 0, offset, key, b"v", headers(str(new_id())), 0)

    first = [row(0, b"held"), row(1, None), row(2, b"held", "other")]
    if many:
        first += [row(100 + n, b"busy" if n % 2 else b"%d" % n) for n in range(10_000)]
    with store.inbox.begin() as tx:
        tx.keep(first)
        tx.enqueue([Queued(each, key_hash(each.topic, each.key, each.id)) for each in first])
    batch = [row(10, b"held"), row(11, b"free"), row(12, None), row(13, b"held"), row(14, b"held", "third")]
    with connect(ground.url, application="tests", autocommit=False) as connection:
        stage(connection, store.stagings[0], batch, WON)
        connection.commit()
    with store.inbox.begin() as tx:
        staged = store.transaction(tx).staged(store.run, store.stagings[0], {WON: 5}, {place: 5})
        staged.check()
        assert tx.any_queued()
        found = staged.drop_held([ground.topic, "other"], tx.held)
        read = "select coalesce(seq_tup_read, 0) + coalesce(idx_tup_fetch, 0) from pg_stat_xact_user_tables"
        with psycopg.ClientCursor(tx.handed) as cursor:
            (seen,) = cursor.execute(f"{read} where relname = 'queue'").fetchone() or (None,)
    assert [each.id for each in found] == [batch[0].id, batch[3].id]
    assert staged.count == 3
    assert seen is not None
    assert seen < 5_000
