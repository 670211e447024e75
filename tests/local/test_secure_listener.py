"""A real SASL/SCRAM listener over TLS on a local broker, reached with plain client settings."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from tallymark.broker.kafka import AdminClient, KafkaError, NewTopic
from tests.secured import Secured, self_signed
from tests.waiting import wait_for


def errors_until(secured: Secured, settings: dict[str, str], code: int, within: float) -> list[KafkaError]:
    """What a client is told while it tries to get in, until `code` was among it."""
    told: list[KafkaError] = []
    quiet: dict[str, Any] = {"error_cb": told.append, "log_level": 0}
    client = AdminClient({"bootstrap.servers": secured.servers, **settings, **quiet})
    deadline = time.monotonic() + within
    while time.monotonic() < deadline and not any(error.code() == code for error in told):
        client.poll(0.1)
    return told


def test_the_right_password_works(secured: Secured) -> None:
    admin = AdminClient({"bootstrap.servers": secured.servers, **secured.client(), "log_level": 0})
    admin.create_topics([NewTopic("secured", 1, 1)])["secured"].result(30)
    wait_for(lambda: "secured" in admin.list_topics(timeout=30).topics, what="the broker knows the topic")


def test_the_wrong_password_is_told_quickly(secured: Secured) -> None:
    told = errors_until(secured, secured.client(password="wrong"), KafkaError._AUTHENTICATION, within=60)
    assert told, "the client was told nothing"
    assert "Authentication failed" in told[0].str()
    assert "wrong" not in told[0].str()


def test_an_unknown_certificate_is_not_trusted(secured: Secured, tmp_path: Path) -> None:
    other = tmp_path / "other.pem"
    other.write_text(self_signed()[0])
    told = errors_until(secured, secured.client(certificate=other), KafkaError._SSL, within=60)
    assert told, "the client was told nothing"
    # Which of the two codes comes first is the client's own race; both say why.
    assert told[0].code() in (KafkaError._SSL, KafkaError._TRANSPORT)
    assert "certificate verify failed" in told[0].str()
