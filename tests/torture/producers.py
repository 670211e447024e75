"""Producers that speak to Kafka directly, in transactions: what the inbox is tortured with where no relay is wanted.

Some transactions are aborted: their messages must leave no effect. A number per key rises in the order of the log, since
each key belongs to one producer. Where an outcome is unknown, the log itself says later what became of it.
"""

from __future__ import annotations

import json
import random
import threading

from confluent_kafka import KafkaException, Producer

from tallymark.message import new_id

KEYS = 12


class Producing(threading.Thread):
    """Sends until `stop` is set."""

    def __init__(self, servers: str, topic: str, seed: str, stop: threading.Event) -> None:
        super().__init__(name=f"producer-{seed}", daemon=True)
        self.failure: BaseException | None = None
        self._servers = servers
        self._topic = topic
        self._seed = seed
        self._random = random.Random(seed)  # noqa: S311 - a seed that can be given again is the point
        self._stopped = stop
        self._numbers = dict.fromkeys((f"key-{seed}-{n}" for n in range(KEYS)), 0)

    def run(self) -> None:
        while not self._stopped.is_set():
            try:
                self._session()
            except KafkaException:  # brokers are being killed: a new session fences what is left of this one
                self._stopped.wait(0.5)
            except BaseException as error:  # noqa: BLE001 - handed to whoever joins: the run has failed
                self.failure = error
                return

    def _session(self) -> None:
        producer = Producer(
            {
                "bootstrap.servers": self._servers,
                "transactional.id": f"torture-{self._topic}-{self._seed}",
                "transaction.timeout.ms": 20_000,
                "partitioner": "murmur2_random",
                "retry.backoff.ms": 10,
                "log_level": 0,
            }
        )
        producer.init_transactions(30)
        while not self._stopped.is_set():
            producer.begin_transaction()
            for _ in range(self._random.randint(1, 40)):
                self._send(producer)
            if self._random.random() < 0.1:
                producer.abort_transaction(30)
            else:
                producer.commit_transaction(30)
            self._stopped.wait(self._random.choice([0, 0.005, 0.05]))

    def _send(self, producer: Producer) -> None:
        key = self._random.choice(list(self._numbers))
        self._numbers[key] += 1
        producer.produce(
            self._topic,
            key=key.encode(),
            value=json.dumps(
                {"seq": self._numbers[key], "note": "x" * self._random.randint(0, 300)}
            ).encode(),
            headers=[
                ("ce_specversion", b"1.0"),
                ("ce_id", str(new_id()).encode()),
                ("ce_source", f"/torture/{self._seed}".encode()),
                ("content-type", b"application/json"),
            ],
        )
