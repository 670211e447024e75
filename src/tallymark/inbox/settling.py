"""What became of a batch whose positions were to be moved: committed, not ours any more, or not done.

The positions in the database are the only witness: read, never guessed.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

from tallymark.errors import TallymarkError
from tallymark.inbox.book import Book
from tallymark.inbox.handover import Batch
from tallymark.inbox.outcome import Outcome
from tallymark.inbox.ports import InboxStore, Move, Place

log = logging.getLogger("tallymark.inbox")


class Settler:
    """Asks over the keeper's connection, and tells the book what it has found. `ours`: whether positions are in the
    database at all."""

    def __init__(self, store: InboxStore, book: Book, *, ours: bool) -> None:
        self._store = store
        self._book = book
        self._ours = ours

    def moves(self, part: Batch) -> list[Move]:
        if not self._ours:
            return []
        last = {(each.topic, each.partition): each.logged_at for each in part.messages}
        return [
            Move(
                *place,
                part.epochs[place],
                part.starts[place],
                end,
                part.leader_epochs.get(place),
                last.get(place),
            )
            for place, end in part.ends.items()
        ]

    def committed(self, part: Batch, outcome: Outcome) -> None:
        self._book.note_committed(part.ends, part.epochs)
        outcome.ends.update(part.ends)

    def settled(
        self, part: Batch, moves: Sequence[Move], outcome: Outcome, suspect: frozenset[Place] | None = None
    ) -> bool:
        """Whether this part was committed after all, by an earlier try of ours; sets aside what is not ours.

        Without positions of ours there is nothing to read: it runs again, and saved ids tell what was kept.
        """
        if not moves:
            return False
        try:
            positions = self._store.positions()
        except TallymarkError:
            return False  # still away: the next try asks again
        lost, done = set(), set()
        for move in moves:
            place = move.topic, move.partition
            found = positions.get(place)
            if found is None or found.epoch != move.epoch or found.halted is not None:
                lost.add(place)
            elif found.next_offset == move.end and move.end != move.start:
                done.add(place)
            elif found.next_offset != move.start:
                lost.add(place)
        if lost:
            self._fenced(lost, outcome)
        if done and done | lost >= {(move.topic, move.partition) for move in moves}:
            self.committed(part.only(done), outcome)
            outcome.kept += len(part.messages)
            return True
        if suspect and not lost and not done:
            # The database refused these, and yet finds nothing wrong with them: somebody else is moving them.
            self._fenced(set(suspect), outcome)
        return False

    def _fenced(self, places: set[Place], outcome: Outcome) -> None:
        self._book.set_aside(places)
        outcome.fenced |= places
        log.error(
            "another owner has taken %s; what was read for it changes nothing",
            ", ".join(f"{topic}/{partition}" for topic, partition in sorted(places)),
            extra={"action": "inbox.fenced"},
        )
        try:
            self._store.count_fenced(places)
        except TallymarkError as error:  # the count is for status only; the log line above stands
            log.warning("could not count it: %s", error, extra={"action": "inbox.fenced"})
