"""What was sent to a consumer between two times or positions: lines of JSON, slice by slice, in fixed memory.

A slice is a short transaction of its own. However slowly somebody reads, no snapshot and no connection is held for
them between two slices, and what was not asked for yet is not read. The end is fixed when it starts; the last line
says how many there were, so that a stream that was cut off is known for one.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, NamedTuple

from tallymark.store.postgres.connection import Connection
from tallymark.store.postgres.search import Search
from tallymark.store.postgres.searchpool import SearchPool
from tallymark.store.queries import load

_ROWS = 5_000
_BYTES = 2 << 20
# So many positions a slice looks at, where few of them are of its topics.
_STRETCH = 200_000


@dataclass(frozen=True, slots=True)
class Span:
    """From and to, each a moment or a position; None is open. From is inside, to is not."""

    since: datetime | None = None
    until: datetime | None = None
    first: int | None = None
    end: int | None = None


class _Standing(NamedTuple):
    """Up to where each lane had sent everything when the stream began, and which topics were held then, from where on.

    Asked once: a batch that is marked between two slices would else leave a hole before its key's later messages.
    """

    lanes: int
    covered: list[int]
    held_lanes: list[int]
    held_topics: list[str]
    held_after: list[int]


class _Slice(NamedTuple):
    """Some messages, and up to where there is nothing else."""

    messages: int
    seen_upto: int
    text: bytes


class Streaming:
    """One outbox, read for a consumer that lost what it had."""

    def __init__(self, pool: SearchPool, schema: str = "tallymark") -> None:
        self._pool = pool
        self._search = Search(pool, schema)
        self._sql = load("tallymark.store.postgres", "streaming.sql", schema)

    def lines(self, topics: Sequence[str], span: Span, *, payload: bool) -> Iterator[bytes]:
        """Whole lines, several in each piece. The first piece is read before this returns: what fails, fails here."""
        with self._pool.connection() as connection:
            ends = self._search.ends(connection)
            after, before = self._search.between(connection, ends, span.since, span.until)
            after = max(after, (span.first or 0) - 1)
            upto = min(before - 1, ends.last, ends.last if span.end is None else span.end - 1)
            standing = _Standing(*connection.execute(self._sql["standing"]).fetchone() or (1, [], [], [], []))
            asked = {
                **standing._asdict(),
                "topics": list(topics),
                "since": span.since,
                "until": span.until,
                "payload": payload,
            }
            first = self._slice(connection, after, upto, asked)
        return self._pieces(first, upto, min([upto, *standing.covered]), asked, ends.earliest)

    def _pieces(
        self, piece: _Slice, upto: int, complete: int, asked: dict[str, Any], earliest: int | None
    ) -> Iterator[bytes]:
        messages = piece.messages
        if piece.text:
            yield piece.text
        while piece.seen_upto < upto:
            with self._pool.connection(patience_s=30.0) as connection:
                piece = self._slice(connection, piece.seen_upto, upto, asked)
            messages += piece.messages
            if piece.text:
                yield piece.text
        end = {"end": True, "messages": messages, "upto": complete, "earliest": earliest}
        yield json.dumps(end).encode() + b"\n"

    def _slice(self, connection: Connection, after: int, upto: int, asked: dict[str, Any]) -> _Slice:
        """What lies in the next stretch, as far as it fits. Where nothing does, the stretch is done with."""
        here = min(upto, after + _STRETCH)
        bounds = {"after": after, "upto": here, "rows": _ROWS, "bytes": _BYTES}
        row = connection.execute(self._sql["slice"], {**asked, **bounds}, binary=True).fetchone()
        messages, last, text = row or (0, None, None)
        return _Slice(messages, here if last is None else last, text or b"")
