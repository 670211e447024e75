"""Receipts: for each lane, in a partition of its own, what it last committed.

A receipt is written in the same Kafka transaction as its batch, so it is in the log exactly when the batch is. The
topic is compacted and belongs to one outbox: two lanes that shared a partition could hide each other's receipts behind
an open transaction.
"""

from __future__ import annotations

import json
from dataclasses import replace

from tallymark.broker import faults, profiles, topics
from tallymark.broker.clients import made
from tallymark.broker.kafka import (
    Consumer,
    KafkaError,
    KafkaException,
    Message,
    NewPartitions,
    TopicPartition,
)
from tallymark.broker.patience import Patience
from tallymark.broker.reach import admin_client
from tallymark.broker.safety import Purpose, judge, refused
from tallymark.errors import AccessDenied, Inconsistent, OutcomeUnknown, Problem, Unreachable
from tallymark.relay.ports import Batch, Identity, Receipt

FORMAT = 1
_SETTINGS = {
    # Nobody asks when a receipt was written: no clock, ours or the database's, is a reason to refuse one.
    "message.timestamp.type": "LogAppendTime",
    # Kafka compacts no segment that is still written to. By default that is one for a gigabyte or a week: millions of
    # receipts, to be read one and all where the last one that was marked is gone.
    "segment.bytes": str(16 * 1024 * 1024),
}
# So long nothing may come before what is asked for counts as unknown.
_WAIT_S = 20.0
_HEARD_OF_S = 5.0


def topic_of(identity: Identity, prefix: str) -> str:
    """The receipts topic of an outbox."""
    return f"{prefix}receipts.{identity.outbox_id}"


def key_of(identity: Identity, lane: int) -> bytes:
    return f"{identity.outbox_id}/{lane}".encode()


def written(identity: Identity, batch: Batch) -> bytes:
    """A batch's receipt, as it is stored."""
    return json.dumps(
        {
            "format": FORMAT,
            "outbox": identity.outbox_id,
            "lane": batch.lane,
            "number": batch.number,
            "token": batch.token,
            "after": batch.after,
            "upto": batch.upto,
            "messages": batch.messages,
        }
    ).encode()


def read_back(value: bytes, offset: int) -> Receipt:
    """A stored receipt."""
    try:
        found = json.loads(value)
        if found["format"] > FORMAT:
            raise Inconsistent(
                f"a receipt of format {found['format']} is newer than this Tallymark knows ({FORMAT})",
                remedy="upgrade Tallymark here",
            )
        return Receipt(found["number"], found["token"], offset, found["outbox"], found["lane"])
    except (ValueError, KeyError, TypeError) as error:
        raise Inconsistent(
            f"what stands at offset {offset} of the receipts is no receipt: {error}"
        ) from error


def prepare(
    client: profiles.Client, identity: Identity, prefix: str, accepted: frozenset[str], copies: int
) -> str:
    """Make the receipts topic, or check that it is the one recorded and safe; gives back its topic id."""
    admin = admin_client(client)
    name = topic_of(identity, prefix)
    # One that is recorded, or was just made, may be unknown to the broker that is asked for a moment.
    patience = _HEARD_OF_S if identity.receipts_topic_id else 0
    facts = topics.describe(admin, [name], patience=patience).get(name)
    if facts is None:
        if identity.receipts_topic_id is not None:
            raise Inconsistent(
                f"the receipts topic {name} is gone: what was sent can no longer be told from it",
                remedy="was it deleted, or is this another Kafka? See docs/relay.md, 'Receipts lost'",
            )
        spec = topics.TopicSpec(name, identity.lanes, copies, Purpose.RECEIPTS, _SETTINGS)
        topics.create(admin, spec)
        facts = topics.describe(admin, [name], patience=_HEARD_OF_S).get(name)
        if facts is None:
            raise Unreachable(f"the receipts topic {name} was made and cannot be seen", remedy="try again")
    if identity.receipts_topic_id not in (None, facts.topic_id):
        raise Inconsistent(
            f"the receipts topic {name} was recreated (id {facts.topic_id}, recorded {identity.receipts_topic_id})",
            remedy="what was sent can no longer be told from it; see docs/relay.md, 'Receipts lost'",
        )
    for finding in refused(judge(facts, Purpose.RECEIPTS), accepted):
        raise Problem(
            f"the receipts topic {name} is not safe: {finding.rule} is {finding.found}, {finding.safe} is needed",
            remedy=f"put it right, or run with --accept-risk {finding.rule}",
        )
    if not facts.writable:
        raise AccessDenied(
            f"Kafka denies the right to write into the receipts topic {name}",
            remedy=f"grant Write and Describe on topic '{name}', or run with --mode callback",
        )
    if facts.partitions < identity.lanes:
        try:
            admin.create_partitions([NewPartitions(name, identity.lanes)])[name].result()
        except KafkaException as error:
            raise faults.explain(error, doing=f"adding partitions to {name}") from error
    return facts.topic_id


def last(
    client: profiles.Client,
    identity: Identity,
    lane: int,
    prefix: str,
    after: Receipt | None,
    patience: Patience,
) -> Receipt | None:
    """The lane's last committed receipt. Call only after fencing: then nothing more can be added behind it.

    The end is taken with a read_uncommitted client; a read_committed one must get there. Where it does not, something
    is still open before the end, and what it will be is unknown: never "not sent".
    """
    topic = topic_of(identity, prefix)
    low, end = _ends(client, TopicPartition(topic, lane))
    start = max(low, after.offset if after else low)
    if start >= end:
        return None
    reader = made(Consumer, profiles.reader(client))
    try:
        reader.assign([TopicPartition(topic, lane, start)])
        return _scan(reader, identity, lane, end, patience)
    except KafkaException as error:
        raise OutcomeUnknown(
            f"the receipts of lane {lane} cannot be read: {faults.explain(error)}"
        ) from error
    finally:
        reader.close()


def _ends(client: profiles.Client, partition: TopicPartition) -> tuple[int, int]:
    whole = made(Consumer, profiles.reader(client, committed=False))
    try:
        low, high = whole.get_watermark_offsets(partition, timeout=_WAIT_S)
        return low, high
    except KafkaException as error:
        raise OutcomeUnknown(
            f"the end of the receipts of lane {partition.partition} is unknown: {faults.explain(error)}"
        ) from error
    finally:
        whole.close()


def _scan(reader: Consumer, identity: Identity, lane: int, end: int, patience: Patience) -> Receipt | None:
    """However many there are: as long as some come, the end comes nearer."""
    last: Message | None = None
    ours, goes_on = key_of(identity, lane), patience.begin(_WAIT_S)
    while goes_on():
        for message in reader.consume(1000, timeout=0.2):
            error = message.error()
            if error is None:
                if message.key() != ours:  # what does not belong here is found wherever it stands
                    _read_ours(message, identity, lane)
                last, goes_on = message, patience.begin(_WAIT_S)
            elif error.code() == KafkaError._PARTITION_EOF and (message.offset() or 0) >= end:
                return _read_ours(last, identity, lane) if last is not None else None
            elif error.code() != KafkaError._PARTITION_EOF and not error.retriable():
                raise KafkaException(error)
    raise OutcomeUnknown(f"the receipts of lane {lane} could not be read to their end at offset {end}")


def _read_ours(message: Message, identity: Identity, lane: int) -> Receipt:
    found = read_back(message.value() or b"", message.offset() or 0)
    if (found.outbox_id, found.lane) != (identity.outbox_id, lane):
        raise Inconsistent(
            f"a receipt of outbox {found.outbox_id}, lane {found.lane} stands among those of "
            f"{identity.outbox_id}, lane {lane}"
        )
    return replace(found, lane=lane)
