"""The hand that kills: one seeded blow after the other, and everything put back."""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Sequence

import psycopg

from tallymark.local.broker import Broker
from tallymark.local.cluster import LocalCluster
from tests.children import Child
from tests.torture.fleet import AT_A_POINT, KILLED, LEASE_S, Fleet, holdings_of, is_stopped

_TAKEOVER_S = 15.0
_WORK_S = 8.0
# Counted as kills: each death by signal once, whoever struck.
KILLS = (KILLED, AT_A_POINT, "kill -9 a broker", "kill -9 PostgreSQL")


class Chaos:
    """Strikes until the time is over. `spare` names what is left alone: broker, postgres."""

    def __init__(
        self,
        cluster: LocalCluster,
        fleets: Sequence[Fleet],
        progress: Callable[[], int],
        seed: int,
        *,
        spare: Collection[str] = (),
        say: Callable[[str], None] = lambda _text: None,
    ) -> None:
        self.counts: Counter[str] = Counter()
        self._cluster = cluster
        self._fleets = fleets
        self._progress = progress
        # Two: how often we wait depends on the machine, the order of the blows must not.
        self._order = random.Random(f"{seed} blows")  # noqa: S311 - a seed that can be given again is the point
        self._random = random.Random(f"{seed} pauses")  # noqa: S311 - as above
        self._recovering: Broker | None = None
        self._say = say
        self._never = threading.Event()
        blows: list[tuple[int, str, Callable[[], None]]] = [
            (5, "kill -9 a process", self._kill_one),
            (3, "stop a process past its lease", self._stop_one),
            (2, "SIGTERM a process", self._term_one),
            (1, "kill -9 all of a trade", self._kill_all),
            (2, "cut sessions", self._cut_sessions),
        ]
        if "broker" not in spare:
            blows.append((2, "kill -9 a broker", self._kill_broker))
        if "postgres" not in spare:
            blows.append((2, "kill -9 PostgreSQL", self._kill_postgres))
        self._blows = blows

    def run(self, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            for fleet in self._fleets:
                fleet.tend(arm=True)
            self._let_work()
            self._wake_stopped()
            weights = [weight for weight, _, _ in self._blows]
            _, name, blow = self._order.choices(self._blows, weights)[0]
            self._say(name)
            self.counts[name] += 1
            blow()

    def _let_work(self) -> None:
        """Mostly strike them at work; now and then those that have just started."""
        if self._random.random() < 0.7:
            before, deadline = self._sent(), time.monotonic() + _WORK_S
            while self._sent() <= before and time.monotonic() < deadline:
                self._pause(0.05, 0.1)
        self._pause(0.0, 1.0)

    def _sent(self) -> int:
        try:
            return self._progress()
        except psycopg.OperationalError:  # it was just killed, and is recovering
            return -1

    def put_back(self) -> None:
        """Every server up and serving, nobody stopped or armed."""
        for server in self._cluster.processes:
            server.start()
        for fleet in self._fleets:
            fleet.disarm()

    def _fleet(self) -> Fleet:
        return self._order.choice(self._fleets)

    def _kill_one(self) -> None:
        self._fleet().pick().kill()

    def _kill_all(self) -> None:
        for child in self._fleet().children:
            child.kill()

    def _term_one(self) -> None:
        child = self._fleet().pick()
        if is_stopped(child):  # a crash point got there first
            child.cont()
        child.terminate()

    def _stop_one(self) -> None:
        fleet = self._fleet()
        child = fleet.pick()
        # A crash point may end it first.
        if child.is_alive() and not is_stopped(child) and child.stop():
            self._outlive_lease(fleet, child)

    def _wake_stopped(self) -> None:
        """Those that a crash point stopped: a zombie is woken when others have its lanes."""
        for fleet in self._fleets:
            for child in fleet.stopped():
                self.counts["stopped at a crash point"] += 1
                self._outlive_lease(fleet, child)

    def _outlive_lease(self, fleet: Fleet, child: Child) -> None:
        deadline = time.monotonic() + _TAKEOVER_S
        self._pause(LEASE_S, LEASE_S + 0.5)
        while time.monotonic() < deadline:
            try:
                if not holdings_of(fleet, child.pid):
                    self.counts["zombies woken after takeover"] += 1
                    break
            except psycopg.OperationalError:
                self._say("PostgreSQL does not answer")
            fleet.tend(arm=False)  # someone must be there to take over
            self._pause(0.1, 0.2)
        if child.is_alive():
            child.cont()

    def _cut_sessions(self) -> None:
        fleet = self._fleet()
        try:
            with psycopg.connect(fleet.url, connect_timeout=5) as connection:
                connection.execute(
                    "select pg_terminate_backend(pid) from pg_stat_activity "
                    "where datname = current_database() and application_name like %s",
                    [fleet.trade.sessions],
                )
        except psycopg.OperationalError:
            self._say("PostgreSQL does not answer")

    def _kill_broker(self) -> None:
        if self._recovering is not None:
            self._recovering.start()  # waits until it serves: two at once would only stop everything
        broker = self._recovering = self._order.choice(self._cluster.brokers)
        broker.kill()
        self._pause(0.0, 4.0)
        broker.start(wait=False)  # and on with the blows while it comes back

    def _kill_postgres(self) -> None:
        self._cluster.postgres.kill()
        self._pause(0.0, 2.0)
        self._cluster.postgres.start()

    def _pause(self, low: float, high: float) -> None:
        self._never.wait(self._random.uniform(low, high))
