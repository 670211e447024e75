"""How much of a replay the driver holds at once: windows of offsets, cut by weight into pieces, those into chunks. Pure.

What lies in a window is weighed by Spark before it is fetched, a few offsets at a time; a piece is as many of those as
one fetch may weigh. So neither many messages nor large ones make the driver larger, whatever a topic holds.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from tallymark.inbox.ports import Received
from tallymark.pipeline.manifest import Move, Place

# Offsets that are weighed together, and so fetched together however much they weigh.
CELL = 32
# What a row costs beside its bytes, as an object of Python's and of Java's.
ROW_WEIGHT = 1_000


@dataclass(frozen=True, slots=True)
class Portion:
    """How much at a time."""

    # Offsets that are weighed by one job, of all partitions together.
    window: int = 500_000
    # What is fetched by one job, in bytes.
    piece: int = 32 * 1024 * 1024
    # Messages of one transaction.
    chunk: int = 2_000
    chunk_bytes: int = 8 * 1024 * 1024


@dataclass(frozen=True, slots=True, order=True)
class Cell:
    """What is asked for among CELL offsets of a partition, from number * CELL on."""

    topic: str
    partition: int
    number: int
    weight: int

    @property
    def place(self) -> Place:
        return self.topic, self.partition


def windows(moves: Iterable[Move], at_most: int) -> Iterator[tuple[Move, ...]]:
    """All of it in order, each partition by an equal share of so many offsets."""
    left = [move for move in moves if move.start < move.end]
    while left:
        share = max(1, at_most // len(left))
        yield tuple(replace(move, end=min(move.end, move.start + share)) for move in left)
        left = [replace(move, start=move.start + share) for move in left if move.start + share < move.end]


def pieces(window: Sequence[Move], cells: Iterable[Cell], at_most: int) -> Iterator[tuple[Move, ...]]:
    """A window's cells in order, as many to a piece as weigh so much; one that weighs more stands alone."""
    whole = {move.place: move for move in window}
    piece: dict[Place, Move] = {}
    weight = 0
    for cell in sorted(cells):
        if piece and weight + cell.weight > at_most:
            yield tuple(piece.values())
            piece, weight = {}, 0
        move = whole[cell.place]
        start = max(move.start, cell.number * CELL)
        end = min(move.end, (cell.number + 1) * CELL)
        piece[cell.place] = replace(piece.get(cell.place, replace(move, start=start)), end=end)
        weight += cell.weight
    if piece:
        yield tuple(piece.values())


def chunks(messages: Iterable[Received], portion: Portion) -> Iterator[list[Received]]:
    """Messages in order, as many to a transaction as there may be, or as weigh so much."""
    chunk: list[Received] = []
    weight = 0
    for message in messages:
        size = len(message.key or b"") + len(message.value or b"") + len(message.headers)
        if chunk and (len(chunk) == portion.chunk or weight + size > portion.chunk_bytes):
            yield chunk
            chunk, weight = [], 0
        chunk.append(message)
        weight += size
    if chunk:
        yield chunk
