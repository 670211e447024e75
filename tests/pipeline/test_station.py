"""An ingest between its batches: what goes on beside Spark, and needs none of it."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Collection, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from tallymark.apply.handlers import Handlers
from tallymark.apply.incoming import Message
from tallymark.apply.options import Defaults
from tallymark.broker.kafka import AdminClient, NewTopic
from tallymark.broker.offsets import Logs
from tallymark.broker.reach import admin_client
from tallymark.cli.main import main
from tallymark.errors import Problem, Stale, Unreachable
from tallymark.inbox.identity import id_floor, key_hash, received
from tallymark.inbox.ports import Place, Queued, Standing
from tallymark.inbox.screening import Screen
from tallymark.message import new_id
from tallymark.pipeline import station as stations
from tallymark.pipeline import tenure as tenures
from tallymark.pipeline.batches import Batches
from tallymark.pipeline.effects import Effect, HandlersEffect, NoEffect
from tallymark.pipeline.ingest import IngestConfig
from tallymark.pipeline.onebehind import OneBehind
from tallymark.pipeline.runs import new_run
from tallymark.pipeline.station import IngestStation, Job
from tallymark.pipeline.tenure import Tenure
from tallymark.store.postgres.inboxstore import PostgresInboxStore
from tallymark.store.postgres.pipelinestore import PipelineStore
from tests.inbox.ground import Ground, headers
from tests.waiting import wait_for

MakeStation = Callable[..., IngestStation]
NO_SPARK: Any = None
LONG_AGO = datetime(2020, 1, 1, tzinfo=UTC)


@pytest.fixture
def make_station(inbox_ground: Ground) -> Iterator[MakeStation]:
    """A station that holds its positions, and has no Spark."""
    made: list[IngestStation] = []

    def make(effect: Effect | None = None, **options: Any) -> IngestStation:
        topics = (inbox_ground.topic,)
        station = IngestStation(
            Job(inbox_ground.name, topics, effect or NoEffect(topics)),
            {"bootstrap.servers": inbox_ground.servers},
            inbox_ground.url,
            **{"stop": threading.Event(), "lease_s": 2.0, **options},
        )
        made.append(station)
        station.take("local")
        return station

    yield make
    for station in made:
        station.close()


def test_the_screen_moves_with_the_days(
    inbox_ground: Ground, make_station: MakeStation, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run lasts for weeks: what is a day ahead of its first moment is not the future for ever (pitfall 16)."""
    made: list[Screen] = []

    class Old(Screen):
        def __init__(self, needs: Callable[[str], bool], *_: datetime) -> None:
            super().__init__(needs, LONG_AGO, LONG_AGO)
            made.append(self)

    monkeypatch.setattr(stations, "Screen", Old)
    make_station()
    kept_from = datetime(2026, 1, 1, tzinfo=UTC)
    inbox_ground.query("update tallymark.inbox_identity set kept_from = %s returning 1", kept_from)
    now = id_floor(datetime.now(UTC))
    wait_for(lambda: made[0].bounds[1] > now, what="today's ids are not from the future")
    wait_for(lambda: made[0].bounds[0] == id_floor(kept_from), what="and what retention dropped is too old")


def test_ids_are_judged_by_the_databases_clock(
    make_station: MakeStation, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a service judges them: on a host whose clock is days behind, all that comes would be from the future."""
    screens: list[Screen] = []
    ahead = datetime.now(UTC) + timedelta(days=10)

    class Seen(Screen):
        def __init__(self, *given: Any) -> None:
            super().__init__(*given)
            screens.append(self)

    monkeypatch.setattr(stations, "Screen", Seen)
    monkeypatch.setattr(PostgresInboxStore, "memory", lambda _store: (LONG_AGO, ahead))
    make_station()
    assert screens[0].bounds[1] > id_floor(ahead)
    later = ahead + timedelta(days=10)
    monkeypatch.setattr(PostgresInboxStore, "memory", lambda _store: (LONG_AGO, later))
    wait_for(lambda: screens[0].bounds[1] > id_floor(later), what="the run's clock goes on with it")


def test_status_while_positions_are_held(
    inbox_ground: Ground, make_station: MakeStation, capsys: pytest.CaptureFixture[str]
) -> None:
    make_station(lease_s=60.0)
    where = ["--database", inbox_ground.url, "--bootstrap-servers", inbox_ground.servers]
    code = main(["pipeline", "status", "--json", *where])
    said = capsys.readouterr()
    assert code == 0, said.err
    (run,) = json.loads(said.out)["runs"]
    assert (run["running"], run["trouble"]) == (True, None)
    assert [run["totals"][each] for each in ("read", "kept", "applied", "queued", "dead")] == [0] * 5, (
        "numbers"
    )


def test_status_tells_the_age_of_what_is_not_kept_yet(
    inbox_ground: Ground, make_station: MakeStation, capsys: pytest.CaptureFixture[str]
) -> None:
    """And not that of the last one kept: after a quiet weekend a fresh message would be three days late."""
    make_station(lease_s=60.0)
    where = ["--database", inbox_ground.url, "--bootstrap-servers", inbox_ground.servers]

    def lag() -> tuple[int, float]:
        assert main(["pipeline", "status", "--json", *where]) == 0
        (run,) = json.loads(capsys.readouterr().out)["runs"]
        return run["lag"], run["lag_s"]

    assert lag() == (0, 0.0)
    inbox_ground.query("update tallymark.positions set logged_at = now() - interval '3 days' returning 1")
    inbox_ground.send(1)
    offsets, seconds = lag()
    assert offsets > 0
    assert 0 < seconds < 600


def test_a_run_keeps_house(make_station: MakeStation) -> None:
    """P7: a run of weeks needs the partitions of weeks to come."""
    kept = threading.Event()
    make_station(upkeep=kept.set, upkeep_s=0.01)
    assert kept.wait(10)


def test_a_run_forgets_what_was_months_ago(inbox_ground: Ground, make_station: MakeStation) -> None:
    """P7: its ledger, and those who ran before it. One whose staging tables are still there is found by its row."""
    station = make_station(upkeep_s=0.01)
    old, left = "0" * 12, "1" * 12
    columns = "(run, consumer, owner, topics, master, host, pid, version, seen_at)"
    values = "values (%s, %s, 'o', '{}', 'm', 'h', 1, '0', now() - interval '31 days') returning 1"
    inbox_ground.query("select tallymark.make_staging(%s)", left)
    for run in (left, old):
        inbox_ground.query(f"insert into tallymark.runs {columns} {values}", run, inbox_ground.name)
    ledger = (
        "(run, batch, consumer, ranges, read, kept, applied, queued, dead, load_s, commit_s, committed_at)"
    )
    for batch, days in enumerate((31, 29)):
        inbox_ground.query(
            f"insert into tallymark.ingested {ledger} values (%s, %s, %s, '[]', 0, 0, 0, 0, 0, 0, 0,"
            " now() - %s * interval '1 day') returning 1",
            *(station.run_name, batch, inbox_ground.name, days),
        )
    runs = "select run from tallymark.runs"
    wait_for(lambda: (old,) not in inbox_ground.query(runs), what="the run is forgotten")
    wait_for(
        lambda: inbox_ground.query("select batch from tallymark.ingested") == [(1,)],
        what="its old batches are",
    )
    assert {row[0] for row in inbox_ground.query(runs)} == {left, station.run_name}


def test_one_that_comes_late_leaves_the_tables_of_who_is_at_work(
    inbox_ground: Ground, make_station: MakeStation
) -> None:
    """A run that lost its positions before it began: neither its beginning nor its end is felt by their holder."""
    make_station(lease_s=60.0)
    tables = "select count(*) from pg_tables where tablename like 'staging_%'"
    inbox = PostgresInboxStore(inbox_ground.url, inbox_ground.name)
    late = PipelineStore(
        inbox_ground.url, lambda: inbox, schema="tallymark", consumer=inbox_ground.name, run=new_run()
    )
    late.begin("elsewhere:1:x", [inbox_ground.topic], "local")
    assert inbox_ground.value(tables) == 4
    late.end("it came too late")
    assert inbox_ground.value(tables) == 2
    inbox.close()


def queue(ground: Ground, *keys: str) -> None:
    """Messages that wait for a worker, one of each key."""
    store = PostgresInboxStore(ground.url, ground.name)
    rows = [
        received(ground.topic, 0, offset, key.encode(), b"{}", headers(str(new_id())), 0)
        for offset, key in enumerate(keys)
    ]
    with store.begin() as tx:
        tx.keep(rows)
        tx.enqueue([Queued(each, key_hash(each.topic, each.key, each.id)) for each in rows])
    store.close()


def states(ground: Ground) -> list[tuple[str, int]]:
    return ground.query('select state, attempts from tallymark.queue order by "offset"')


def handled(ground: Ground, function: Callable[[Message, Any], None], **options: Any) -> HandlersEffect:
    handlers = Handlers(Defaults().changed(**options))
    handlers.handler(ground.topic)(function)
    return HandlersEffect(handlers)


@pytest.mark.parametrize(
    "fails",
    [
        pytest.param("insert into child values (1)", id="a constraint that is checked at the commit"),
        pytest.param(
            "do $$ begin raise exception using errcode = '40001'; end $$",
            id="a serialization failure that always comes again",
        ),
    ],
)
def test_what_fails_with_its_transaction_fails_alone_and_keeps_nobody_waiting(
    inbox_ground: Ground, make_station: MakeStation, fails: str
) -> None:
    def apply(message: Message, tx: Any) -> None:
        if message.key == b"bad":
            tx.execute(fails)

    queue(inbox_ground, "bad", "good")
    station = make_station(handled(inbox_ground, apply))
    station.ingest(NO_SPARK, IngestConfig()).work_off()
    assert states(inbox_ground) == [("retrying", 1)]


def test_what_is_due_again_does_not_wait_for_a_batch(inbox_ground: Ground, make_station: MakeStation) -> None:
    """A topic that stands still: nothing comes, and what waits is done all the same."""
    ingest = make_station().ingest(NO_SPARK, IngestConfig())
    queue(inbox_ground, "a", "b")

    def looked() -> bool:
        ingest.look()
        return states(inbox_ground) == []

    wait_for(looked, what="the queue is empty")
    seen = "select seen_at > started_at from tallymark.runs"
    assert inbox_ground.value(seen), "and whoever looks sees that it runs"


def test_a_handler_that_hangs_is_left_behind(inbox_ground: Ground, make_station: MakeStation) -> None:
    """Fault C9: its session is ended, the message counts as failed, and the others go on."""
    release, calls = threading.Event(), list[bytes | None]()

    def apply(message: Message, tx: Any) -> None:
        calls.append(message.key)
        if message.key == b"bad":
            release.wait(60)

    queue(inbox_ground, "bad", "good")
    station = make_station(handled(inbox_ground, apply, handler_timeout=2))
    ingest = station.ingest(NO_SPARK, IngestConfig())

    def left() -> bool:
        try:
            ingest.look()
        except Stale as error:
            return "did not come back within 2 s" in str(error)
        return False

    try:
        wait_for(left, what="it is left behind")
        # As the next query does: it begins with what was seen.
        ingest.work_off()
        assert states(inbox_ground) == [("retrying", 1)]
        assert calls.count(b"bad") == 1, "it is not called again before its time"
    finally:
        release.set()


@pytest.fixture
def make_tenure(inbox_ground: Ground) -> Iterator[Callable[..., Tenure]]:
    made: list[PostgresInboxStore] = []

    def make(logs: type[Logs] = Logs, more_topics: Sequence[str] = (), **options: Any) -> Tenure:
        control, beats = (PostgresInboxStore(inbox_ground.url, inbox_ground.name) for _ in range(2))
        made.extend((control, beats))
        admin = admin_client({"bootstrap.servers": inbox_ground.servers})
        screen = Screen(lambda _topic: True, LONG_AGO, LONG_AGO)
        topics = (inbox_ground.topic, *more_topics)
        options = {"owner": "tests:1:x", "topics": topics, "lease_s": 2.0, **options}
        return Tenure(control, beats, logs(admin), screen, **options)

    yield make
    for store in made:
        store.close()


def test_a_topic_made_anew_is_refused_before_a_commit(
    inbox_ground: Ground, make_tenure: Callable[..., Tenure], admin: AdminClient
) -> None:
    """Fault S6, in the middle of a run."""
    tenure = make_tenure()
    tenure.take()
    tenure.refuse_recreated()
    name = inbox_ground.topic
    admin.delete_topics([name])[name].result(30)
    wait_for(lambda: name not in admin.list_topics(timeout=30).topics, what="the topic is gone")

    def made() -> bool:
        return admin.create_topics([NewTopic(name, 3, 3)])[name].exception(30) is None

    wait_for(made, what="the topic is made anew")

    def refused() -> bool:
        try:
            tenure.refuse_recreated()
        except Problem as error:
            return "deleted and made anew" in str(error)
        return False

    wait_for(refused, what="it is noticed")
    assert inbox_ground.value("select count(*) from tallymark.positions where halted is not null") == 1


class Low(Logs):
    """A Kafka whose leader has just died: its successor knows, for so many looks, an end that is a little behind."""

    times = 2

    def bounds(self, places: Collection[Place]) -> dict[Place, tuple[int, int]]:
        found = super().bounds(places)
        self.times -= 1
        return found if self.times < 0 else {place: (first, end - 1) for place, (first, end) in found.items()}


@pytest.fixture
def read_to_the_end(inbox_ground: Ground, make_tenure: Callable[..., Tenure]) -> None:
    ground = inbox_ground
    ground.send(60)
    tenure = make_tenure()
    tenure.take()
    logs = Logs(admin_client({"bootstrap.servers": ground.servers}))
    for (_, partition), (_, end) in logs.bounds(list(tenure.positions())).items():
        ground.query(
            "update tallymark.positions set next_offset = %s where partition = %s returning 1", end, partition
        )


HALTED = "select count(*) from tallymark.positions where halted is not null"


@pytest.mark.usefixtures("read_to_the_end")
def test_an_end_that_is_too_low_for_a_moment_halts_nothing(
    inbox_ground: Ground, make_tenure: Callable[..., Tenure]
) -> None:
    """After a leader's death, or a service's last step between our question and our taking. Told to stop, it stops."""
    looks: list[float] = []
    tenure = make_tenure(Low)
    tenure.take(looks.append)
    assert len(looks) == 2
    assert set(tenure.positions()) == {(inbox_ground.topic, partition) for partition in range(3)}
    with pytest.raises(Unreachable, match="past the log's end"):
        make_tenure(Low).take(lambda _seconds: True)
    assert inbox_ground.value(HALTED) == 0


@pytest.mark.usefixtures("read_to_the_end")
def test_an_end_that_stays_too_low_is_a_log_that_was_cut(
    inbox_ground: Ground, make_tenure: Callable[..., Tenure], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tenures, "PAST_END_S", 0.2)
    monkeypatch.setattr(Low, "times", 1_000_000)
    looks: list[float] = []
    with pytest.raises(Problem, match="the log was cut back"):
        make_tenure(Low).take(looks.append)
    assert looks
    assert inbox_ground.value(HALTED) == 1


def test_a_log_that_was_cut_and_has_grown_since_is_refused(
    inbox_ground: Ground, make_tenure: Callable[..., Tenure], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where a service has left its leader's epoch Kafka is asked. It, too, may be wrong for a moment."""
    said: list[dict[Place, str]] = [{}]
    asked: list[dict[Place, tuple[int, int]]] = []

    def refused(positions: dict[Place, tuple[int, int]]) -> dict[Place, str]:
        asked.append(positions)
        return said.pop(0) if len(said) > 1 else said[0]

    make_tenure(refused=refused).take()
    inbox_ground.query("update tallymark.positions set leader_epoch = 3 where partition = 0 returning 1")
    asked.clear()
    said.insert(0, {(inbox_ground.topic, 0): "truncated"})
    looks: list[float] = []
    make_tenure(refused=refused).take(looks.append)
    assert asked == [{(inbox_ground.topic, 0): (0, 3)}] * 2
    assert (len(looks), inbox_ground.value(HALTED)) == (1, 0)
    said[:] = [{(inbox_ground.topic, 0): "truncated"}]
    monkeypatch.setattr(tenures, "PAST_END_S", 0.05)
    with pytest.raises(Problem, match="was cut back, and has grown since") as found:
        make_tenure(refused=refused).take(looks.append)
    assert "inbox seek" in found.value.remedy
    assert inbox_ground.value(HALTED) == 1


def test_who_takes_its_own_positions_anew_has_not_lost_them(
    inbox_ground: Ground, make_tenure: Callable[..., Tenure], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A beat that falls between the new epoch and our knowing of it was taken for somebody else's taking."""
    beats: list[bool] = []
    heartbeat = PostgresInboxStore.heartbeat

    def counted(store: PostgresInboxStore, owner: str, lease_s: float, epochs: dict[Place, int]) -> Standing:
        found = heartbeat(store, owner, lease_s, epochs)
        beats.append(bool(epochs))
        return found

    def slowly(_positions: object) -> dict[Place, str]:
        """Kafka's answer takes longer than a beat, which goes by the epochs of before."""
        seen = len(beats)
        wait_for(lambda: len(beats) > seen + 2, what="a beat has come and gone")
        return {}

    monkeypatch.setattr(PostgresInboxStore, "heartbeat", counted)
    tenure = make_tenure(refused=slowly, lease_s=0.3)
    beating = tenure.keep_alive()
    try:
        tenure.take()
        tenure.take()
        assert tenure.lost is None
        seen = len(beats)
        wait_for(lambda: len(beats) > seen + 2, what="beats by the new epochs")
        assert tenure.lost is None
        inbox_ground.query("update tallymark.positions set epoch = epoch + 1 where partition = 0 returning 1")
        wait_for(lambda: tenure.lost is not None, what="what somebody else did is noticed")
    finally:
        tenure.release()
        beating.join()


def test_a_partition_without_a_leader_is_waited_for(
    inbox_ground: Ground, make_tenure: Callable[..., Tenure]
) -> None:
    class Silent(Logs):
        def bounds(self, places: Collection[Place]) -> dict[Place, tuple[int, int]]:
            return super().bounds([place for place in places if place[1] != 1])

    with pytest.raises(Unreachable, match=f"nothing of {inbox_ground.topic}/1"):
        make_tenure(Silent).take()


def test_a_topic_that_kafka_does_not_tell_of_is_waited_for(
    inbox_ground: Ground, make_tenure: Callable[..., Tenure]
) -> None:
    """It must not drop out of the run in silence."""
    with pytest.raises(Unreachable, match="nothing of topic not-to-be-found"):
        make_tenure(more_topics=["not-to-be-found"]).take()
    assert inbox_ground.positions() == {}


def test_a_call_that_comes_late_does_nothing(
    inbox_ground: Ground, make_tenure: Callable[..., Tenure], tmp_path: Path
) -> None:
    """Of a query that was stopped: it neither reads the offsets of the next one nor ends it."""
    inbox = PostgresInboxStore(inbox_ground.url, inbox_ground.name)
    store = PipelineStore(
        inbox_ground.url, lambda: inbox, schema="tallymark", consumer=inbox_ground.name, run=new_run()
    )
    handed: list[object] = []
    old = Batches(
        tmp_path,
        store,
        make_tenure(),
        OneBehind("tests"),
        lambda *each: handed.append(each),
        stop=threading.Event(),
    )
    old.end(lambda: None, lambda: None)
    old.run_once(NO_SPARK, 0)
    assert (handed, old.failure) == ([], None)
