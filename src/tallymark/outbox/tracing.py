"""The W3C `traceparent` of the span that is current, where OpenTelemetry is installed and one is."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module

_inject: Callable[[dict[str, str]], None] | None
try:
    # Optional, and not among our own dependencies; by name, so that its types count neither here nor there. This one
    # header alone, whatever else the service propagates over HTTP: all of it would be half of what an `add` costs here.
    _inject = (
        import_module("opentelemetry.trace.propagation.tracecontext").TraceContextTextMapPropagator().inject
    )
except ImportError:  # not installed: messages carry no trace
    _inject = None


def current_traceparent(inject: Callable[[dict[str, str]], None] | None = _inject) -> str | None:
    """The current trace as a header value, or None."""
    if inject is None:
        return None
    carrier: dict[str, str] = {}
    inject(carrier)
    return carrier.get("traceparent")
