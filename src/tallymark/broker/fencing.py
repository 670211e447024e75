"""Transactional ids: two per outbox and lane, used in turn. Whoever starts with one last shuts out every earlier
producer of it: a lane is fenced when both are.
"""

from __future__ import annotations

from tallymark.broker import faults, profiles
from tallymark.broker.kafka import KafkaException, Producer
from tallymark.broker.verdicts import DENIED
from tallymark.errors import AccessDenied, Unreachable
from tallymark.relay.ports import Identity

_CHECK_WITHIN_S = 30.0


def transactional_ids(identity: Identity, lane: int | str) -> tuple[str, str]:
    name = f"tallymark.{identity.outbox_id}.{lane}"
    return name, f"{name}.b"


def fence(producer: Producer, within_s: float) -> None:
    """Shut out every earlier producer of this id, and abort what it left open."""
    try:
        producer.init_transactions(within_s)
    except KafkaException as error:
        raise _not_fenced(error) from error


def may_use_transactions(client: profiles.Client, identity: Identity) -> None:
    """Raise at once, not in some lane later, where Kafka denies this outbox's transactional ids."""
    profile = profiles.transactional_producer(
        client, transactional_id=transactional_ids(identity, "check")[0]
    )
    fence(Producer(profile), _CHECK_WITHIN_S)


def _not_fenced(error: KafkaException) -> Exception:
    cause = faults.error_of(error)
    if cause.code() in DENIED:
        return AccessDenied(
            f"Kafka denies the right to this outbox's transactional ids: {cause.str()}",
            remedy="grant Write and Describe on TransactionalId 'tallymark.<outbox id>' (prefixed), "
            "or run with --mode callback",
        )
    return Unreachable(f"the lane's earlier producer could not be fenced: {faults.explain(error)}")
