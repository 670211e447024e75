"""Kafka that is not there, or does not let us in, is a clear line within seconds."""

from __future__ import annotations

import socket
import threading
import time

import pytest

from tallymark.broker.faults import explain
from tallymark.broker.kafka import KafkaError
from tallymark.broker.reach import reach
from tallymark.errors import (
    AccessDenied,
    OutcomeUnknown,
    Problem,
    SettingsError,
    Stale,
    TallymarkError,
    Unreachable,
    UsageError,
)
from tests.waiting import wait_for


def closed_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def test_a_cluster_that_is_there(bootstrap_servers: str) -> None:
    wait_for(lambda: reach({"bootstrap.servers": bootstrap_servers}).brokers == 3, what="all three are seen")


def test_nobody_listens(capfd: pytest.CaptureFixture[str]) -> None:
    server = f"127.0.0.1:{closed_port()}"
    started = time.monotonic()
    with pytest.raises(
        Unreachable, match=f"Kafka at {server} cannot be reached: Connection refused"
    ) as caught:
        reach({"bootstrap.servers": server})
    assert time.monotonic() - started < 5
    assert "--bootstrap-servers" in caught.value.remedy
    # The client's own complaints stay out of the user's sight.
    assert capfd.readouterr().err == ""


def test_no_such_host() -> None:
    with pytest.raises(Unreachable, match=r"kafka\.invalid:9092"):
        reach({"bootstrap.servers": "kafka.invalid:9092"})


def test_a_listener_that_never_answers() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        server = f"127.0.0.1:{silent.getsockname()[1]}"
        with pytest.raises(Unreachable, match=f"Kafka at {server} cannot be reached"):
            reach({"bootstrap.servers": server}, timeout=1)


def test_something_else_answers() -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:

        def answer() -> None:
            connection, _ = other.accept()
            with connection:
                connection.recv(1024)
                connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")

        thread = threading.Thread(target=answer)
        thread.start()
        with pytest.raises(Unreachable, match="is not Kafka"):
            reach({"bootstrap.servers": f"127.0.0.1:{other.getsockname()[1]}"})
        thread.join()


def test_tls_spoken_to_a_plain_listener(bootstrap_servers: str) -> None:
    with pytest.raises((AccessDenied, Unreachable)):
        reach({"bootstrap.servers": bootstrap_servers.partition(",")[0], "security.protocol": "SSL"})


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("security.protocl", "SSL", "Did you mean security.protocol?"),
        ("security.protocol", "TLS", 'Invalid value "TLS"'),
        ("sasl.mechanism", "NONSENSE", "Unsupported SASL mechanism: NONSENSE"),
    ],
)
def test_settings_that_the_client_refuses(name: str, value: str, said: str) -> None:
    extra = {"security.protocol": "SASL_PLAINTEXT"} if name.startswith("sasl") else {}
    with pytest.raises(SettingsError) as caught:
        reach({"bootstrap.servers": "127.0.0.1:1", **extra, name: value})
    assert said in caught.value.sentence


@pytest.mark.parametrize(
    ("code", "meaning"),
    [
        (KafkaError._TRANSPORT, Unreachable),
        (KafkaError.SASL_AUTHENTICATION_FAILED, AccessDenied),
        (KafkaError.TOPIC_AUTHORIZATION_FAILED, AccessDenied),
        (KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, AccessDenied),
        (KafkaError._TIMED_OUT, OutcomeUnknown),
        (KafkaError._FENCED, Stale),
        (KafkaError.INVALID_CONFIG, UsageError),
        (KafkaError.UNKNOWN_TOPIC_OR_PART, Problem),
        (KafkaError.MSG_SIZE_TOO_LARGE, Problem),
    ],
)
def test_every_error_has_a_meaning(code: int, meaning: type[TallymarkError]) -> None:
    assert type(explain(KafkaError(code, "said"), servers="a:1", doing="sending")) is meaning


@pytest.mark.parametrize(
    ("reason", "told"),
    [
        ("Connection refused", "Kafka at a:1 cannot be reached: Connection refused"),
        (
            "error:0A000086:SSL routines::certificate verify failed",
            "no TLS connection to Kafka at a:1: error:0A000086:SSL routines::certificate verify failed",
        ),
    ],
)
def test_a_handshake_that_fails_at_its_first_step_is_told_as_tls(reason: str, told: str) -> None:
    """librdkafka calls it a failed connection then; which of the two it says depends on the scheduler."""
    said = f"ssl://a:1/bootstrap: Connect to ipv4#a:1 failed: {reason}"
    assert explain(KafkaError(KafkaError._TRANSPORT, said), servers="a:1").sentence.startswith(told)
