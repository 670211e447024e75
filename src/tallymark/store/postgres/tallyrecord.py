"""How far everybody had come, as a snapshot keeps it beside its tables: what the tally asks first, as JSON.

Recorded before the tables are read, as on a live system: what was marked as sent or passed by then is in them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from datetime import datetime
from typing import Any

from tallymark.store.postgres.tally import (
    ConsumerView,
    Delayed,
    ProducerView,
    TallyConsumers,
    TallyProducer,
    what_is_here,
)
from tallymark.tally.records import Letter, ParkedRow, Queued
from tallymark.tally.windows import Frontier

_EVERYTHING = 2**63 - 1


def recorded(url: str, *, schema: str = "tallymark") -> dict[str, Any]:
    """What is to be kept of a database."""
    outbox, inbox = what_is_here(url, schema=schema)
    said: dict[str, Any] = {"producer": None, "parked": [], "consumers": [], "retired": []}
    if outbox:
        producer = TallyProducer(url, schema=schema)
        said["producer"] = _of_producer(producer.view())
        said["parked"] = [dataclasses.asdict(row) for row in producer.parked(0, _EVERYTHING)]
    if inbox:
        consumers = TallyConsumers("", url, schema=schema)
        said["consumers"] = [_of_consumer(view) for view in consumers.views()]
        said["retired"] = sorted(consumers.retired())
    return said


def producer_of(said: Mapping[str, Any]) -> ProducerView | None:
    given = said["producer"]
    if given is None:
        return None
    return ProducerView(
        outbox_id=given["outbox_id"],
        lanes=given["lanes"],
        outbox_from=given["outbox_from"],
        frontier=Frontier(**given["frontier"]),
        settled=tuple(given["settled"]),
        holds={(lane, topic): position for lane, topic, position in given["holds"]},
        topics={topic: (topic_id, partitions) for topic, topic_id, partitions in given["topics"]},
        # Snapshots of earlier versions do not say whose positions they are.
        resends=[(position, of, id_[0] if id_ else "") for position, of, *id_ in given["resends"]],
        at=datetime.fromisoformat(given["at"]),
        # Snapshots of earlier versions do not say.
        remade={topic: datetime.fromisoformat(at) for topic, at in given.get("remade", ())},
        overdue=[
            Delayed(id_, topic, None if key is None else bytes.fromhex(key), datetime.fromisoformat(due_at))
            for id_, topic, key, due_at in given.get("overdue", ())
        ],
    )


def parked_of(said: Mapping[str, Any]) -> list[ParkedRow]:
    return [ParkedRow(**row) for row in said["parked"]]


def consumers_of(said: Mapping[str, Any], database: str) -> list[ConsumerView]:
    return [
        ConsumerView(
            database=database,
            name=given["name"],
            topics=frozenset(given["topics"]),
            created_at=datetime.fromisoformat(given["created_at"]),
            kept_from_ms=given["kept_from_ms"],
            unordered=None if given["unordered"] is None else frozenset(given["unordered"]),
            next_offsets={(topic, part): offset for topic, part, offset in given["next_offsets"]},
            # Snapshots of earlier versions do not say.
            starts={(topic, part): offset for topic, part, offset in given.get("starts", ())},
            begun={topic: datetime.fromisoformat(at) for topic, at in given.get("begun", ())},
            topic_ids={(topic, part): id_ for topic, part, id_ in given.get("topic_ids", ())},
            dropped=frozenset(given.get("dropped", ())),
            placeless=given.get("placeless", False),
            queued=[Queued(**row) for row in given["queued"]],
            letters=[Letter(**row) for row in given["letters"]],
            queued_at=given["queued_at"],
            dead_at=given["dead_at"],
            discarded_at=given.get("discarded_at", []),
            unkept_at=given["unkept_at"],
            pruned=frozenset(given.get("pruned", ())),
        )
        for given in said["consumers"]
    ]


def retired_of(said: Mapping[str, Any]) -> set[str]:
    # Snapshots of earlier versions do not say.
    return set(said.get("retired", ()))


def _of_producer(view: ProducerView) -> dict[str, Any]:
    return {
        "outbox_id": view.outbox_id,
        "lanes": view.lanes,
        "outbox_from": view.outbox_from,
        "frontier": dataclasses.asdict(view.frontier),
        "settled": list(view.settled),
        "holds": [[*where, position] for where, position in view.holds.items()],
        "topics": [[topic, *rest] for topic, rest in view.topics.items()],
        "resends": [list(each) for each in view.resends],
        "at": view.at.isoformat(),
        "remade": [[topic, at.isoformat()] for topic, at in view.remade.items()],
        "overdue": [
            [each.id, each.topic, None if each.key is None else each.key.hex(), each.due_at.isoformat()]
            for each in view.overdue
        ],
    }


def _of_consumer(view: ConsumerView) -> dict[str, Any]:
    return {
        "name": view.name,
        "topics": sorted(view.topics),
        "created_at": view.created_at.isoformat(),
        "kept_from_ms": view.kept_from_ms,
        "unordered": None if view.unordered is None else sorted(view.unordered),
        "next_offsets": [[*place, offset] for place, offset in view.next_offsets.items()],
        "starts": [[*place, offset] for place, offset in view.starts.items()],
        "begun": [[topic, at.isoformat()] for topic, at in view.begun.items()],
        "topic_ids": [[*place, id_] for place, id_ in view.topic_ids.items()],
        "dropped": sorted(view.dropped),
        "placeless": view.placeless,
        "queued": [dataclasses.asdict(row) for row in view.queued],
        "letters": [dataclasses.asdict(row) for row in view.letters],
        "queued_at": view.queued_at,
        "dead_at": view.dead_at,
        "discarded_at": view.discarded_at,
        "unkept_at": view.unkept_at,
        "pruned": sorted(view.pruned),
    }
