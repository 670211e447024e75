"""/metrics, /healthz and /readyz beside a long-running verb."""

from __future__ import annotations

import json
import urllib.error
import urllib.request

import pytest

from tallymark.errors import Problem, UsageError
from tallymark.observe import names
from tallymark.observe.health import Health, HealthServer
from tallymark.observe.metrics import Metrics


def get(server: HealthServer, path: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(f"http://{server.address}{path}", timeout=30) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def test_pages() -> None:
    counted = Metrics()
    counted.set(names.RELAY_BACKLOG, 3, outbox="o")
    ready = [False]
    with HealthServer(counted, port=0, ready=lambda: Health(ready[0], {"lanes": 2})) as server:
        status, text = get(server, "/metrics")
        assert (status, 'tallymark_relay_backlog_messages{outbox="o"} 3.0' in text) == (200, True)
        assert get(server, "/healthz?verbose") == (200, '{"ok": true}')
        status, text = get(server, "/readyz")
        assert (status, json.loads(text)) == (503, {"ok": False, "lanes": 2})
        ready[0] = True
        assert get(server, "/readyz")[0] == 200
        assert get(server, "/elsewhere")[0] == 404


def test_a_probe_that_fails_is_unhealthy_and_keeps_its_secrets() -> None:
    def probe() -> Health:
        raise RuntimeError("cannot reach postgresql://u:s3cretpw@h/d")

    with HealthServer(Metrics(), port=0, live=probe) as server:
        status, text = get(server, "/healthz")
    assert (status, json.loads(text)) == (
        503,
        {"ok": False, "error": "cannot reach postgresql://u:********@h/d"},
    )


def test_a_port_that_is_taken_is_a_clear_line() -> None:
    with HealthServer(Metrics(), port=0) as server:
        port = int(server.address.rpartition(":")[2])
        with pytest.raises(Problem, match=f"metrics port {port} on 127.0.0.1 is taken"):
            HealthServer(Metrics(), port=port)


@pytest.mark.parametrize(("host", "port"), [("127.0.0.1", 70_000), ("192.0.2.1", 0)])
def test_an_address_that_cannot_be_is_refused(host: str, port: int) -> None:
    with pytest.raises(UsageError):
        HealthServer(Metrics(), host=host, port=port)
