"""What became of batches that are in doubt, told from the lane's last receipt. Pure.

The last batch that was marked with a receipt is M. Behind it stand those that were claimed and never marked: one that
was on its way, and perhaps one more that was claimed, or even sent, before the one in front of it was marked. A lane
sends them in order and one after the other, so the last receipt in the log must be

- that of one of them, with its token  → it and those in front of it were sent: mark them; the rest was not;
- M with M's token                     → none of them was: send them (again);
- anything else                        → the log and the database disagree: stop the lane and say what was found. A
                                         restored database, a recreated receipts topic or a second outbox of the same
                                         identity look so.

A lane that has never had a receipt has none in the log. Where an operator has forgotten M, whatever stands there is
accepted in its place.
"""

from __future__ import annotations

from collections.abc import Sequence

from tallymark.errors import Inconsistent
from tallymark.relay.ports import Batch, Receipt


def resolve(found: Receipt | None, marked: Receipt | None, unsent: Sequence[Batch]) -> int:
    """How many of the batches never marked, from the first on, are in the log; raises `Inconsistent`."""
    if found is not None:
        for count, batch in enumerate(unsent, 1):
            if _same(found, batch.number, batch.token):
                return count
    if marked is None:
        fits = found is None
    else:
        fits = marked.forgotten or (found is not None and _same(found, marked.number, marked.token))
    if fits:
        return 0
    doubtful = "".join(f" or batch {batch.number} with its own token" for batch in unsent)
    raise Inconsistent(
        f"the receipts say {_named(found)}, the database expects {_named(marked)}{doubtful}",
        remedy="was the database restored, or the receipts topic recreated? Compare outbox and log; then "
        "`tallymark relay clear LANE --forget-receipts` goes on from what the log has",
    )


def _same(receipt: Receipt, number: int, token: str) -> bool:
    return receipt.number == number and receipt.token == token


def _named(receipt: Receipt | None) -> str:
    return "no batch at all" if receipt is None else f"batch {receipt.number} (token {receipt.token[:8]})"
