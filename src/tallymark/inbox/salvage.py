"""After a handler that ended its transaction past the guard: what was done gets its marks, what was not is not lost.

Its commit has kept messages, and made the effects before it, without a mark of either: read again they count as known,
and would never be applied. What was done is recorded; what was being handed over is a dead letter, for nobody knows how
much of it was made; the rest goes to the queue, in order. Where the handler rolled back instead, nothing stands: the
work runs again, and what ended it is not called.
"""

from __future__ import annotations

import enum
import logging
import threading
from collections.abc import Callable, Sequence

from tallymark.apply.applied import TransactionBroken
from tallymark.inbox.obituary import tell
from tallymark.inbox.ports import InboxStore, InboxTx, Queued, Received
from tallymark.observe.retrying import told_again
from tallymark.policy import Backoff

log = logging.getLogger("tallymark.inbox")

Name = tuple[str, object]


class Mended(enum.Enum):
    """What became of a broken transaction."""

    WRITTEN = "its marks are written"
    NOTHING_LEFT = "it was rolled back"
    STOPPED = "we were told to stop first"


def name_of(message: Received) -> Name:
    return message.source, message.id


class Salvage:
    """What one broken transaction left: `mark` is its own, `rows` what it had kept or claimed, in order."""

    def __init__(self, broken: TransactionBroken, mark: str | None, rows: Sequence[Queued]) -> None:
        self._broken = broken
        self._mark = mark
        self._rows = rows
        self._done = {name_of(each.message): each for each in broken.applied.applications}
        self._failed = {name_of(each.queued.message): each for each in broken.failed}

    def suspects(self) -> dict[Name, Exception | None]:
        """What is not to be called again as it was: one alone is known, of a list it is any of them."""
        alone = len(self._failed) == 1
        return dict.fromkeys(self._failed, self._broken.cause if alone else None)

    def run(
        self, store: InboxStore, write: Callable[[InboxTx], None], stop: threading.Event, backoff: Backoff
    ) -> bool:
        """Whether the broken transaction was committed, and is mended now; otherwise it left nothing."""
        log.error("%s", self._broken, extra={"action": "inbox.ended"})
        found = mend(store, self._mark, write, stop, backoff, count=len(self._rows))
        if found is Mended.WRITTEN:
            tell(self._broken.failed)
        return found is not Mended.NOTHING_LEFT

    def write_kept(self, tx: InboxTx) -> None:
        """For a batch that was kept: all of its messages are in the inbox now."""
        names = [name_of(row.message) for row in self._rows]
        tx.record([self._done[name] for name in names if name in self._done])
        waiting = [row for row, name in zip(self._rows, names, strict=True) if name not in self._done]
        seqs = {name_of(row.message): seq for row, seq in zip(waiting, tx.enqueue(waiting), strict=True)}
        tx.fail(
            [
                each._replace(queued=each.queued._replace(seq=seqs[name]))
                for name, each in self._failed.items()
            ]
        )

    def write_claimed(self, tx: InboxTx) -> None:
        """For rows of the queue: the locks on their keys went with the transaction, and others may have come."""
        standing = tx.standing(self._rows)
        names = [name_of(row.message) for row in standing]
        tx.finish([row for row, name in zip(standing, names, strict=True) if name in self._done])
        tx.record([self._done[name] for name in names if name in self._done])
        tx.fail([self._failed[name] for name in names if name in self._failed])


def mend(
    store: InboxStore,
    mark: str | None,
    write: Callable[[InboxTx], None],
    stop: threading.Event,
    backoff: Backoff,
    *,
    count: int,
) -> Mended:
    """Write what is missing beside a transaction that was committed, once; `mark` is its own. For as long as it takes."""
    attempt, mended_by = 0, None
    while True:
        try:
            with store.begin() as tx:
                if mended_by is not None and tx.committed(mended_by):
                    break  # an earlier try whose outcome was unknown
                if not tx.committed(mark):
                    return Mended.NOTHING_LEFT
                mended_by = tx.mark
                write(tx)
            break
        except Exception as error:  # noqa: BLE001 - whatever it is: nobody else knows of these messages
            attempt += 1
            delay, _ = told_again(log, error, backoff, attempt, action="inbox.ended")
            if stop.wait(delay):
                log.critical(
                    "stopped before the marks of %d messages were written; the tally names them",
                    count,
                    extra={"action": "inbox.ended"},
                )
                return Mended.STOPPED
    return Mended.WRITTEN
