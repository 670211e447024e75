"""Each line carries an action; no line carries a secret."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Iterator

import pytest

from tallymark.errors import UsageError
from tallymark.observe.logs import ROOT, LogFormat, configure, kafka_client_logger

log = logging.getLogger("tallymark.tests.observe")


@pytest.fixture(autouse=True)
def _as_it_was() -> Iterator[None]:
    root = logging.getLogger(ROOT)
    handlers, level, propagate = list(root.handlers), root.level, root.propagate
    yield
    root.handlers[:] = handlers
    root.setLevel(level)
    root.propagate = propagate


def lines(log_format: LogFormat, level: str = "info") -> io.StringIO:
    stream = io.StringIO()
    configure(log_format, level, stream)
    return stream


def test_a_line_for_people() -> None:
    stream = lines(LogFormat.HUMAN)
    log.warning("batch sent", extra={"action": "relay.sent", "lane": 3})
    (line,) = stream.getvalue().splitlines()
    assert line.endswith("WARNING relay.sent  batch sent  lane=3")


def test_a_line_as_json() -> None:
    stream = lines(LogFormat.JSON)
    log.info("batch %d sent", 7, extra={"action": "relay.sent", "lane": 3, "level": "mine"})
    line = json.loads(stream.getvalue())
    assert line | {"time": ""} == {
        "time": "",
        "level": "info",
        "action": "relay.sent",
        "message": "batch 7 sent",
        "logger": "tallymark.tests.observe",
        "lane": 3,
    }
    assert line["time"].endswith("+00:00")


def test_a_line_without_an_action_gets_its_loggers_name() -> None:
    stream = lines(LogFormat.JSON)
    log.info("x")
    assert json.loads(stream.getvalue())["action"] == "tallymark.tests.observe"


@pytest.mark.parametrize("log_format", list(LogFormat))
def test_secrets_are_masked_in_messages_extras_and_tracebacks(log_format: LogFormat) -> None:
    stream = lines(log_format)
    url = "postgresql://u:s3cretpw@h/d"
    log.info("to %s", url, extra={"action": "x", "client": {"sasl.password": "s3cretpw"}, "url": url})
    try:
        raise RuntimeError(f"cannot connect to {url}")
    except RuntimeError:
        log.exception("failed", extra={"action": "x"})
    assert "cannot connect" in stream.getvalue()
    assert "s3cretpw" not in stream.getvalue()


def test_configuring_again_does_not_double_the_lines() -> None:
    lines(LogFormat.HUMAN)
    stream = lines(LogFormat.HUMAN)
    log.info("once")
    assert len(stream.getvalue().splitlines()) == 1


def test_the_kafka_clients_own_lines_show_when_debugging_only() -> None:
    stream = lines(LogFormat.JSON)
    kafka_client_logger().error("FAIL [thrd:x]: connection refused")
    assert stream.getvalue() == ""
    stream = lines(LogFormat.JSON, "debug")
    kafka_client_logger().error("FAIL [thrd:x]: connection refused")
    assert json.loads(stream.getvalue())["action"] == "kafka.client"


def test_an_unknown_level_is_refused() -> None:
    with pytest.raises(UsageError, match="'loud'"):
        configure(level="loud")
