"""`--metrics-port`: a small HTTP server beside a long-running verb.

    /metrics   what was counted, in Prometheus form
    /healthz   200 while the process makes progress; 503 asks for a restart
    /readyz    200 while it does its work (leases held, Kafka and PostgreSQL reached); 503 otherwise

The two probes are callables that return `Health`; one that raises counts as unhealthy and says why. They run
on the server's threads: they must read, not work.
"""

from __future__ import annotations

import errno
import json
import logging
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Self

from tallymark.errors import Problem, UsageError
from tallymark.observe.masking import masked
from tallymark.observe.metrics import CONTENT_TYPE, Metrics

log = logging.getLogger(__name__)

# A stalled scraper must not hold a thread for ever.
_REQUEST_TIMEOUT_S = 10


@dataclass(frozen=True, slots=True)
class Health:
    """One probe's answer: yes or no, and what it rests on."""

    ok: bool
    detail: Mapping[str, object] = field(default_factory=dict)


Probe = Callable[[], Health]


def always() -> Health:
    """The probe of a process that is healthy as long as it answers."""
    return Health(ok=True)


class HealthServer:
    """Serves metrics and probes in a thread of its own, from `start` (or `with`) until `stop`."""

    def __init__(
        self,
        metrics: Metrics,
        *,
        port: int,
        host: str = "127.0.0.1",
        live: Probe = always,
        ready: Probe = always,
    ) -> None:
        self._pages: dict[str, Callable[[], tuple[int, str, bytes]]] = {
            "/metrics": lambda: (200, CONTENT_TYPE, metrics.render()),
            "/healthz": lambda: _answer(live),
            "/readyz": lambda: _answer(ready),
        }
        try:
            self._server = ThreadingHTTPServer((host, port), _handler(self._pages))
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                raise Problem(
                    f"metrics port {port} on {host} is taken",
                    remedy="Give another --metrics-port, or 0 for any free one.",
                ) from error
            raise UsageError(
                f"cannot serve metrics on {host}:{port}: {error.strerror or error}",
                remedy="Give a --metrics-port between 1024 and 65535 on an address of this machine.",
            ) from error
        except OverflowError as error:
            raise UsageError(f"{port} is not a port", remedy="Ports are 0 to 65535.") from error
        self._server.daemon_threads = True
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(0.1,), name="metrics", daemon=True
        )

    @property
    def address(self) -> str:
        """Where it listens, as host:port; with port 0 the one that was found."""
        host, port = self._server.server_address[:2]
        return f"{host if isinstance(host, str) else host.decode()}:{port}"

    def start(self) -> Self:
        self._thread.start()
        log.info("serving metrics", extra={"action": "metrics.serve", "address": self.address})
        return self

    def stop(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()


def _answer(probe: Probe) -> tuple[int, str, bytes]:
    try:
        health = probe()
    except Exception as error:  # noqa: BLE001 - a probe that fails is the answer, not a reason to drop the request
        health = Health(ok=False, detail={"error": str(error)})
    body = {"ok": health.ok, **health.detail}
    return (200 if health.ok else 503), "application/json", json.dumps(masked(body)).encode()


def _handler(pages: Mapping[str, Callable[[], tuple[int, str, bytes]]]) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        timeout = _REQUEST_TIMEOUT_S
        server_version = "tallymark"
        sys_version = ""

        def do_GET(self) -> None:
            page = pages.get(self.path.partition("?")[0])
            status, kind, body = page() if page else (404, "text/plain", b"/metrics /healthz /readyz\n")
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            log.debug(format, *args, extra={"action": "metrics.request"})

    return Handler
