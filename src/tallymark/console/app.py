"""The application: routes under /v1, the open probes, /metrics, and what stands around them.

From the outside in: armour (headers, limits, log), gate (who comes), compression, routes. Routes are plain functions that
run in threads, over connections that are bounded.
"""

from __future__ import annotations

import threading
import time
from typing import Any

from fastapi import APIRouter, FastAPI
from fastapi.exceptions import RequestValidationError
from fastapi.openapi.utils import get_openapi
from fastapi.responses import JSONResponse, PlainTextResponse
from starlette.exceptions import HTTPException
from starlette.middleware.gzip import GZipMiddleware
from starlette.types import ASGIApp

from tallymark import __version__
from tallymark.console import (
    problems,
    routesactions,
    routesadmin,
    routesconsumers,
    routesmessages,
    routesoutboxes,
    routestally,
)
from tallymark.console.armour import STALLED_S, Armour
from tallymark.console.gate import Gate, Viewer
from tallymark.console.gauges import Gauges
from tallymark.console.guard import FailedTokens
from tallymark.console.lag import Lag
from tallymark.console.world import World
from tallymark.errors import TallymarkError
from tallymark.observe import names
from tallymark.observe.metrics import CONTENT_TYPE

DOCUMENT = "/v1/openapi.json"
_READY_FOR_S = 1.0
_ABOUT = """Where any message is, over HTTP: what `trace`, `relay status`, `inbox status` and `failed` show and do.

Come with a token: `Authorization: Bearer tmk_…` (`tallymark tokens create`). A viewer sees everything but payloads, an
operator sees payloads and acts, an admin sees the audit and the tokens. Lists come in pages: give `next` as `?cursor=`.
Errors are problem documents (RFC 9457)."""


def framework(world: World) -> FastAPI:
    """The routes, without what stands around them."""
    app = FastAPI(
        title="Tallymark",
        version=__version__,
        description=_ABOUT,
        # The document is served to bearers of a token; pages that fetch scripts from elsewhere are not served at all.
        openapi_url=None,
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
    )
    app.add_exception_handler(problems.Refused, problems.refused)
    app.add_exception_handler(TallymarkError, problems.ours)
    app.add_exception_handler(RequestValidationError, problems.invalid)
    app.add_exception_handler(HTTPException, problems.http_error)
    app.add_exception_handler(Exception, problems.unforeseen)
    lag = Lag(world.kafka)
    first = APIRouter(prefix="/v1")
    # Actions first: an id may hold slashes, and `/messages/ID/resend` must not be taken for one.
    first.include_router(routesactions.router(world))
    first.include_router(routesmessages.router(world))
    first.include_router(routesoutboxes.router(world))
    first.include_router(routesconsumers.router(world, lag))
    first.include_router(routestally.router(world))
    first.include_router(routesadmin.router(world))
    app.include_router(first)
    app.include_router(_own(world, Gauges(world, lag), app))
    return app


def application(world: World, *, failed: FailedTokens | None = None, stalled_s: float = STALLED_S) -> ASGIApp:
    """Everything, ready to be served."""
    world.metrics.set(names.BUILD_INFO, 1, version=__version__)
    inner: ASGIApp = GZipMiddleware(framework(world), minimum_size=1000, compresslevel=5)
    return Armour(Gate(inner, world, failed), world.metrics, stalled_s=stalled_s)


def document(app: FastAPI) -> dict[str, Any]:
    """The OpenAPI document."""
    made = get_openapi(title=app.title, version=app.version, description=app.description, routes=app.routes)
    schemas = made.setdefault("components", {}).setdefault("schemas", {})
    problem = problems.Problem.model_json_schema(ref_template="#/components/schemas/{model}")
    schemas.update(problem.pop("$defs", {}))
    schemas["Problem"] = problem
    # What FastAPI would say of a wrong request; ours are problem documents.
    for unused in ("HTTPValidationError", "ValidationError"):
        schemas.pop(unused, None)
    return made


def _own(world: World, gauges: Gauges, app: FastAPI) -> APIRouter:
    """The service about itself."""
    routes = APIRouter(tags=["service"])
    ready = _Readiness(world)

    # Not in a thread: however busy those are, the process is alive.
    @routes.get("/healthz")
    async def healthz() -> dict[str, bool]:
        """200 while this process answers. Open to all."""
        return {"ok": True}

    @routes.get("/readyz", responses={503: {"description": "A database does not answer."}})
    def readyz() -> JSONResponse:
        """200 while every database answers. Open to all, and says no more than that."""
        ok = ready.look()
        return JSONResponse({"ok": ok}, 200 if ok else 503)

    @routes.get(
        "/metrics",
        responses=problems.documented() | {200: {"content": {"text/plain": {"schema": {"type": "string"}}}}},
        response_class=PlainTextResponse,
    )
    def metrics(bearer: Viewer) -> PlainTextResponse:  # noqa: ARG001 - for who may
        """The numbers of the whole system, and of this service, in Prometheus form."""
        return PlainTextResponse(gauges.rendered(), media_type=CONTENT_TYPE)

    @routes.get(DOCUMENT, responses=problems.documented(), include_in_schema=False)
    def openapi(bearer: Viewer) -> JSONResponse:  # noqa: ARG001 - for who may
        if app.openapi_schema is None:
            app.openapi_schema = document(app)
        return JSONResponse(app.openapi_schema)

    return routes


class _Readiness:
    """Asked by anybody, so that the databases are asked once a second at most."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._lock = threading.Lock()
        self._looked_at: float | None = None
        self._ok = False

    def look(self) -> bool:
        with self._lock:
            if self._looked_at is None or time.monotonic() - self._looked_at > _READY_FOR_S:
                self._ok = all(each.pool.answers() for each in self._world.databases.values())
                self._looked_at = time.monotonic()
            return self._ok
