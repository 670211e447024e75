"""Spark reads from a Kafka that asks who comes, by the settings that our own client takes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from confluent_kafka import Producer

from tallymark.broker.kafka import NewTopic
from tallymark.errors import Unreachable
from tallymark.message import new_id
from tallymark.pipeline import archivefiles, failures
from tallymark.pipeline.manifest import Move
from tests.secured import Secured

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.mark.full
def test_spark_reads_with_our_clients_settings(spark: SparkSession, secured: Secured) -> None:
    topic = f"read-{new_id()}"
    for made in secured.admin.create_topics([NewTopic(topic, 1, 1)]).values():
        made.result(30)
    client = {"bootstrap.servers": secured.servers, **secured.client()}
    producer = Producer({**client, "log_level": 0})
    producer.produce(topic, b"value", b"key", 0)
    assert producer.flush(30) == 0
    rows = archivefiles.between(spark, client, [Move(topic, 0, 0, 1)]).collect()
    assert [(bytes(row["key"]), bytes(row["value"])) for row in rows] == [(b"key", b"value")]
    refused = {**client, **secured.client(password="wrong")}
    with pytest.raises(Exception, match="SaslAuthentication") as caught:
        archivefiles.between(spark, refused, [Move(topic, 0, 0, 1)]).collect()
    assert type(failures.explain(caught.value)) is Unreachable
