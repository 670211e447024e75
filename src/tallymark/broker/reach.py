"""Whether Kafka is there and lets us in, said within seconds.

librdkafka itself keeps trying for ever and reports only in passing: a wrong password looks like a slow
cluster. Here the first definite sign ends the wait.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

from tallymark.broker import faults, profiles
from tallymark.broker.clients import made
from tallymark.broker.kafka import AdminClient, KafkaError, KafkaException

_DEFINITE = frozenset(
    {
        KafkaError._AUTHENTICATION,
        KafkaError.SASL_AUTHENTICATION_FAILED,
        KafkaError._SSL,
        KafkaError._BAD_MSG,
        KafkaError._ALL_BROKERS_DOWN,
    }
)


@dataclass(frozen=True, slots=True)
class Reached:
    """The cluster that answered."""

    cluster_id: str
    brokers: int


def admin_client(client: profiles.Client, on_error: profiles.OnError | None = None) -> AdminClient:
    """An admin client; settings that librdkafka refuses become a clear error."""
    return made(
        AdminClient, profiles.admin(client, on_error=on_error) if on_error else profiles.admin(client)
    )


def reach(client: profiles.Client, timeout: float = 10.0) -> Reached:
    """Ask the cluster who it is; raise Unreachable or AccessDenied, naming the servers, in time."""
    servers = client.get("bootstrap.servers", "")
    heard: list[KafkaError] = []
    admin = admin_client(client, heard.append)
    deadline = time.monotonic() + timeout
    answer = admin.describe_cluster(request_timeout=timeout)
    while not answer.done() and time.monotonic() < deadline:
        admin.poll(0.05)
        if definite := next((each for each in heard if each.code() in _DEFINITE), None):
            raise _judged(definite, heard, servers)
    if not answer.done():
        raise faults.unreachable(servers, heard[-1].str() if heard else f"no answer within {timeout:g} s")
    try:
        cluster = answer.result()
    except KafkaException as error:
        cause = faults.error_of(error)
        if cause.code() == KafkaError._TIMED_OUT:
            raise faults.unreachable(servers, heard[-1].str() if heard else cause.str()) from error
        raise faults.explain(error, servers=servers) from error
    return Reached(cluster.cluster_id, len(cluster.nodes))


def _judged(definite: KafkaError, heard: list[KafkaError], servers: str) -> Exception:
    """All brokers being down is the sum; the single reasons before it say why."""
    if definite.code() == KafkaError._ALL_BROKERS_DOWN:
        reason = next((each for each in heard if each.code() != KafkaError._ALL_BROKERS_DOWN), None)
        # A connection that is made and closed at once is not reported as an error of its own.
        return faults.explain(reason, servers=servers) if reason else faults.hung_up(servers)
    return faults.explain(definite, servers=servers)
