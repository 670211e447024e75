"""Processes under torture: relays or inboxes, some with a crash point armed, restarted whenever they are gone."""

from __future__ import annotations

import random
import signal
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import psutil
import psycopg

from tests.children import Child, start_child

LEASE_S = 2.0
BY_ITSELF = "ended by themselves"
CRASHED = "crashed"
KILLED = "killed"
AT_A_POINT = "killed at a crash point"
_FULL_SIZE = 10_000


@dataclass(frozen=True)
class Trade:
    """What a fleet's processes do, and where they can be caught."""

    name: str
    arguments: tuple[str, ...]
    points: tuple[str, ...]
    # What belongs to the process with some pid, in the database.
    holdings: str
    # How its sessions are called there.
    sessions: str


RELAY = Trade(
    "relay",
    ("-m", "tallymark", "relay", "run"),
    (
        "relay.before_claim",
        "relay.after_claim",
        "relay.mid_produce",
        "relay.before_kafka_commit",
        "relay.after_kafka_commit",
        "relay.before_mark",
        "relay.after_mark",
    ),
    "select count(*) from tallymark.lanes where split_part(owner, ':', 2) = %s",
    "tallymark relay%",
)
INBOX = Trade(
    "inbox",
    ("-m", "tallymark", "inbox", "run", "tests.torture.app:inbox"),
    (
        "inbox.after_poll",
        "inbox.before_keep",
        "inbox.after_keep",
        "apply.mid_handler",
        "inbox.before_commit",
        "inbox.after_commit",
        "inbox.before_kafka_commit",
        "inbox.after_kafka_commit",
        "worker.after_claim",
        "worker.before_commit",
        "worker.after_commit",
    ),
    "select count(*) from tallymark.positions where split_part(owner, ':', 2) = %s",
    "tallymark inbox%",
)


@dataclass
class Member:
    """One process and whether its death would be by our hand."""

    child: Child
    armed: str | None


class Fleet:
    """Several processes of one trade. Use as a context manager: none outlives it."""

    def __init__(
        self,
        trade: Trade,
        size: int,
        url: str,
        environment: Mapping[str, str],
        folder: Path,
        rng: random.Random,
    ) -> None:
        self.trade = trade
        self.url = url
        self.counts: Counter[str] = Counter()
        self.last_words = ""
        self._size = size
        self._environment = environment
        self._folder = folder
        self._random = rng
        self._members: list[Member] = []
        self._started = 0
        self._sizes = [20, 200, _FULL_SIZE]  # small ones: more batches to be caught in

    def __enter__(self) -> Fleet:
        return self

    def __exit__(self, *_: object) -> None:
        for member in self._members:
            member.child.kill()
        self._bury()

    @property
    def children(self) -> list[Child]:
        return [member.child for member in self._members]

    def pick(self) -> Child:
        return self._random.choice(self._members).child

    def tend(self, *, arm: bool) -> None:
        """Bury the dead and start others in their place; some are armed to die or stop at a point of their choice."""
        self._bury()
        while len(self._members) < self._size:
            point = None
            if arm and self._random.random() < 0.4:
                name, count = self._random.choice(self.trade.points), self._random.randint(1, 40)
                action = self._random.choice(["kill", "kill", "stop", "term"])
                point = f"{name}:{count}:{action}"
            section = f"TALLYMARK_{self.trade.name.upper()}__"
            child = start_child(
                self.trade.arguments,
                crash_point=point,
                environment={
                    **self._environment,
                    f"{section}LEASE_SECONDS": str(LEASE_S),
                    f"{section}BATCH_MESSAGES": str(self._random.choice(self._sizes)),
                },
                cwd=self._folder if self.trade is RELAY else None,
            )
            self._started += 1
            self._members.append(Member(child, point))

    def stopped(self) -> list[Child]:
        """Those that a crash point has stopped."""
        return [m.child for m in self._members if m.child.is_alive() and is_stopped(m.child)]

    def disarm(self) -> None:
        """At the end: wake what is stopped, kill what could still strike by itself, and start afresh at full size."""
        for member in self._members:
            if member.child.is_alive() and is_stopped(member.child):
                member.child.cont()
            if member.armed is not None:
                member.child.kill()
        self.retire()
        self._sizes = [_FULL_SIZE]
        self.tend(arm=False)

    def retire(self) -> list[int]:
        """SIGTERM to all; their exit codes."""
        for member in self._members:
            member.child.terminate()
        codes = [member.child.wait(60) for member in self._members]
        self._bury()
        return codes

    def _bury(self) -> None:
        for member in [m for m in self._members if not m.child.is_alive()]:
            self._members.remove(member)
            code = member.child.wait()
            if code == 0:
                self.counts["ended by SIGTERM"] += 1
            elif code < 0 and -code not in (signal.SIGKILL, signal.SIGTERM):
                # Nobody sent it that: the client's own assertions, say.
                self.counts[f"{CRASHED} ({signal.Signals(-code).name})"] += 1
                self.last_words = member.child.output[-1000:]
            elif code < 0:
                at_point = "crash point " in member.child.output
                self.counts[AT_A_POINT if at_point else KILLED] += 1
            else:  # it could not start (something was away): its supervisor starts it again
                self.counts[BY_ITSELF] += 1
                self.last_words = member.child.output[-1000:]
            name = f"{self.trade.name}-{self._started:04}-{member.child.pid}-exit{code}.txt"
            (self._folder / name).write_text(f"armed: {member.armed}\n{member.child.output}")
            with member.child:  # closes and deletes its output
                pass


def crashed(blows: Mapping[str, int]) -> bool:
    """Whether a process died by a signal that nobody sent it: its log is kept, though nothing be lost by it."""
    return any(blow.startswith(CRASHED) for blow in blows)


def is_stopped(child: Child) -> bool:
    try:
        return psutil.Process(child.pid).status() == psutil.STATUS_STOPPED
    except psutil.NoSuchProcess:
        return False


def holdings_of(fleet: Fleet, pid: int) -> int:
    """How many lanes or partitions the process with this id still holds, as the database has it."""
    with psycopg.connect(fleet.url, connect_timeout=5) as connection:
        row = connection.execute(fleet.trade.holdings.encode(), [str(pid)]).fetchone()
    assert row is not None
    return int(row[0])
