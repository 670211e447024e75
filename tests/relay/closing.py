"""python -m tests.relay.closing SERVERS TOPIC ROUNDS HOW: lets go of a lane's producers in mid-transaction.

Again and again. HOW: `close` all of them, or `renew` the one whose turn it is, and go on to the next batch.
"""

from __future__ import annotations

import os
import sys
import uuid

from tallymark.broker.producers import LaneProducers, PublisherSettings
from tallymark.lifecycle import Mode
from tallymark.policy import ModePolicy
from tallymark.relay.ports import Identity, TopicRecord

# So long does Kafka take, here and there, to answer which partitions a transaction has.
_ANSWERED_S = 0.008


def fenced(servers: str, topic: str) -> LaneProducers:
    """Of an outbox of its own: nobody waits until what another left open is aborted."""
    settings = PublisherSettings(
        {"bootstrap.servers": servers},
        Identity(str(uuid.uuid4()), 1, None),
        0,
        ModePolicy.of(Mode.TRANSACTIONAL),
        "closing",
        30.0,
    )
    producers = LaneProducers(settings, [TopicRecord(topic, "", 3, 1_048_588)])
    producers.fence()
    return producers


def main(servers: str, topic: str, rounds: int, how: str) -> None:
    producers = fenced(servers, topic)
    for turn in range(rounds):
        producers.now.begin_transaction()
        for number in range(50):
            producers.now.produce(topic, os.urandom(200), partition=number % 3)
        producers.now.poll(_ANSWERED_S * (turn % 16) / 16)
        if how == "renew":
            producers.renew()
            producers.turn()
        else:
            producers.close()
            producers = fenced(servers, topic)
    producers.close()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4])
