"""The queue of what is kept and not finished, inside one transaction: claimed by key, read in order, finished or failed.

The rule (pitfall 17): a worker locks keys, and only then reads their lowest rows, with a snapshot taken after the
lock. A key's rows are handed out from its lowest on, without a gap, and never past one that is dead or due later.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from itertools import groupby
from math import ceil
from typing import Any

import psycopg

from tallymark.errors import Stale
from tallymark.inbox.ports import Claim, ClaimBounds, Failed, Queued, Received
from tallymark.store.postgres.connection import Connection
from tallymark.store.postgres.handed import ours
from tallymark.store.postgres.inboxcopy import QUEUE, queue_pieces
from tallymark.store.queries import load

# A drawn number stands for this many rows, this far apart: room for what an operator puts back in between.
BLOCK_ROWS = 1024
STEP = 64

# Why a message is dead that never failed.
NOT_IN_THE_INBOX = (
    "the inbox does not have it: was a partition dropped by hand? Put it back and retry, or discard it"
)

log = logging.getLogger("tallymark.inbox")

Answer = psycopg.Cursor[tuple[Any, ...]]


def together(keys: Sequence[int], apart: Collection[int]) -> list[list[int]]:
    """Keys in their order, cut into runs that are claimed at once: one of `apart` stands alone. Pure."""
    runs: list[list[int]] = []
    for alone, run in groupby(keys, apart.__contains__):
        members = list(run)
        runs += [[key] for key in members] if alone else [members]
    return runs


class Queue:
    """One consumer's unfinished messages, as one transaction sees and changes them."""

    def __init__(self, connection: Connection, *, schema: str, consumer: str) -> None:
        self._connection = connection
        self._schema = schema
        self._consumer = consumer
        self._sql = load("tallymark.store.postgres", "queue.sql", schema)
        self._gate_passed = False
        # Behind the gate nothing is put back that was not there before: asked once.
        self._any: bool | None = None
        self.mark: str | None = None

    def any_queued(self) -> bool:
        if self._any is None:
            self.hear(self.ask())
        return bool(self._any)

    def ask(self) -> tuple[Answer, Answer]:
        """Pass the gate and look behind it, in statements of their own. In a pipeline, the answers come at its end."""
        return self._sent("pass_gate"), self._sent("any_queued")

    def hear(self, answers: tuple[Answer, Answer]) -> None:
        gate, look = answers
        ((_, self.mark),), ((self._any,),) = gate.fetchall(), look.fetchall()
        self._gate_passed = True

    def held(self, key_hashes: Collection[int]) -> frozenset[int]:
        if not key_hashes or not self.any_queued():
            return frozenset()
        return frozenset(row[0] for row in self._rows("held", keys=list(key_hashes)))

    def enqueue(self, rows: Sequence[Queued]) -> list[int]:
        if not rows:
            return []
        # Before a place is drawn: an operator who looks for the place of an earlier message must see ours.
        self._pass_gate()
        self._any = True
        blocks = [row[0] for row in self._rows("draw", blocks=ceil(len(rows) / BLOCK_ROWS))]
        seqs = [blocks[n // BLOCK_ROWS] + n % BLOCK_ROWS * STEP for n in range(len(rows))]
        with ours(self._connection) as cursor, cursor.copy(QUEUE.format(self._schema)) as copy:
            for piece in queue_pieces(rows, seqs, self._consumer):
                copy.write(piece)
        return seqs

    def claim(self, after: int, bounds: ClaimBounds) -> Claim:
        ours = list(bounds.topics)
        at_once = min(bounds.keys, bounds.rows)
        # More candidates than keys: other workers hold some of them.
        scan = self._rows("claim_scan", after=after, topics=ours, candidates=4 * bounds.keys + 16)
        found: list[int] = []
        locked: list[int] = []
        for found in together([row[0] for row in scan], bounds.apart):
            if rows := self._rows("claim_lock", keys=found, limit=at_once):
                locked, self.mark = [row[0] for row in rows], rows[0][1]
                break
        if not locked:
            return Claim((), found[-1] if found else after)
        claimed, kept_at = self._read(locked, ours, bounds.rows, bounds.max_bytes)
        got = {row.key_hash for row in claimed}
        ends = [key for key in locked if key in got]
        if ends and ends[-1] != locked[-1]:  # the bound was reached: those behind it come next
            return Claim(claimed, ends[-1], kept_at)
        return Claim(claimed, locked[-1] if len(locked) >= at_once else found[-1], kept_at)

    def finish(self, rows: Sequence[Queued]) -> None:
        standing = [row for row in rows if row.seq is not None]
        if not standing:
            return
        (done,) = self._rows("finish", **_places(standing))[0]
        if done != len(standing):
            raise Stale(
                f"{len(standing) - done} of {len(standing)} messages had left the queue before they were finished"
            )

    def fail(self, failures: Sequence[Failed]) -> None:
        placed = self._placed(failures)
        later = [f for f in placed if f.again_in_s is not None]
        dead = [f for f in placed if f.again_in_s is None]
        if later:
            self._rows("put_off", **_failed(later), again=[f.again_in_s for f in later])
        if not dead:
            return
        with ours(self._connection) as cursor:
            cursor.executemany(self._sql["write_dead"], [self._dead_letter(f) for f in dead])
        if held := [f for f in dead if f.hold_key]:
            self._rows("bury", **_failed(held))
        if passed := [f.queued for f in dead if not f.hold_key and f.queued.seq is not None]:
            self._rows("drop", **_places(passed))

    def committed(self, mark: str | None) -> bool:
        ((committed, self.mark),) = self._rows("committed", mark=mark)
        return bool(committed)

    def standing(self, rows: Sequence[Queued]) -> list[Queued]:
        self._rows("lock_keys", keys=sorted({row.key_hash for row in rows}))
        return [rows[n - 1] for (n,) in self._rows("standing", **_places(rows))]

    def quarantine(self, messages: Sequence[tuple[Received, str]]) -> None:
        if not messages:
            return
        with ours(self._connection) as cursor:
            cursor.executemany(
                self._sql["quarantine"],
                [(self._consumer, *_columns(message), clean(reason)) for message, reason in messages],
            )

    def _read(
        self, keys: Sequence[int], topics: Sequence[str], rows: int, max_bytes: int
    ) -> tuple[list[Queued], datetime | None]:
        bounds = {"each": ceil(rows / len(keys)), "rows": rows, "max_bytes": max_bytes}
        claimed, missing = [], dict[int, int]()
        first_kept_at: datetime | None = None
        for row in self._rows("claim_read", binary=True, keys=keys, topics=topics, **bounds):
            key_hash, seq = row[11:13]
            if key_hash in missing:
                continue  # it waits behind that one
            if row[0] is None:
                missing[key_hash] = seq
            else:
                claimed.append(Queued(Received._make(row[:11]), key_hash, seq, row[13]))
                first_kept_at = first_kept_at or row[14]
        if missing:
            self._bury_missing(missing)
        return claimed, first_kept_at

    def _bury_missing(self, places: Mapping[int, int]) -> None:
        """Not an error of whoever claims: it would stop all keys for the sake of one."""
        buried = self._rows(
            "bury_missing", keys=list(places), seqs=list(places.values()), reason=NOT_IN_THE_INBOX
        )
        for (id,) in buried:
            log.critical(
                "message %s is queued for %s, and %s",
                id,
                self._consumer,
                NOT_IN_THE_INBOX,
                extra={"action": "inbox.missing"},
            )

    def _pass_gate(self) -> None:
        if not self._gate_passed:
            ((_, self.mark),) = self._rows("pass_gate")
            self._gate_passed = True

    def _placed(self, failures: Sequence[Failed]) -> list[Failed]:
        """Those that have no place in the queue yet, and need one, get it."""
        bare = [f for f in failures if f.queued.seq is None and (f.again_in_s is not None or f.hold_key)]
        if not bare:
            return list(failures)
        seqs = iter(self.enqueue([f.queued for f in bare]))
        found = {id(f): next(seqs) for f in bare}
        return [
            f._replace(queued=f.queued._replace(seq=found[id(f)])) if id(f) in found else f for f in failures
        ]

    def _dead_letter(self, failure: Failed) -> tuple[Any, ...]:
        queued = failure.queued
        return (
            self._consumer,
            *_columns(queued.message),
            queued.key_hash,
            queued.seq if failure.hold_key else None,
            clean(failure.reason),
            clean(failure.traceback),
            queued.attempts + 1,
        )

    def _rows(self, name: str, *, binary: bool = False, **parameters: Any) -> list[tuple[Any, ...]]:
        cursor = self._sent(name, binary=binary, **parameters)
        return cursor.fetchall() if cursor.description else []

    def _sent(self, name: str, *, binary: bool = False, **parameters: Any) -> Answer:
        cursor = ours(self._connection, binary=binary)
        # Not prepared: a plan made for an empty queue would be kept for a full one.
        return cursor.execute(self._sql[name], {"consumer": self._consumer, **parameters}, prepare=False)


def clean(text: str) -> str:
    """Text as PostgreSQL takes it: no NUL, no half of a surrogate pair."""
    return text.encode("utf-8", "replace").decode().replace("\0", "\ufffd")


def _columns(message: Received) -> tuple[Any, ...]:
    # What is here could often not be kept as usual, so its texts may be anything.
    named = None if message.named is None else clean(message.named)
    return (message.id, clean(message.source), named, *message[3:11])


def _places(rows: Sequence[Queued]) -> dict[str, Any]:
    return {"keys": [row.key_hash for row in rows], "seqs": [row.seq for row in rows]}


def _failed(failures: Sequence[Failed]) -> dict[str, Any]:
    return {
        **_places([f.queued for f in failures]),
        "attempts": [f.queued.attempts + 1 for f in failures],
        "reasons": [clean(f.reason) for f in failures],
    }
