"""The heartbeat: keeps our leases, learns whether we are paused or fenced, and looks whether topics are still the same.

In a thread of its own, over a connection of its own: a slow batch must not cost us the lease, nor a slow database the
membership in the group.
"""

from __future__ import annotations

import logging
import threading
import time

from tallymark.errors import TallymarkError
from tallymark.inbox.book import Book
from tallymark.inbox.config import InboxConfig
from tallymark.inbox.logport import Log
from tallymark.inbox.ports import InboxStore, Instance
from tallymark.inbox.screening import Screen
from tallymark.inbox.tallies import Tallies

log = logging.getLogger("tallymark.inbox")

_LOOK_S = 10.0


class Pulse:
    """Beats every third of a lease."""

    def __init__(
        self,
        store: InboxStore,
        kafka: Log,
        book: Book,
        screen: Screen,
        held_back: threading.Event,
        instance: Instance,
        config: InboxConfig,
    ) -> None:
        self._store = store
        self._kafka = kafka
        self._book = book
        self._screen = screen
        self._held_back = held_back
        self._instance = instance
        self._config = config
        self._heard = time.monotonic()
        # When lapsed processes were last looked for, or since when one could be told from a database that stood still.
        self._looked_at = time.monotonic()

    @property
    def beating(self) -> bool:
        """Whether heartbeats go through."""
        return time.monotonic() - self._heard < self._config.lease_s

    def run(self, done: threading.Event, tallies: Tallies) -> None:
        """Beat until told to stop."""
        while not done.is_set():
            try:
                self.run_once(tallies, done)
            except TallymarkError as error:
                log.warning("heartbeat: %s", error, extra={"action": "inbox.pulse"})
            except Exception:  # whatever it is, without heartbeats others take what is ours
                log.exception("heartbeat", extra={"action": "inbox.pulse"})
            done.wait(min(1.0, self._config.lease_s / 3))
        self._store.close()

    def watch_topics(self, done: threading.Event, store: InboxStore, tallies: Tallies) -> None:
        """Look at Kafka now and then, apart from the beats: it may take its time to answer."""
        while not done.wait(_LOOK_S):
            try:
                self._look(store, tallies)
            except TallymarkError as error:
                log.warning("looking at the topics: %s", error, extra={"action": "inbox.look"})
            except Exception:  # the next look may be luckier
                log.exception("looking at the topics", extra={"action": "inbox.look"})
        store.close()

    def run_once(self, tallies: Tallies, done: threading.Event) -> None:
        """One beat."""
        ours = self._book.epochs()
        standing = self._store.heartbeat(self._config.owner, self._config.lease_s, ours)
        if not standing.known and not done.is_set():
            # Somebody tidied us away while we could not be heard.
            self._store.enlist(self._instance, self._config.lease_s)
        before, self._heard = self._heard, time.monotonic()
        (self._held_back.set if standing.paused else self._held_back.clear)()
        if self._config.positions == "database":
            gone = {place for place, epoch in ours.items() if standing.epochs.get(place) != epoch}
            still = self._book.ours({place: ours[place] for place in gone})
            if still:
                log.error(
                    "no longer ours (another has taken it, or it was sought by hand): %s",
                    ", ".join(f"{topic}/{partition}" for topic, partition in sorted(still)),
                    extra={"action": "inbox.fenced"},
                )
                self._book.set_aside(still)
                self._store.count_fenced(still)
                tallies.fenced(len(still))
        self._screen.look(*self._store.memory())
        self._end_lapsed(since=before)

    def _end_lapsed(self, since: float) -> None:
        """Free what those of us hold that stand still: whoever has no partition is followed by nobody."""
        lease = self._config.lease_s
        if self._heard - since > lease / 2:
            self._looked_at = self._heard  # nobody could be heard: the others have yet to say that they live
        if self._heard - self._looked_at < lease:
            return
        self._looked_at = self._heard
        if ended := self._store.end_lapsed(self._config.owner):
            log.warning(
                "ended %d sessions of processes that are gone or stand still: what they had locked is free",
                ended,
                extra={"action": "inbox.lapsed"},
            )

    def _look(self, store: InboxStore, tallies: Tallies) -> None:
        """Topics made anew are noticed here too, before a position is moved far in the wrong log (fault S6)."""
        held = self._book.held()
        if not held:
            return
        ids = self._kafka.topic_ids({topic for topic, _ in held})
        positions = store.positions()
        other = {
            place
            for place in held
            if place in positions and place[0] in ids and positions[place].topic_id != ids[place[0]]
        }
        if other:
            log.critical("made anew: %s", sorted(other), extra={"action": "inbox.recreated"})
            self._book.set_aside(other)
        bounds = self._kafka.bounds(held)
        tallies.lag({place: end - held[place].committed for place, (_, end) in bounds.items()}, positions)
