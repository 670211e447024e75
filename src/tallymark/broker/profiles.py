"""Client settings: what each kind of client needs to keep the promises, over the user's own.

Every profile takes `client` (bootstrap.servers and the user's security settings, in librdkafka's names) and
returns what the client's constructor takes. Ours win: the settings refuse a user's value for them beforehand.
No client writes to stderr: its log lines go through our logging.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from tallymark.broker.kafka import KafkaError
from tallymark.observe.logs import kafka_client_logger

Client = Mapping[str, str]
# Any: beside strings it holds the logger and the callbacks, which the client's own types leave out.
Profile = dict[str, Any]
OnError = Callable[[KafkaError], None]

# The default of 100 ms makes each transaction wait for the one before it (CONCURRENT_TRANSACTIONS): 15–30 ms
# per commit with this, 100 ms without.
_RETRY_BACKOFF_MS = 10


def _unheard(_error: KafkaError) -> None:
    """librdkafka's global errors are informational: what matters comes back from the call or the report."""


def _base(client: Client, on_error: OnError) -> Profile:
    return {
        "client.id": "tallymark",
        "retry.backoff.ms": _RETRY_BACKOFF_MS,
        "reconnect.backoff.ms": 50,
        "reconnect.backoff.max.ms": 2000,
        # A broker that restarts may keep its half of a connection for hours.
        "socket.keepalive.enable": True,
        # Idle connections are closed by brokers as a matter of course.
        "log.connection.close": False,
        **client,
        "logger": kafka_client_logger(),
        "error_cb": on_error,
    }


def admin(client: Client, *, on_error: OnError = _unheard) -> Profile:
    """For describing and creating."""
    return _base(client, on_error)


def idempotent_producer(
    client: Client, *, message_timeout_ms: int = 120_000, on_error: OnError = _unheard
) -> Profile:
    """Acknowledged by all in-sync replicas, in order, no duplicates within this producer's life."""
    return {
        "compression.type": "lz4",
        "linger.ms": 2,
        # A kilobyte each, beside what they carry. Larger batches go through it as it empties.
        "queue.buffering.max.messages": 200_000,
        **_base(client, on_error),
        "acks": "all",
        "enable.idempotence": True,
        # As in Java, with keyless messages spread at random.
        "partitioner": "murmur2_random",
        "message.timeout.ms": message_timeout_ms,
    }


def transactional_producer(
    client: Client,
    *,
    transactional_id: str,
    transaction_timeout_ms: int = 60_000,
    on_error: OnError = _unheard,
) -> Profile:
    """The same, in Kafka transactions; a newer producer with this id fences an older one."""
    return {
        **idempotent_producer(client, message_timeout_ms=transaction_timeout_ms, on_error=on_error),
        "transactional.id": transactional_id,
        "transaction.timeout.ms": transaction_timeout_ms,
    }


def consumer(client: Client, *, group: str, on_error: OnError = _unheard) -> Profile:
    """Committed messages only; positions are ours to keep, and one that the log no longer has is an error."""
    return {
        "fetch.wait.max.ms": 100,
        "queued.max.messages.kbytes": 32_768,
        **_base(client, on_error),
        "group.id": group,
        "isolation.level": "read_committed",
        "auto.offset.reset": "error",
        "enable.auto.commit": False,
        "enable.auto.offset.store": False,
        "check.crcs": True,
        "partition.assignment.strategy": "cooperative-sticky",
    }


def reader(client: Client, *, committed: bool = True, on_error: OnError = _unheard) -> Profile:
    """For reading assigned partitions without a group's balance (receipts, status).

    With `committed=False` its end offsets are those of the whole log, open transactions included.
    """
    return {
        **consumer(client, group="tallymark-reader", on_error=on_error),
        "isolation.level": "read_committed" if committed else "read_uncommitted",
        "enable.partition.eof": True,
    }
