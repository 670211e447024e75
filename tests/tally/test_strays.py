"""Records that claim no position of ours are looked up where they stand: the rest of the log is not read once more."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tallymark.broker.reach import admin_client
from tallymark.pipeline.kafkasource import Offsets
from tallymark.pipeline.reconcile import Tally
from tallymark.pipeline.reconcilesources import LiveLog, Sources
from tallymark.tally.records import Place
from tests.inbox.ground import ends
from tests.promises.test_p6_sabotage import produce
from tests.tally.ground import Journey, named
from tests.tally.test_snapshots import CONFIG

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Reading = dict[Place, tuple[int, int]]


@dataclass(frozen=True)
class Watched(LiveLog):
    """A log of which is written down what is read."""

    read: list[Reading] = field(default_factory=list)

    def raw(self, spark: SparkSession, starts: Offsets, ends: Offsets) -> DataFrame:
        self.read.append({place: (start, ends[place]) for place, start in starts.items()})
        return super().raw(spark, starts, ends)


@dataclass(frozen=True)
class WatchedSources(Sources):
    read: list[Reading] = field(default_factory=list)

    @property
    def log(self) -> Watched:
        return Watched(self.client, self.admin, read=self.read)


def test_strays_are_looked_for_between_the_offsets_where_they_stand(spark: Any, journey: Journey) -> None:
    ids = journey.add([f"key-{n % 20}" for n in range(100)])
    journey.send()
    (copied,) = [record for record in journey.bank.log() if record.id == ids[30]]
    low = ends(journey.bank.servers, journey.bank.topic, 3)[copied.partition]
    # Somebody else's; a copy of one of ours that has lost its place; and one of somebody who gives no ids.
    produce(journey, b"theirs", b"{}", [("ce_id", b"theirs")], copied.partition)
    unplaced = [each for each in copied.headers if each[0] != "tm_position"]
    produce(journey, copied.key, copied.value, unplaced, copied.partition)
    produce(journey, b"theirs", b"{}", [], copied.partition)
    journey.add([f"key-{n % 20}" for n in range(100)])
    journey.send()
    client = {"bootstrap.servers": journey.bank.servers}
    sources = WatchedSources({"bank": journey.bank.url}, {}, client, admin_client(client))
    found = Tally(spark, sources, CONFIG).run().as_json()
    assert named(found["findings"]) == {(ids[30], "", "doubled-in-log", "log")}
    assert found["by_verdict"]["foreign"] == 3
    whole = ends(journey.bank.servers, journey.bank.topic, 3).items()
    assert sources.read[:2] == [
        {(journey.bank.topic, partition): (0, end) for partition, end in whole},
        {(journey.bank.topic, copied.partition): (low, low + 3)},
    ]
