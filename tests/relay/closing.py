"""python -m tests.relay.closing SERVERS TOPIC ROUNDS: closes a lane's producers in mid-transaction, again and again."""

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


def main(servers: str, topic: str, rounds: int) -> None:
    for turn in range(rounds):
        # An outbox of its own each time: nobody waits until what was left open is aborted.
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
        producers.now.begin_transaction()
        for number in range(50):
            producers.now.produce(topic, os.urandom(200), partition=number % 3)
        producers.now.poll(_ANSWERED_S * (turn % 16) / 16)
        producers.close()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
