"""What the demo breaks, for real: each with a title, what is done to the naive twin beside it, and what came of it.

Whatever dies is started again by the supervisor. The same is done to both: where ours has a relay, the twin has a bank
that sends by itself, so that this one is struck.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import dataclass

from tallymark.errors import Problem
from tallymark.lab import kafkalook
from tallymark.lab.bank import bank, naive_bank, naive_ledger
from tallymark.lab.services import Service, must, until
from tallymark.lab.soundings import Soundings
from tallymark.lab.stage import LEASE_S, Stage
from tallymark.lab.traffic import Traffic

_PATIENCE_S = 120.0
_SPARK_S = 150.0
# So many of the twin's transfers must be on their way in memory, or booked and not committed, when it is struck.
_UNSENT, _FEW_UNSENT = 60, 10
_LEADERLESS_S = 3.0
_UNCOMMITTED = 20
_NOT_SENT = "the receipts said that the batch is not in the log: it was sent"
_RELAY_POINTS = {
    "relay.mid_produce": ("with half of a batch handed to Kafka", _NOT_SENT),
    "relay.before_kafka_commit": ("with a batch handed to Kafka and not committed", _NOT_SENT),
    "relay.after_kafka_commit": (
        "after Kafka's commit, before its own mark",
        "the receipt said that the batch is in the log: it was not sent again",
    ),
}


@dataclass(slots=True)
class Scene:
    """What a fault works on. `note` tells the display what is going on in it."""

    stage: Stage
    soundings: Soundings
    traffic: Traffic
    chance: random.Random
    note: Callable[[str], None]
    relay_point: str = ""
    relay_pid: int = 0
    # A message of the batch that was in doubt when its relay died.
    survivor: str = ""

    def service(self, name: str) -> Service:
        return self.stage.crew[name]

    def must(self, condition: Callable[[], object], what: str, within: float = _PATIENCE_S) -> None:
        """Wait for it, with traffic going on all the while."""

        def look() -> object:
            self.traffic.keep_going()
            return condition()

        must(look, within=within, what=what, crew=self.stage.crew)

    def caught_up(self, follower: str) -> Callable[[], bool]:
        """Whether a follower has come to where the bank is now."""
        target = self.soundings.committed() or 0
        return lambda: (self.soundings.booked(follower) or 0) >= target


def start_armed_relay(scene: Scene) -> None:
    """The first relay will die by itself, by the seed at one of three moments in a batch."""
    scene.relay_point = scene.chance.choice(list(_RELAY_POINTS))
    relay = scene.service("relay-1")
    relay.start(crash_point=f"{scene.relay_point}:{scene.chance.randint(4, 9)}")
    scene.relay_pid = relay.pid


def relay_killed(scene: Scene) -> str:
    relay = scene.service("relay-1")
    scene.note("waiting until it is in mid-batch")
    scene.must(lambda: relay.killed, "relay-1 dies in mid-batch")
    scene.service("naive-bank").kill()
    began = time.monotonic()
    scene.note("the batch is in doubt: the other relay looks for its receipt")
    scene.must(lambda: scene.soundings.last_batch_state(scene.relay_pid) == "sent", "the batch is resolved")
    scene.survivor = scene.soundings.message_of_last_batch(scene.relay_pid) or ""
    when, then = _RELAY_POINTS[scene.relay_point]
    return f"killed -9 {when}; {time.monotonic() - began:.1f} s later {then}"


def consumer_killed(scene: Scene) -> str:
    armed = scene.service("ledger-2")
    scene.note("a ledger process joins; it will die after its effect, before its commit")
    armed.start(crash_point=f"apply.mid_handler:{scene.chance.randint(3, 12)}")
    armed.give_up()
    doubled = _kill_naive_consumer(scene)
    scene.note("waiting until a message's effect is made and not committed")
    scene.must(lambda: not armed.is_alive(), "ledger-2 dies between effect and commit")
    if "crash point apply.mid_handler" not in armed.log.read_text(errors="replace"):
        raise Problem(f"ledger-2 ended by itself, and was not killed: {armed.last_words()}")
    began = time.monotonic()
    scene.note("Kafka gives the dead one's partitions to the other process")
    scene.must(scene.caught_up("ledger"), "the other ledger process takes over")
    return (
        f"killed -9 between effect and commit; undone, and applied by the other {time.monotonic() - began:.1f} s "
        f"later. The twin's had at least {doubled} booked and not committed"
    )


def _kill_naive_consumer(scene: Scene) -> int:
    """Between two of its auto-commits, when it has booked what Kafka does not know of; how many those are at least.

    A commit covers the batch in hand, which may not be booked yet: that many do not count.
    """
    soundings, naive = scene.soundings, scene.service("naive-ledger-1")

    def known() -> int:
        found: list[int] = []

        def look() -> bool:
            found[:] = [each for each in [scene.stage.naive_group.committed()] if each]
            return bool(found)

        scene.must(look, "the twin's consumer commits by itself")
        return found[0]

    while True:
        before = known()
        scene.must(lambda: known() != before, "the twin's consumer commits again")  # noqa: B023 - at once
        committed, base = known(), soundings.naive_booked() or 0
        scene.must(
            lambda: (soundings.naive_booked() or 0) >= base + naive_ledger.BATCH + _UNCOMMITTED,  # noqa: B023 - at once
            "the twin's consumer books transfers",
        )
        naive.kill()
        booked = (soundings.naive_booked() or 0) - base - naive_ledger.BATCH
        if known() == committed:
            return booked
        # On a slow machine it has just committed: once more.


def rebalance(scene: Scene) -> str:
    second, naive = scene.service("ledger-2"), scene.service("naive-ledger-2")
    scene.note("a second ledger process joins")
    second.start()
    naive.start()
    scene.must(lambda: scene.soundings.partitions_of(second.pid), "the second ledger process gets partitions")
    shared = scene.soundings.partitions_of(second.pid) or 0
    scene.must(scene.caught_up("ledger"), "both go on")
    scene.note("and leaves again")
    second.stop()
    naive.stop()
    scene.must(scene.caught_up("ledger"), "the first goes on alone")
    return f"a second ledger process took {shared} partitions, and gave them back"


def broker_killed(scene: Scene) -> str:
    number = kafkalook.leader(scene.stage.admin, (bank.TOPIC, naive_bank.TOPIC))
    broker = scene.stage.cluster.broker(number)
    broker.kill()
    scene.note(f"broker {number} is dead; the banks go on")
    base, since = scene.soundings.naive_committed() or 0, time.monotonic()

    def enough() -> bool:
        """Soon, before Kafka has chosen new leaders: until then what the twin sends stays in its memory."""
        more = (scene.soundings.naive_committed() or 0) - base
        return more >= _UNSENT or (more >= _FEW_UNSENT and time.monotonic() - since > _LEADERLESS_S)

    scene.must(enough, "the banks go on taking orders")
    scene.note("the banks are killed too, with committed transfers on their way")
    scene.service("bank").kill()
    scene.service("naive-bank").kill()
    broker.start(wait=False)
    began = time.monotonic()
    scene.note(f"broker {number} comes back; relays wait for new leaders")
    target = scene.soundings.committed() or 0
    scene.must(lambda: (scene.soundings.logged() or 0) >= target, "relays go on")
    return (
        f"broker {number}, leader of most, and then both banks killed -9; all that was committed reached the log "
        f"{time.monotonic() - began:.1f} s later"
    )


def relay_frozen(scene: Scene) -> str:
    relays = [scene.service("relay-1"), scene.service("relay-2")]
    scene.chance.shuffle(relays)
    scene.must(lambda: any(scene.soundings.lanes_of(each.pid) for each in relays), "a relay holds a lane")
    frozen = next(each for each in relays if scene.soundings.lanes_of(each.pid))
    naive = scene.service("naive-bank")
    began = time.monotonic()
    frozen.freeze()
    naive.freeze()
    try:
        scene.note(f"{frozen.name} is stopped (SIGSTOP) for longer than its lease")
        scene.must(
            lambda: time.monotonic() - began > LEASE_S + 1 and scene.soundings.lanes_of(frozen.pid) == 0,
            "the other relay takes its lanes",
        )
        taken = time.monotonic() - began
        fenced = scene.soundings.fenced() or 0
        scene.note(f"{frozen.name} wakes up and believes that it still owns them")
    finally:
        frozen.wake()
        naive.wake()
    scene.must(lambda: (scene.soundings.fenced() or 0) > fenced, f"{frozen.name} is fenced")
    target = scene.soundings.committed() or 0
    scene.must(lambda: (scene.soundings.logged() or 0) >= target, "both relays go on")
    return f"{frozen.name} frozen past its lease; the other had its lanes after {taken:.1f} s; woken, it was fenced"


def postgres_restarted(scene: Scene) -> str:
    began = time.monotonic()
    server = scene.stage.cluster.postgres
    scene.note("PostgreSQL shuts down")
    server.stop()
    scene.note("PostgreSQL starts")
    server.start()
    away = time.monotonic() - began
    scene.must(lambda: scene.soundings.committed() is not None, "PostgreSQL answers")
    scene.must(scene.caught_up("ledger"), "everybody reconnects")
    return f"away for {away:.1f} s under all of them; every service reconnected and went on"


def spark_killed(scene: Scene) -> str:
    spark = scene.service("spark")
    scene.note("waiting until Spark has applied its first batches")
    must(  # whatever traffic there is will do
        lambda: (scene.soundings.booked("report") or 0) > 0,
        within=_SPARK_S,
        what="Spark applies its first batch",
        crew=scene.stage.crew,
    )
    before = scene.soundings.booked("report") or 0
    spark.kill()
    until(spark.is_alive, within=5.0)
    return f"driver and JVM killed -9 at {before:,} transfers; started again, it goes on from its positions"
