"""What leaves a batch when some of its messages cannot be published. Pure.

A message that failed alone is parked. Where keys are held, those of its key behind it, in the same batch, wait
with it. Where a whole topic failed, the topic is held, in one row, instead of parking its messages one by one.
"""

from __future__ import annotations

from collections.abc import Sequence

from tallymark.relay.ports import Exclusion, Rejected, Row

_WAITS = "waits behind a parked message of its key"


def exclusion_of(rejected: Rejected, rows: Sequence[Row], *, hold_key: bool) -> Exclusion:
    """Turn failures into what leaves the batch."""
    topics = {failure.topic: failure.reason for failure in rejected.failures if failure.whole_topic}
    failed = {
        failure.position: failure.reason
        for failure in rejected.failures
        if not failure.whole_topic and failure.topic not in topics
    }
    waiting: dict[int, str] = {}
    if hold_key and failed:
        held: set[tuple[str, bytes]] = set()
        for position, _id, topic, key, *_ in rows:
            if key is None or topic in topics:
                continue
            if (topic, key) in held:
                failed.pop(position, None)
                waiting[position] = _WAITS
            elif position in failed:
                held.add((topic, key))
    return Exclusion(failed=failed, waiting=waiting, topics=topics)


def by_message(exclusion: Exclusion, rows: Sequence[Row]) -> Exclusion:
    """The same with no topics: parked messages are not in a range that a topic could be caught up from.

    Those of the topic fail again, the first of each key; what stands behind it waits again.
    """
    failed, waiting = dict(exclusion.failed), dict(exclusion.waiting)
    held: set[tuple[str, bytes]] = set()
    for position, _id, topic, key, *_ in rows:
        if topic not in exclusion.topics:
            continue
        if key is not None and (topic, key) in held:
            waiting[position] = _WAITS
        else:
            failed[position] = exclusion.topics[topic]
            if key is not None:
                held.add((topic, key))
    return Exclusion(failed=failed, waiting=waiting)
