"""What Spark, Java and Kafka's connector say, in our words."""

from __future__ import annotations

import re

import pytest
from py4j.protocol import Py4JError, Py4JNetworkError

from tallymark.errors import Problem, Stale, Unreachable
from tallymark.pipeline import failures


@pytest.mark.parametrize(
    ("said", "kind", "sentence"),
    [
        (
            "tallymark.errors.Unreachable: PostgreSQL cannot be reached: x",
            Unreachable,
            "a task lost its connection",
        ),
        (
            "org.apache.spark.api.python.PythonException: Traceback (most recent call last):\n"
            'psycopg.errors.DiskFull: could not extend file "base/5/1": No space left on device\n'
            'tallymark.errors.Problem: PostgreSQL says: could not extend file "base/5/1": No space left on device'
            " (53100, ledger at localhost:5432)\n"
            "see to it\n\tat org.apache.spark.api.python.BasePythonRunner",
            Unreachable,
            'PostgreSQL says: could not extend file "base/5/1": No space left on device (53100, ledger at',
        ),
        (
            "tallymark.errors.Problem: PostgreSQL says: cannot execute COPY FROM in a read-only transaction (25006, x)",
            Unreachable,
            "in a read-only transaction (25006",
        ),
        (
            "An exception was thrown from the Python worker. Please see the stack trace below.\n"
            "tallymark.errors.Problem: PostgreSQL says: permission denied by a trigger (P0001, ledger at x:5432)\n",
            Problem,
            "PostgreSQL says: permission denied by a trigger (P0001, ledger at x:5432)",
        ),
        ("java.io.IOException: No space left on device", Problem, "the disk is full where Spark works"),
        (
            "tallymark.store.postgres.staged.StagingLost: the table that a task loads into was dropped",
            Stale,
            "the table that a task loads into was dropped",
        ),
        (
            "org.apache.spark.SparkException: [KAFKA_DATA_LOSS.COULD_NOT_READ_OFFSET_RANGE] Some data may have been lost"
            " because they are not available in Kafka any more",
            Unreachable,
            "Kafka does not have what was to be read",
        ),
        ("[KAFKA_DATA_LOSS.START_OFFSET_RESET] The starting offset", Unreachable, "does not have what was"),
        ("Job 3 cancelled because SparkContext was shut down", Problem, "Spark itself has ended"),
        (
            "ExecutorLostFailure (executor 1 exited)\nMaster removed our application: FAILED",
            Problem,
            "Spark itself has ended",
        ),
        ("ModuleNotFoundError: No module named 'app'", Problem, "do not have the Python module app"),
        (
            "org.apache.kafka.common.errors.TimeoutException: Timed out",
            Unreachable,
            "cannot be reached by Spark",
        ),
        (
            "assertion failed: If startingOffsets contains specific offsets, you must specify all TopicPartitions.",
            Stale,
            "partitions were added",
        ),
        (
            "[KAFKA_START_OFFSET_DOES_NOT_MATCH_ASSIGNED] Partitions specified for Kafka start offsets don't match what"
            " are assigned. Maybe topic partitions are created or deleted while the query is running.",
            Stale,
            "partitions were added",
        ),
        (
            "[STREAM_FAILED] Query terminated with exception: Timed out waiting for a node assignment. Call: listNodes",
            Unreachable,
            "cannot be reached by Spark",
        ),
        (
            "org.apache.spark.rpc.RpcTimeoutException: Futures timed out after [120 seconds]. This timeout is controlled"
            " by spark.rpc.askTimeout\nCaused by: java.util.concurrent.TimeoutException: Futures timed out",
            Unreachable,
            "Spark's own parts did not answer each other",
        ),
        (
            "[END_OFFSET_HAS_GREATER_OFFSET_FOR_TOPIC_PARTITION_THAN_PREFETCHED] For Kafka data source with"
            " Trigger.AvailableNow, end offset should have lower or equal offset per each topic partition than"
            " pre-fetched offset. The error could be transient - restart your query, and report if you still see it",
            Unreachable,
            "now this and now that",
        ),
        (
            "[LOST_TOPIC_PARTITIONS_IN_END_OFFSET_WITH_TRIGGER_AVAILABLENOW] Some of partitions in Kafka topic(s) have"
            " been lost during running query with Trigger.AvailableNow. The error could be transient - restart your"
            " query, and report if you still see the same issue.",
            Unreachable,
            "now this and now that",
        ),
        ("Python worker exited unexpectedly (crashed)", Unreachable, "lost the executors"),
        ("java.lang.IllegalStateException: odd\n\tat x.y", Problem, "java.lang.IllegalStateException: odd"),
    ],
)
def test_what_java_says_in_our_words(said: str, kind: type[Exception], sentence: str) -> None:
    found = failures.explain(RuntimeError(said))
    assert type(found) is kind
    assert sentence in str(found)
    assert "\n" not in str(found)


@pytest.mark.parametrize(
    "said",
    [
        "[KAFKA_DATA_LOSS.COULD_NOT_READ_OFFSET_RANGE] Some data may have been lost",
        "Partitions specified for Kafka start offsets don't match what are assigned.",
        "The error could be transient - restart your query",
        "ExecutorLostFailure (executor 1 exited)",
        "org.apache.spark.rpc.RpcTimeoutException: Futures timed out after [120 seconds]",
    ],
)
def test_nobody_is_promised_another_try(said: str) -> None:
    """A tally, a replay and a snapshot try once; and whoever tries again has done so, when this is its last word."""
    found = failures.explain(RuntimeError(said))
    assert "run it again" in found.remedy
    assert not re.search("it is (tried again|looked into)", found.remedy)


@pytest.mark.parametrize(
    "error",
    [
        ConnectionRefusedError(111, "Connection refused"),
        Py4JNetworkError("Error while sending"),
        Py4JError("An error occurred while calling o61.awaitTermination"),
    ],
)
def test_a_jvm_that_is_no_more(error: Exception) -> None:
    found = failures.explain(error)
    assert type(found) is Problem
    assert "Spark itself has ended" in str(found)
    # Of an ingest and an archive that is true, of a tally and a replay it is not.
    assert "goes on where it was" not in found.remedy
    java = "An error occurred while calling o61.load.\n: org.apache.kafka.common.KafkaException: Connection refused"
    assert "Spark itself" not in str(failures.explain(Py4JError(java)))
