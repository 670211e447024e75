"""One way to make a client of Kafka: a setting that it does not take is the user's to put right, and said so.

Which settings are refused depends on the kind: a producer refuses what an admin client has no use for and lets pass.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from tallymark.broker import faults, profiles
from tallymark.broker.kafka import KafkaException

_C = TypeVar("_C")


def made(kind: Callable[[profiles.Profile], _C], profile: profiles.Profile) -> _C:
    """A client of this kind; settings that librdkafka refuses become a clear error."""
    try:
        return kind(profile)
    except KafkaException as error:
        raise faults.wrong_setting(error) from error
