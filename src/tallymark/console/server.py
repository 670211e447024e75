"""Serves the application: on loopback unless told otherwise, without a server's name, to so many at a time."""

from __future__ import annotations

import ipaddress
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import uvicorn

from tallymark.console.app import application
from tallymark.console.armour import STALLED_S
from tallymark.console.guard import FailedTokens
from tallymark.console.world import Served, World
from tallymark.errors import Problem, UsageError
from tallymark.store.postgres.searchpool import SearchPool
from tallymark.store.postgres.tokens import Tokens

log = logging.getLogger("tallymark.console")

# Connections at once; one more is told to come back later.
_AT_ONCE = 200
_GRACE_S = 10


@dataclass(frozen=True, slots=True)
class Listening:
    """Where to listen, and what protects whoever comes."""

    host: str = "127.0.0.1"
    port: int = 8321
    tls_in_front: bool = False
    certificate: Path | None = None
    private_key: Path | None = None

    def check(self) -> None:
        """Refuse to send tokens over a network in the clear, unless told that somebody else sees to it."""
        if (self.certificate is None) != (self.private_key is None):
            raise UsageError("TLS takes a certificate and its key", remedy="give both, or neither")
        for file in (self.certificate, self.private_key):
            if file is not None and not file.is_file():
                raise UsageError(f"there is no file {file}", remedy="name a PEM file that can be read")
        if is_loopback(self.host) or self.certificate is not None or self.tls_in_front:
            return
        raise UsageError(
            f"{self.host} is not loopback: tokens and payloads would cross the network in the clear",
            remedy="give --tls-certificate and --tls-key, or --tls-in-front where a proxy sees to it",
        )


def is_loopback(host: str) -> bool:
    """Whether only this machine can come."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def world_of(
    databases: Mapping[str, str], *, schema: str, kafka: Mapping[str, str] | None, connections: int = 8
) -> World:
    """What is looked at, by the databases' names and URLs; the first one holds the tokens."""
    served = {
        name: Served(name, url, schema, SearchPool(url, size=connections)) for name, url in databases.items()
    }
    return World(served, kafka)


def require_tokens(world: World) -> int:
    """How many tokens count now; an error where the table is missing, for then nobody could come in."""
    found = Tokens(world.tokens.url, schema=world.tokens.schema).all()
    return sum(each.revoked_at is None for each in found)


def serve(
    world: World,
    listening: Listening,
    *,
    failed: FailedTokens | None = None,
    stalled_s: float = STALLED_S,
) -> None:
    """Until told to stop (SIGTERM, Ctrl-C): requests under way are finished, for a while."""
    listening.check()
    options: dict[str, Any] = {}
    if listening.certificate is not None:
        options = {"ssl_certfile": str(listening.certificate), "ssl_keyfile": str(listening.private_key)}
    config = uvicorn.Config(
        application(world, failed=failed, stalled_s=stalled_s),
        host=listening.host,
        port=listening.port,
        log_config=None,
        # What it would say of an error is in our own log already, masked.
        log_level="critical",
        access_log=False,
        server_header=False,
        date_header=True,
        proxy_headers=listening.tls_in_front,
        limit_concurrency=_AT_ONCE,
        timeout_keep_alive=15,
        timeout_graceful_shutdown=_GRACE_S,
        h11_max_incomplete_event_size=16 * 1024,
        **options,
    )
    server = _Server(config)
    try:
        server.run()
    except SystemExit as exit_:
        # uvicorn's way to say that it could not begin.
        if not server.started:
            raise Problem(
                f"cannot listen on {listening.host}:{listening.port}",
                remedy="give another --port, or 0 for any free one",
            ) from exit_
        raise
    finally:
        world.close()


class _Server(uvicorn.Server):
    """Says where it listens once it does."""

    async def startup(self, sockets: Any = None) -> None:
        await super().startup(sockets)
        for server in self.servers:
            for socket in server.sockets:
                host, port = socket.getsockname()[:2]
                log.info(
                    "serving on %s:%s",
                    host,
                    port,
                    extra={"action": "console.serve", "address": f"{host}:{port}"},
                )
