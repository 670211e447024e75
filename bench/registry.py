"""Which benchmarks there are, and what one is given to work with.

A module of this package that defines a benchmark registers it on import; `load()` imports them all, so a
new benchmark is one new file and no list to keep.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from bench.row import Row
from tallymark.errors import UsageError

if TYPE_CHECKING:
    from tallymark.local.cluster import LocalCluster


@dataclass(frozen=True)
class Context:
    """A running cluster, whether to be brief, and where to say what is going on."""

    cluster: LocalCluster
    quick: bool
    progress: Callable[[str], None]


Run = Callable[[Context], Sequence[Row]]


@dataclass(frozen=True)
class Benchmark:
    """A named measurement."""

    name: str
    summary: str
    run: Run


_REGISTERED: dict[str, Benchmark] = {}


def benchmark(name: str, summary: str) -> Callable[[Run], Run]:
    """Register the decorated function under `name`."""

    def register(run: Run) -> Run:
        if name in _REGISTERED and _REGISTERED[name].run.__qualname__ != run.__qualname__:
            raise ValueError(f"two benchmarks are named {name}")
        _REGISTERED[name] = Benchmark(name, summary, run)
        return run

    return register


def load() -> dict[str, Benchmark]:
    """All benchmarks of this package, by name."""
    package = importlib.import_module("bench")
    for module in pkgutil.iter_modules(package.__path__):
        if not module.name.startswith("_"):
            importlib.import_module(f"bench.{module.name}")
    return dict(sorted(_REGISTERED.items()))


def find(name: str) -> list[Benchmark]:
    """The benchmark of that name, or every one for `all`."""
    known = load()
    if name == "all":
        return list(known.values())
    if name not in known:
        raise UsageError(f"there is no benchmark {name!r}", remedy=f"known: {', '.join(known)}, all")
    return [known[name]]
