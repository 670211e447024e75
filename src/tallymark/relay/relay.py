"""The relay: joins the others, takes its fair share of lanes, keeps the leases alive, works each lane in a thread.

All clocks are the database's. When this process dies, its lanes are free after `lease_s`; whoever takes one settles
what was left in doubt before sending anything.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from tallymark.errors import Inconsistent, TallymarkError, UsageError
from tallymark.housekeeping import Upkeep, keep_house
from tallymark.observe import names
from tallymark.observe.metrics import Metrics
from tallymark.policy import fair_share
from tallymark.relay.bell import Bell
from tallymark.relay.config import RelayConfig
from tallymark.relay.frontier import Frontier
from tallymark.relay.lane import LaneWorker
from tallymark.relay.ports import Identity, Kafka, Lane, RelayStore
from tallymark.relay.station import Station

log = logging.getLogger("tallymark.relay")

_MOVE_DUE_LIMIT = 1000


@contextmanager
def house_kept(upkeep: Upkeep | None) -> Iterator[None]:
    """Once, where Kafka lets no relay start: writers need partitions all the same.

    Such a relay ends, and so does the one that is started in its stead, for as long as Kafka is away.
    """
    try:
        yield
    except TallymarkError:
        if upkeep is not None:
            upkeep()
        raise


@dataclass(frozen=True, slots=True)
class Census:
    """What one round of housekeeping found."""

    relays: int
    owned: frozenset[int]
    moved: int


class Relay:
    """One relay process. `run` blocks until `stop` is set."""

    def __init__(
        self,
        stores: Callable[[str], RelayStore],
        kafka: Kafka,
        config: RelayConfig,
        *,
        metrics: Metrics | None = None,
        upkeep: Upkeep | None = None,
    ) -> None:
        self._stores = stores
        self._kafka = kafka
        self._config = config
        self._metrics = metrics or Metrics()
        self._upkeep = upkeep
        self._store = stores("keeper")
        self._stations: dict[int, Station] = {}
        self._bell = Bell()
        self._frontier: Frontier | None = None
        self._identity: Identity | None = None
        self._heard = time.monotonic()
        self._keeper: threading.Thread | None = None
        self._leaving = False

    @property
    def ready(self) -> bool:
        """Whether heartbeats go through."""
        return self._identity is not None and time.monotonic() - self._heard < self._config.lease_s

    @property
    def troubles(self) -> dict[int, str]:
        """What each lane in difficulties says, by lane."""
        return {n: s.trouble for n, s in self._stations.items() if s.trouble is not None}

    def open(self) -> Identity:
        """Check that this relay and the outbox fit each other, and that its receipts are safe."""
        identity = self._store.identity()
        if self._config.lanes not in (None, identity.lanes):
            raise UsageError(
                f"this relay is set to {self._config.lanes} lanes, the outbox has {identity.lanes}",
                remedy="leave lanes out of the settings, or change the outbox with `tallymark relay lanes`",
            )
        if self._config.notify and not identity.notify:
            raise UsageError(
                "this relay waits to be woken, and the outbox wakes nobody",
                remedy="run `tallymark init --notify`, or leave relay.notify out of the settings",
            )
        if self._config.notify:
            self._try_to_listen()
        # A producer alone refuses some client settings: said now, not by some lane later.
        self._kafka.publisher(identity, 0, self._config.mode, ()).close()
        if self._config.policy.transactional:
            with house_kept(self._upkeep):
                topic_id = self._kafka.prepare_receipts(identity)
            if identity.receipts_topic_id is None:
                self._store.record_receipts_topic(topic_id)
                identity = self._store.identity()
                if identity.receipts_topic_id != topic_id:
                    raise Inconsistent("the receipts topic was recreated while this relay started")
        self._frontier = Frontier(self._stores("frontier"), poll_s=self._config.poll_s)
        self._identity = identity
        return identity

    def run(self, stop: threading.Event) -> None:
        """Work until `stop` is set; then finish the batches begun, give the lanes back, and leave."""
        if self._upkeep is not None:
            arguments = ("relay", stop, self._upkeep, self._config.upkeep_s)
            threading.Thread(target=keep_house, args=arguments, name="upkeep", daemon=True).start()
        if self._config.notify:
            threading.Thread(target=self._listen, args=(stop,), name="listener", daemon=True).start()
        # Not in this thread: a database that stands still would keep it from hearing that it is to stop.
        self._keeper = threading.Thread(target=self._keep, args=(stop,), name="keeper", daemon=True)
        self._keeper.start()
        try:
            stop.wait()
        finally:
            stop.set()
            self.shut_down()

    def _keep(self, stop: threading.Event) -> None:
        while not stop.is_set():
            try:
                self.run_once()
            except TallymarkError as error:
                log.warning("housekeeping: %s", error, extra={"action": "relay.housekeeping"})
            except Exception:  # a fault of ours must not take the lanes down that work
                log.exception("housekeeping failed", extra={"action": "relay.bug"})
            stop.wait(self._config.lease_s / 5)

    def run_once(self) -> Census:
        """One round: say that we live, keep our leases, take or give back lanes, move what is due."""
        if self._identity is None:
            self.open()
        self._notice_other_lanes()
        config = self._config
        relays = self._store.join(config.owner, config.mode, config.accepted, config.lease_s)
        ours = self._store.renew(config.owner, config.lease_s)
        self._heard = time.monotonic()
        self._drop_lost(ours)
        share = fair_share(self._opened.lanes, relays)
        if len(self._stations) > share:
            next(iter(self._stations.values())).ask_to_stop()
        while (
            not self._leaving
            and len(self._stations) < share
            and (lane := self._store.take(config.owner, config.lease_s)) is not None
        ):
            self._start(lane)
        moved = self._move_due()
        if config.end_floors_after_s is not None:
            for writer in self._store.end_floors(config.end_floors_after_s):
                log.error(
                    "ended a writer that held the relay back: %s", writer, extra={"action": "relay.end_floor"}
                )
        self._metrics.set(names.RELAY_LANES_OWNED, len(self._stations), outbox=self._opened.outbox_id)
        return Census(relays, frozenset(self._stations), moved)

    def _move_due(self) -> int:
        """A flood that falls due at once is moved in pieces, for as long as the next heartbeat can wait."""
        deadline = time.monotonic() + self._config.lease_s / 5
        moved = last = self._store.move_due(_MOVE_DUE_LIMIT)
        while last == _MOVE_DUE_LIMIT and time.monotonic() < deadline:
            last = self._store.move_due(_MOVE_DUE_LIMIT)
            moved += last
        return moved

    def _notice_other_lanes(self) -> None:
        """The lane count was changed under us: let go of everything, and begin anew by the new cut."""
        if self._store.identity().lanes == self._opened.lanes:
            return
        log.warning("the outbox has another number of lanes now", extra={"action": "relay.lanes"})
        for station in self._stations.values():
            station.ask_to_stop(lost=True)
        if self._frontier is not None:
            self._frontier.close()
        self.open()

    def shut_down(self, within_s: float = 20.0) -> None:
        """Stop every lane in good order; what does not stop in time is left to the lease."""
        self._leaving = True
        deadline = time.monotonic() + within_s
        for station in list(self._stations.values()):
            station.ask_to_stop()
        if self._keeper is not None:
            self._keeper.join(within_s / 4)
        for station in list(self._stations.values()):
            station.ask_to_stop()
            if not station.join(max(0.1, deadline - time.monotonic())):
                log.warning("lane %d did not stop in time", station.number, extra={"action": "relay.stop"})
        # It asks the database, which may stand still for longer than anybody waits for us.
        goodbye = threading.Thread(target=self._say_goodbye, name="goodbye", daemon=True)
        goodbye.start()
        goodbye.join(within_s / 4)
        if goodbye.is_alive():
            log.warning(
                "nobody hears our goodbye; others go on when our leases have run out",
                extra={"action": "relay.stop"},
            )

    def _say_goodbye(self) -> None:
        if self._keeper is not None:
            self._keeper.join()  # what it has is what we would speak by
        self._stations.clear()
        try:
            self._store.leave(self._config.owner)
        except TallymarkError as error:  # the others will see us gone when our time runs out
            log.warning("could not say goodbye: %s", error, extra={"action": "relay.stop"})
        if self._frontier is not None:
            self._frontier.close()
        self._store.close()

    def _try_to_listen(self) -> None:
        """Say at once where nobody can be woken, as behind a pooler."""
        store = self._stores("listener")
        try:
            store.listen(0)
        finally:
            store.close()

    def _listen(self, stop: threading.Event) -> None:
        store = self._stores("listener")
        while not stop.is_set():
            try:
                if store.listen(1.0):
                    if self._frontier is not None:
                        self._frontier.stir()
                    self._bell.ring()
            except TallymarkError as error:  # lanes still look by themselves, only less often
                log.warning("cannot listen: %s", error, extra={"action": "relay.listen"})
                stop.wait(1.0)
            except Exception:  # a fault of ours, told loudly: lanes still look by themselves
                log.exception("listening failed", extra={"action": "relay.bug"})
                stop.wait(1.0)
        store.close()

    @property
    def _opened(self) -> Identity:
        if self._identity is None:
            raise UsageError("the relay is not open yet", remedy="call open() first")
        return self._identity

    def _drop_lost(self, ours: frozenset[tuple[int, int]]) -> None:
        for number, station in list(self._stations.items()):
            if (number, station.epoch) not in ours:
                station.ask_to_stop(lost=True)
            if not station.alive:
                del self._stations[number]
        # A lane that nobody here works: its station ended without giving it back, or never started. Our heartbeat would
        # keep it from everybody for ever; whoever takes it next settles what was left in doubt.
        for number, epoch in ours - {(s.number, s.epoch) for s in self._stations.values()}:
            self._store.release(
                Lane(number, self._config.owner, epoch, covered=0, last_number=-1, receipt=None)
            )

    def _start(self, lane: Lane) -> None:
        if self._frontier is None:
            raise UsageError("the relay is not open yet", remedy="call open() first")
        store, ahead = self._stores(f"lane {lane.lane}"), self._stores(f"lane {lane.lane} ahead")
        try:
            for each in (store, ahead):
                each.identity()  # so that each connection knows how the outbox is cut
        except BaseException:  # the next round gives the lane back
            store.close()
            ahead.close()
            raise
        worker = LaneWorker(
            lane,
            identity=self._opened,
            store=store,
            ahead=ahead,
            kafka=self._kafka,
            frontier=self._frontier,
            config=self._config,
        )
        station = Station(worker, self._config, self._metrics, self._opened.outbox_id, self._bell)
        self._stations[lane.lane] = station
        log.info(
            "took lane %d (epoch %d)",
            lane.lane,
            lane.epoch,
            extra={"action": "relay.take", "lane": lane.lane},
        )
        station.start()
