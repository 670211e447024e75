"""Transactional ids: two per outbox and lane, used in turn. Whoever starts with one last shuts out every earlier
producer of it: a lane is fenced when both are.
"""

from __future__ import annotations

from tallymark.broker import faults, profiles
from tallymark.broker.clients import made
from tallymark.broker.kafka import KafkaError, KafkaException, Producer
from tallymark.broker.patience import Patience
from tallymark.broker.verdicts import DENIED
from tallymark.errors import AccessDenied, Unreachable
from tallymark.relay.ports import Identity

_CHECK_WITHIN_S = 30.0
_TOO_LONG = frozenset({KafkaError.INVALID_TRANSACTION_TIMEOUT})
# In slices: whoever is told to stop meanwhile does not wait for the rest.
_SLICE_S = 1.0


def transactional_ids(identity: Identity, lane: int | str) -> tuple[str, str]:
    name = f"tallymark.{identity.outbox_id}.{lane}"
    return name, f"{name}.b"


def fence(producer: Producer, patience: Patience) -> None:
    """Shut out every earlier producer of this id, and abort what it left open."""
    goes_on = patience.begin()
    while True:
        try:
            producer.init_transactions(_SLICE_S)
            return
        except KafkaException as error:
            # What has timed out goes on in the client, and is asked for again.
            if not (faults.error_of(error).retriable() and goes_on()):
                raise _not_fenced(error) from error


def is_too_long(refusal: Unreachable) -> bool:
    """Whether the brokers refuse a transaction that may take as long as ours."""
    cause = refusal.__cause__
    return isinstance(cause, KafkaException) and faults.error_of(cause).code() in _TOO_LONG


def may_use_transactions(client: profiles.Client, identity: Identity) -> None:
    """Raise at once, not in some lane later, where Kafka denies this outbox's transactional ids."""
    profile = profiles.transactional_producer(
        client, transactional_id=transactional_ids(identity, "check")[0]
    )
    fence(made(Producer, profile), Patience(_CHECK_WITHIN_S))


def _not_fenced(error: KafkaException) -> Exception:
    cause = faults.error_of(error)
    if cause.code() in DENIED:
        return AccessDenied(
            f"Kafka denies the right to this outbox's transactional ids: {cause.str()}",
            remedy="grant Write and Describe on TransactionalId 'tallymark.<outbox id>' (prefixed), "
            "or run with --mode callback",
        )
    return Unreachable(f"the lane's earlier producer could not be fenced: {faults.explain(error)}")
