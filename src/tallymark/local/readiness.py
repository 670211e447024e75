"""Wait until servers can really be used; say why when one cannot.

A port that was free when we looked and taken when the server bound it is told apart from all other failures
(`PortLost`), because the cure is to choose another and start again.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from tallymark.broker.probe import NOTHING, Probe
from tallymark.crashpoint import reached
from tallymark.errors import Problem
from tallymark.local.broker import Broker
from tallymark.local.brokerfiles import replication
from tallymark.local.jars import Report
from tallymark.local.ports import HOST
from tallymark.local.postgres import Postgres

PATIENCE_S = 90.0
_LOOK_AGAIN_S = 0.1
_TAKEN = "Address already in use"


class PortLost(Problem):
    """A server did not start because another program took its port in the meantime."""


def wait_postgres(postgres: Postgres) -> None:
    try:
        postgres.wait_ready()
    except Problem as problem:
        if _TAKEN in postgres.output_file.read_text(errors="replace") or _TAKEN in str(problem):
            raise PortLost(f"{postgres.name} lost its port to another program while it started") from problem
        raise


def wait_brokers(brokers: Sequence[Broker], report: Report, deadline: float) -> None:
    """Until all of them serve, a transaction has run, and every replica is in sync."""
    report("waiting for the brokers")
    for broker in brokers:
        _wait_serving(broker, deadline)
    reached("local.before_probe")
    report("running a transaction")
    probe = Probe(",".join(f"{HOST}:{broker.port}" for broker in brokers))
    probe.use(copies=replication(len(brokers)), deadline=deadline)
    report("waiting for the replicas")
    _wait(
        lambda: (probe.sight() or NOTHING).under_replicated == 0, brokers, deadline, "bring replicas in sync"
    )


def wait_broker(broker: Broker) -> None:
    """Until one broker serves clients."""
    _wait_serving(broker, time.monotonic() + PATIENCE_S)


def _wait_serving(broker: Broker, deadline: float) -> None:
    # The broker itself is asked: the others count a killed one as serving until its session has run out.
    probe = Probe(f"{HOST}:{broker.port}")
    _wait(lambda: broker.number in (probe.sight() or NOTHING).brokers, [broker], deadline, "serve clients")


def _wait(done: Callable[[], bool], brokers: Sequence[Broker], deadline: float, what: str) -> None:
    while not done():
        for broker in brokers:
            _check_alive(broker)
        if time.monotonic() > deadline:
            names = ", ".join(broker.name for broker in brokers)
            raise Problem(
                f"{names} did not {what} in {PATIENCE_S:.0f} s",
                remedy=f"The log of the first is {brokers[0].log_file}. Is the machine very busy?",
            )
        time.sleep(_LOOK_AGAIN_S)


def _check_alive(broker: Broker) -> None:
    if broker.is_alive():
        return
    log = broker.log_since_start()
    if _TAKEN in log:
        raise PortLost(f"{broker.name} lost its port to another program while it started")
    told = [line for line in log.splitlines() if "ERROR" in line or "Exception" in line or "rror:" in line]
    raise Problem(
        f"{broker.name} stopped while it started: {told[-1].strip() if told else 'it gave no reason'}",
        remedy=f"Its log is {broker.log_file}.",
    )
