"""Watches a consumer's database for effects, and notes when each could first be seen by somebody else."""

from __future__ import annotations

import threading
import time

import psycopg

from bench.latency import Delay
from bench.ratio import percentile
from tallymark.errors import Problem

_LOOK_S = 0.001
_WARM_S = 1.0


class Arrivals:
    """Looks every millisecond for as long as the block lasts. Effects are numbered in the order of their commits."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._seen: dict[str, float] = {}
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._look, name="arrivals", daemon=True)

    def __enter__(self) -> Arrivals:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def delay(self, there: dict[str, float], within: float = 60.0) -> Delay:
        """The percentiles over all messages but the first second's; every one must have come."""
        deadline = time.monotonic() + within
        while not there.keys() <= self._seen.keys():
            if time.monotonic() > deadline:
                raise Problem(f"{len(there.keys() - self._seen.keys())} of {len(there)} effects did not come")
            time.sleep(0.05)
        start = min(there.values()) + _WARM_S
        delays = sorted((self._seen[id_] - moment) * 1000 for id_, moment in there.items() if moment > start)
        return Delay(percentile(delays, 0.5), percentile(delays, 0.99))

    def _look(self) -> None:
        last = 0
        with psycopg.connect(self._url, autocommit=True) as connection:
            while not self._stop.wait(_LOOK_S):
                rows = connection.execute(
                    "select seq, id::text from effect where seq > %s order by seq", [last], prepare=True
                ).fetchall()
                moment = time.monotonic()
                for seq, id_ in rows:
                    self._seen[id_] = moment
                    last = seq
