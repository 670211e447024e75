"""Spark is held to the pure definition: the same histories, the same marks, the same verdicts."""

from __future__ import annotations

import dataclasses
from dataclasses import replace
from typing import Any

import pytest
from pyspark.sql import functions as F

from tallymark.lifecycle import Verdict
from tallymark.pipeline.reconcilemarks import Frames, Single, faulty, recorded, single_of, singles
from tallymark.pipeline.reconcileorder import behind
from tallymark.pipeline.reconcileplain import plain
from tallymark.pipeline.reconcilesnapshot import SPARK
from tallymark.store.postgres.tallycells import CellQueries
from tallymark.tally.digest import Digest, message_digest
from tallymark.tally.history import judge, marks_of
from tallymark.tally.records import History, Horizon, Reader
from tallymark.tally.verdicts import into_consumer
from tests.tally.cases import Case, uuid7
from tests.tally.histories import CASES
from tests.tally.test_verdicts import FAULTS, sabotaged

_SCHEMAS = {
    "rows": "id string, position bigint, digest string, topic string, key binary, covered boolean, "
    "age_s double, partition int, lane int",
    "parked": "id string, position bigint, state string",
    "copies": "id string, position bigint, digest string, offset bigint, topic string, partition int, "
    "key binary, age_s double, source string",
    "kept": "consumer string, id string, digest string, offset bigint, topic string, partition int",
    "done": "consumer string, id string, outcome string",
    "queued": "consumer string, id string, state string",
    "letters": "consumer string, id string, state string",
}


def frames(spark: Any, history: History, horizon: Horizon) -> Frames:
    def frame(name: str) -> Any:
        columns = [each.split()[0] for each in _SCHEMAS[name].split(", ")]
        rows = [tuple(getattr(record, column) for column in columns) for record in getattr(history, name)]
        return spark.createDataFrame(
            [
                tuple(float(v) if c == "age_s" else v for c, v in zip(columns, row, strict=True))
                for row in rows
            ],
            _SCHEMAS[name],
        )

    return Frames(
        outbox=frame("rows"),
        parked=frame("parked"),
        log=frame("copies"),
        inbox=frame("kept"),
        effects=frame("done"),
        queue=frame("queued"),
        letters=frame("letters"),
        behind=behind(frame("copies"), frame("parked"), frame("rows")),
        misapplied=misapplied(spark, history, horizon),
    )


def misapplied(spark: Any, history: History, horizon: Horizon) -> Any:
    """As the tally asks a database, in Spark's words: where effects overtake, and then which."""
    keys = {(each.consumer, each.id): each.key for each in history.kept}
    made = {
        "applications": (
            [
                (d.seq, d.id, d.consumer, d.topic, d.partition, d.offset, d.turn, d.outcome)
                for d in history.done
            ],
            "seq bigint, id string, consumer string, topic string, partition int, offset bigint, applied_at bigint, "
            "outcome string",
        ),
        "inbox": (
            [(id_, consumer, key, 1) for (consumer, id_), key in keys.items()],
            "id string, consumer string, key binary, position bigint",
        ),
        "dead_letters": (
            [(each.id, each.consumer) for each in history.letters],
            "id string, consumer string",
        ),
    }
    for name, (rows, schema) in made.items():
        frame = spark.createDataFrame(rows, schema).selectExpr(
            "*", "'/bank' as source", "cast(null as string) as named"
        )
        frame.createOrReplaceTempView(f"told_{name}")
    queries = CellQueries("told", rows=100, bucket=100, dialect=SPARK)

    def ask(query: str) -> Any:
        return spark.sql(query.replace("told.", "told_"))

    places = [
        ((row.topic, row.partition), row.low, row.high + 1)
        for row in ask(queries.overtaking({}, {})).collect()
    ]
    ordered = [f"{name}/{topic}" for name, each in horizon.readers.items() for topic in each.ordered]
    return ask(queries.misapplied(places, {})).where(F.concat_ws("/", "consumer", "topic").isin(ordered))


def held_to(rows: Any, looked: Any, history: History, horizon: Horizon) -> dict[str, Single]:
    """Spark's marks and verdicts are the definition's."""
    found = {row.id: single_of(row) for row in looked.collect()}
    defined, judged = marks_of(history, horizon), judge(history, horizon)
    assert found.keys() == defined.keys()
    # Whatever numbers alone call delivered, the definition does.
    for row in plain(rows, horizon, topics_of(history)).where("plain").collect():
        assert judged[row.id].verdict is Verdict.DELIVERED, row.id
    for id_, single in found.items():
        common, at_consumers = defined[id_]
        assert single.common == common, id_
        claimed = [each.position for each in history.copies if each.id == id_ and each.position is not None]
        if claimed and not common.rows:
            # By this it is told whether the outbox has dropped it meanwhile.
            assert single.last_position == max(claimed), id_
        assert single.in_log == judged[id_].in_log, id_
        if judged[id_].at_consumers:
            assert single.at_consumers == at_consumers, id_
        else:
            assert single.at_consumers == {}, id_
    return found


def topics_of(history: History) -> list[str]:
    return sorted({row.topic for row in history.rows})


def apart(at: int, case: Case) -> tuple[History, Horizon, str]:
    """A case in a world of its own: its own topic, its own ids."""
    topic = f"t{at}"

    def renamed(id_: str) -> str:
        return uuid7(1_000, at) if id_ == case.id and "-" in id_ else f"{at}.{id_}"

    def moved(record: Any) -> Any:
        changes: dict[str, Any] = {"id": renamed(record.id)}
        if hasattr(record, "topic"):
            changes["topic"] = topic if record.topic == "t" else f"{record.topic}{at}"
        return dataclasses.replace(record, **changes)

    history = History(
        *(
            [moved(each) for each in getattr(case.history, field.name)]
            for field in dataclasses.fields(History)
        )
    )
    readers = {
        name: Reader(
            frozenset({topic}),
            {(topic, p): o for (_, p), o in reader.next_offsets.items()},
            {(topic, p): o for (_, p), o in reader.beginnings.items()},
            reader.known_for_s,
            reader.kept_from_ms,
            frozenset({topic}) if reader.ordered else frozenset(),
            frozenset({topic}) if reader.pruned else frozenset(),
            frozenset((topic, p) for _, p in reader.begun),
            {topic: reader.known_for("t")},
        )
        for name, reader in case.horizon.readers.items()
    }
    return history, replace(case.horizon, readers=readers), renamed(case.id)


def together(worlds: list[tuple[History, Horizon, str]]) -> tuple[History, Horizon]:
    history = History(
        *(
            [each for world, _, _ in worlds for each in getattr(world, field.name)]
            for field in dataclasses.fields(History)
        )
    )
    readers = [horizon.readers["ledger"] for _, horizon, _ in worlds if "ledger" in horizon.readers]
    ledger = Reader(
        frozenset().union(*(reader.topics for reader in readers)),
        {place: at for reader in readers for place, at in reader.next_offsets.items()},
        {place: at for reader in readers for place, at in reader.beginnings.items()},
        kept_from_ms=max(reader.kept_from_ms for reader in readers),
        ordered=frozenset().union(*(reader.ordered for reader in readers)),
        pruned=frozenset().union(*(reader.pruned for reader in readers)),
        begun=frozenset().union(*(reader.begun for reader in readers)),
        read_for_s={topic: s for reader in readers for topic, s in reader.read_for_s.items()},
    )
    return history, Horizon({"ledger": ledger}, outbox_from=worlds[0][1].outbox_from)


@pytest.mark.parametrize("outbox_from", [1, 11])
def test_the_tiny_histories(spark: Any, outbox_from: int) -> None:
    chosen = [(at, case) for at, case in enumerate(CASES) if case.horizon.outbox_from == outbox_from]
    worlds = [apart(at, case) for at, case in chosen]
    history, horizon = together(worlds)
    # Where a log starts is the driver's to say.
    near = replace(horizon, log_starts={}, expires_after_s={}, compacted=frozenset(), remade_s={})
    rows = recorded(frames(spark, history, near), near).persist()
    found = held_to(rows, singles(rows, near), history, near)
    for (_, case), (_, horizon, id_) in zip(chosen, worlds, strict=True):
        if not (horizon.log_starts or horizon.compacted or horizon.remade_s):
            assert found[id_].in_log == case.in_log, case.name
            at_ledger = found[id_].at_consumers.get("ledger")
            assert (at_ledger and into_consumer(at_ledger)) == case.at_ledger, case.name


def test_generated_histories_with_faults(spark: Any) -> None:
    history, expected = sabotaged(7, 400, 5, 3, [*FAULTS, *FAULTS, *FAULTS])
    reader = Reader(frozenset({"t"}), {("t", each): 10_000 for each in range(3)}, ordered=frozenset({"t"}))
    horizon = Horizon({"ledger": reader, "audit": reader})
    rows = recorded(frames(spark, history, horizon), horizon).persist()
    looked = singles(rows, horizon).persist()
    held_to(rows, looked, history, horizon)
    named = {row.id for row in faulty(looked).collect()}
    assert named == {id_ for id_, *_ in expected}
    # Nearly all others are told by numbers alone: what shows nothing unusual has no second look.
    suspects = plain(rows, horizon, topics_of(history)).where("not plain").count()
    assert len(named) <= suspects < 2 * len(named)


def test_digests_of_the_log_are_the_definition_s(spark: Any) -> None:
    from tallymark.pipeline.reconcilerecords import halves, limbs, netstring

    messages = [("m1", b"alice", b"\x00\xff"), ("m2", None, b""), ("m3", b"", None)]
    frame = spark.createDataFrame(messages, "id string, key binary, value binary").select(
        F.md5(
            F.concat(
                netstring(F.col("id").cast("binary")), netstring(F.col("key")), netstring(F.col("value"))
            )
        ).alias("digest")
    )
    sums = frame.agg(F.count("*"), *(F.sum(each) for each in limbs(*halves(F.col("digest"))))).collect()[0]
    wanted = Digest.of(message_digest(*message) for message in messages)
    assert (sums[0], tuple(sums[1:])) == (wanted.count, wanted.limbs)
