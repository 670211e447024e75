"""What lies between two offsets of each partition: exactly that is read, whatever becomes of the topic meanwhile."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, cast

import pytest
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import NewPartitions

from tallymark.broker.kafka import AdminClient
from tallymark.errors import Problem, Stale, Unreachable
from tallymark.pipeline import kafkasource
from tallymark.pipeline.archivefiles import SETTINGS
from tallymark.pipeline.kafkasource import Offsets
from tallymark.pipeline.reconcilesources import explained
from tests.deleting import deleted
from tests.leaders import wait_for_leaders

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_READERS = "spark.sql.sources.useV1SourceList"


@pytest.fixture(params=["a tally's", "an archive's"])
def reader(spark: SparkSession, request: pytest.FixtureRequest) -> Iterator[SparkSession]:
    """Spark reads Kafka in one of two ways: a tally leaves it the older one, an archive asks for the newer."""
    before = spark.conf.get(_READERS)
    if request.param == "an archive's":
        spark.conf.set(_READERS, SETTINGS[_READERS])
    else:
        spark.conf.unset(_READERS)
    yield spark
    spark.conf.set(_READERS, str(before))


@pytest.fixture
def logged(bootstrap_servers: str, topic: str) -> str:
    """A topic of three partitions, of ten records each."""
    producer = Producer({"bootstrap.servers": bootstrap_servers, "log_level": 0})
    for number in range(30):
        producer.produce(topic, b"%d" % number, partition=number % 3)
    assert producer.flush(30) == 0
    return topic


def read(spark: SparkSession, servers: str, starts: Offsets, ends: Offsets) -> set[tuple[int, int]]:
    """Partition and offset of each record."""
    frame = kafkasource.batch(spark, {"bootstrap.servers": servers}, starts, ends)
    return {(row["partition"], row["offset"]) for row in frame.select("partition", "offset").collect()}


def test_what_is_named_is_read_and_nothing_else(
    reader: SparkSession, bootstrap_servers: str, logged: str, admin: AdminClient
) -> None:
    """A partition that is added while a tally runs has no offsets; one that has nothing new is read from its end."""
    places = [(logged, partition) for partition in range(3)]
    starts, ends = dict(zip(places, (4, 10, 7), strict=True)), dict(zip(places, (6, 10, 7), strict=True))
    assert read(reader, bootstrap_servers, starts, ends) == {(0, 4), (0, 5)}
    nothing = dict.fromkeys(places, 10)
    assert read(reader, bootstrap_servers, nothing, nothing) == set()
    admin.create_partitions([NewPartitions(logged, 4)])[logged].result(30)
    wait_for_leaders(admin, logged, 4)
    assert read(reader, bootstrap_servers, starts, ends) == {(0, 4), (0, 5)}
    # The ends of a whole topic, and a reading of some of it.
    assert read(reader, bootstrap_servers, {places[2]: 8}, {**nothing, (logged, 3): 0}) == {(2, 8), (2, 9)}


def test_a_start_beyond_its_end_is_refused_before_spark_is_asked() -> None:
    nobody = cast(Any, None)
    with pytest.raises(Problem, match=r"^t/1 is read from 8, and ends at 5: the log was cut back") as caught:
        kafkasource.batch(nobody, {}, {("t", 0): 5, ("t", 1): 8}, {("t", 0): 5, ("t", 1): 5})
    assert "run it again" in caught.value.remedy


def test_what_is_gone_by_the_time_it_is_read_is_said_in_words_that_hold_for_a_tally(
    reader: SparkSession, bootstrap_servers: str, logged: str, admin: AdminClient
) -> None:
    """Which reads once: nothing is looked into behind its back, and nothing is tried again by itself."""
    deleted(admin, TopicPartition(logged, 1, 7))
    with pytest.raises(Unreachable, match="does not have what was to be read") as caught, explained():
        read(reader, bootstrap_servers, {(logged, 1): 3}, {(logged, 1): 10})
    assert caught.value.remedy.startswith("retention or DeleteRecords passed it meanwhile")
    assert "run it again" in caught.value.remedy
    with pytest.raises(Stale, match="partitions were added to a topic, or have gone") as fewer, explained():
        read(reader, bootstrap_servers, {(logged, 9): 3}, {(logged, 9): 10})
    assert "run it again" in fewer.value.remedy
