"""One ingest with all its parts: stores, positions, transaction, queue. Taken, run and closed in that order."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from tallymark import __version__
from tallymark.broker import peek
from tallymark.broker.offsets import Logs
from tallymark.broker.reach import admin_client
from tallymark.housekeeping import Upkeep, keep_house
from tallymark.inbox.config import InboxConfig, new_owner
from tallymark.inbox.ports import Instance, Place
from tallymark.inbox.screening import Screen
from tallymark.inbox.workers import Noticed, Worker
from tallymark.pipeline.committing import Commit, Committed
from tallymark.pipeline.effects import Effect, SqlEffect
from tallymark.pipeline.ingest import Ingest, IngestConfig
from tallymark.pipeline.machine import of_this_machine
from tallymark.pipeline.runs import new_run
from tallymark.pipeline.tenure import Tenure
from tallymark.store.postgres.inboxstore import PostgresInboxStore, application_of
from tallymark.store.postgres.pipelinestore import PipelineStore
from tallymark.store.postgres.staged import no_rows

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@dataclass(frozen=True, slots=True)
class Job:
    """What is ingested, for whom, and what is done with it."""

    consumer: str
    topics: tuple[str, ...]
    effect: Effect
    # Whether everything goes to the queue first, for workers.
    deferred: bool = False
    # Where a new consumer begins.
    at_end: bool = False
    tx: str = "psycopg"
    alias: str = "default"
    dead_letter_topic: str | None = None


class IngestStation:
    """A run of one consumer, from taking its positions to giving them back."""

    def __init__(
        self,
        job: Job,
        client: Mapping[str, str],
        url: str,
        *,
        stop: threading.Event,
        schema: str = "tallymark",
        lease_s: float = 10.0,
        note: Callable[[Committed], None] = lambda _committed: None,
        upkeep: Upkeep | None = None,
        upkeep_s: float = 60.0,
    ) -> None:
        self._job = job
        self._client = client
        self._stop = stop
        self._note = note
        self._owner, self.run_name = of_this_machine(new_owner()), new_run()
        self._stores: list[PostgresInboxStore] = []
        self._upkeep, self._upkeep_s = upkeep, upkeep_s
        self._over = threading.Event()

        def store(name: str) -> PostgresInboxStore:
            made = PostgresInboxStore(
                url,
                job.consumer,
                schema=schema,
                tx=job.tx,
                alias=job.alias,
                application=f"{application_of(self._owner)}, {job.consumer} {name}"[:63],
                dead_letter_topic=job.dead_letter_topic,
            )
            self._stores.append(made)
            return made

        control = store("control")
        mode = "deferred" if job.deferred else "inline"
        here = socket.gethostname(), os.getpid()
        handlers = job.effect.handlers
        instance = Instance(
            self._owner,
            job.consumer,
            job.topics,
            mode,
            __version__,
            *here,
            unordered=handlers.unordered,
            versioned=handlers.versioned,
        )
        control.enlist(instance, lease_s)
        screen = Screen(_needs_saved_id(job.effect), *control.memory())
        self._tenure = Tenure(
            control,
            store("pulse"),
            Logs(admin_client(dict(client))),
            screen,
            owner=self._owner,
            topics=job.topics,
            lease_s=lease_s,
            at_end=job.at_end,
            refused=partial(peek.refused, dict(client)),
        )
        self._store = PipelineStore(
            url, lambda: store("commit"), schema=schema, consumer=job.consumer, run=self.run_name
        )
        self._commit = Commit(job.effect, screen, run=self.run_name, deferred=job.deferred)
        noticed = Noticed()

        def make_worker() -> Worker:
            return Worker(
                store("worker"),
                self._commit.applier,
                InboxConfig(job.consumer, job.topics, owner=self._owner),
                stop,
                held_back=self._tenure.paused,
                noticed=noticed,
            )

        self._make_worker = make_worker

    def take(self, master: str) -> None:
        """Take the positions, or say who has them; nothing of Spark is needed for that."""
        if isinstance(self._job.effect, SqlEffect):
            self._store.refuse_unworkable(self._job.effect.over(no_rows()))
        self._tenure.take(self._stop.wait)
        self._tenure.keep_alive()
        self._store.begin(self._owner, self._job.topics, master)
        arguments = ("pipeline", self._over, self._keep_house, self._upkeep_s)
        threading.Thread(target=keep_house, args=arguments, name="tallymark-upkeep", daemon=True).start()

    def positions(self) -> dict[Place, int]:
        """Where the positions that it holds stand."""
        return {place: each.next_offset for place, each in self._tenure.positions().items()}

    @property
    def is_paused(self) -> bool:
        """Whether an operator has paused this consumer, as the last heartbeat saw it."""
        return self._tenure.paused.is_set()

    def _keep_house(self) -> None:
        """A run may last for months: its own ledger must not grow with them."""
        self._store.forget()
        if self._upkeep is not None:
            self._upkeep()

    def run(self, spark: SparkSession, config: IngestConfig) -> None:
        """Until the backlog is read, or told to stop."""
        self.ingest(spark, config).run()

    def ingest(self, spark: SparkSession, config: IngestConfig) -> Ingest:
        return Ingest(
            spark,
            self._client,
            self._store,
            self._tenure,
            self._commit,
            self._make_worker,
            config,
            stop=self._stop,
            note=self._note,
        )

    def close(self, trouble: str | None = None) -> None:
        """Give everything back; `trouble` says why it ended where that was not as asked."""
        self._over.set()
        self._tenure.release()
        self._store.end(trouble)
        for each in self._stores:
            each.close()


def _needs_saved_id(effect: Effect) -> Callable[[str], bool]:
    return lambda topic: effect.handlers.of(topic).once.needs_saved_id
