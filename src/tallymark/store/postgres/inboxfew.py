"""Few rows in one statement, as columns for unnest: COPY waits for the server twice, which is most of what a few cost.

Sent in a pipeline with what is asked next, they cost no wait of their own.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import psycopg

from tallymark.inbox.ports import Application, Received
from tallymark.store.postgres.connection import Connection

# From so many rows on COPY is the quicker way.
FEW = 200


def pipelined(connection: Connection) -> AbstractContextManager[object]:
    """What is sent within the block is answered at its end, all at once. One by one where libpq is too old for it."""
    return connection.pipeline() if psycopg.Pipeline.is_supported() else nullcontext()


def inbox_columns(messages: Sequence[Received]) -> dict[str, Any]:
    """For `keep_few`."""
    names = (
        "ids",
        "sources",
        "named",
        "topics",
        "partitions",
        "offsets",
        "positions",
        "keys",
        "values",
        "headers",
        "logged_ats",
    )
    return {name: list(column) for name, column in zip(names, zip(*messages, strict=True), strict=True)}


def application_columns(applications: Sequence[Application]) -> dict[str, Any]:
    """For `record_few`."""
    messages = [each.message for each in applications]
    return {
        "sources": [each.source for each in messages],
        "topics": [each.topic for each in messages],
        "outcomes": [str(each.outcome) for each in applications],
        "ids": [each.id for each in messages],
        "attempts": [each.attempt for each in applications],
        "partitions": [each.partition for each in messages],
        "offsets": [each.offset for each in messages],
    }
