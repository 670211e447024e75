"""A consumer's ground (tests/inbox) with the pipeline in it: as a child process, or in this one for quick looks."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tallymark.pipeline.committing import Committed
from tallymark.pipeline.effects import Effect, SqlEffect
from tallymark.pipeline.ingest import IngestConfig
from tallymark.pipeline.station import IngestStation, Job
from tests.children import Child, start_child
from tests.inbox.ground import Ground

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# What tests/inbox/app.py does with a transfer, for a whole batch at once.
APPLY = """
with moved as (
    select (convert_from(value, 'utf8')::jsonb) as value, id, topic, partition, "offset" from {batch}
), booked as (
    insert into effect (message_id, account, n, amount)
    select id::text, value->>'account', (value->>'n')::bigint, (value->>'amount')::bigint from moved
     order by topic, partition, "offset"
    returning account, amount
)
update account a set balance = a.balance + s.amount
  from (select account, sum(amount) as amount from booked group by account) s where a.id = s.account
"""


def pipeline(
    ground: Ground,
    folder: Path,
    *arguments: str,
    crash_point: str | None = None,
    available_now: bool = True,
    lease_seconds: float = 2.0,
    inbox: dict[str, Any] | None = None,
    sql: str = APPLY,
    master: str = "local[2]",
    environment: dict[str, str] | None = None,
) -> Child:
    """`tallymark pipeline ingest` as a child; with `inbox` by the handlers of tests/inbox/app.py."""
    if inbox is None:
        statement = folder / "apply.sql"
        statement.write_text(sql)
        what = ["--consumer", ground.name, "--topic", ground.topic, "--apply-sql", str(statement)]
        for topic in ground.more_topics:
            what += ["--topic", topic]
    else:
        what = ["tests.inbox.app:inbox"]
    options = {"name": ground.name, "topics": [ground.topic, *ground.more_topics], "url": ground.url}
    return start_child(
        [
            *("-m", "tallymark", "pipeline", "ingest", *what, "--database", ground.url),
            *("--bootstrap-servers", ground.servers, "--master", master),
            *(("--available-now",) if available_now else ()),
            *arguments,
        ],
        crash_point=crash_point,
        environment={
            "APP_OPTIONS": json.dumps({**options, **(inbox or {})}),
            "TALLYMARK_INBOX__LEASE_SECONDS": str(lease_seconds),
            **(environment or {}),
        },
    )


class Run:
    """An ingest in this process, over a session that tests share."""

    def __init__(
        self,
        ground: Ground,
        spark: SparkSession,
        effect: Effect | None = None,
        *,
        deferred: bool = False,
        **options: Any,
    ) -> None:
        topics = (ground.topic, *ground.more_topics)
        self._spark = spark
        self._config = IngestConfig(**{"available_now": True, "patience_s": 30, **options})
        self.stop = threading.Event()
        self.done: list[Committed] = []
        self.note: Callable[[Committed], None] = lambda _done: None
        self.station = IngestStation(
            Job(ground.name, topics, effect or SqlEffect(APPLY, topics), deferred=deferred),
            {"bootstrap.servers": ground.servers},
            ground.url,
            stop=self.stop,
            lease_s=2.0,
            note=self._noted,
        )

    def _noted(self, done: Committed) -> None:
        self.done.append(done)
        self.note(done)

    def start(self) -> Future[list[Committed]]:
        """In a thread of its own, until `stop` is set."""
        told: Future[list[Committed]] = Future()

        def run() -> None:
            try:
                told.set_result(self())
            except BaseException as error:  # noqa: BLE001 - raised to whoever asks
                told.set_exception(error)

        # A daemon: one that does not stop fails its own test, and no other.
        threading.Thread(target=run, name="tests-ingest", daemon=True).start()
        return told

    def __call__(self) -> list[Committed]:
        try:
            self.station.take("local")
            self.station.run(self._spark, self._config)
        finally:
            self.station.close()
        return self.done
