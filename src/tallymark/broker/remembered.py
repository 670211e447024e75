"""What a publisher remembers, so that it need not be worked out for each message: headers, and keys' partitions.

Bounded; what is forgotten is worked out anew and comes to the same.
"""

from __future__ import annotations

from tallymark.broker.partition import partition_of
from tallymark.message import kafka_headers

Pairs = list[tuple[str, str | bytes | None]]

# What is remembered is bounded in number and in length, so that it is a few megabytes at most for each topic.
_KNOWN_HEADINGS = 1_024
_KNOWN_KEYS = 16_384
_LONGEST_KNOWN = 1_024


class Headings(dict[str, Pairs]):
    """Headers as Kafka takes them, by their text. Most messages of a service share theirs: parsed once."""

    def __missing__(self, text: str) -> Pairs:
        pairs: Pairs = list(kafka_headers(text))
        if len(text) <= _LONGEST_KNOWN:
            if len(self) >= _KNOWN_HEADINGS:
                self.clear()
            self[text] = pairs
        return pairs


class Placing(dict[bytes, int]):
    """Keys' partitions in a topic of so many. Keys come again: placed once."""

    def __init__(self, partitions: int) -> None:
        super().__init__()
        self.partitions = partitions

    def __missing__(self, key: bytes) -> int:
        partition = partition_of(key, self.partitions)
        if len(key) <= _LONGEST_KNOWN:
            if len(self) >= _KNOWN_KEYS:
                self.clear()
            self[key] = partition
        return partition
