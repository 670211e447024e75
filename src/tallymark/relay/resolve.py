"""What became of a batch that is in doubt, told from the lane's last receipt. Pure.

The batch in doubt is N; the last batch that was marked with a receipt is M < N. The last receipt in the log must be

- N with N's token        → the transaction committed: mark it;
- M with M's token        → it did not: send it (again);
- anything else           → the log and the database disagree: stop the lane and say what was found. A restored
                            database, a recreated receipts topic or a second outbox of the same identity look so.

Where no batch is in doubt, the last receipt must be M's. A lane that has never had a receipt has none in the log.
"""

from __future__ import annotations

import enum

from tallymark.errors import Inconsistent
from tallymark.relay.ports import Batch, Receipt


class Resolution(enum.Enum):
    """What to do with the batch in doubt."""

    SENT = "mark it"
    NOT_SENT = "send it"


def resolve(found: Receipt | None, marked: Receipt | None, in_doubt: Batch | None) -> Resolution | None:
    """None where nothing was in doubt and all agree; raises `Inconsistent` where the two do not fit."""
    if in_doubt is not None and found is not None and _same(found, in_doubt.number, in_doubt.token):
        return Resolution.SENT
    expected = (
        found is None if marked is None else found is not None and _same(found, marked.number, marked.token)
    )
    if expected:
        return Resolution.NOT_SENT if in_doubt is not None else None
    raise Inconsistent(
        f"the receipts say {_named(found)}, the database expects {_named(marked)}"
        + (f" or batch {in_doubt.number} with its own token" if in_doubt else ""),
        remedy="was the database restored, or the receipts topic recreated? Compare outbox and log "
        "before `tallymark relay clear`",
    )


def _same(receipt: Receipt, number: int, token: str) -> bool:
    return receipt.number == number and receipt.token == token


def _named(receipt: Receipt | None) -> str:
    return "no batch at all" if receipt is None else f"batch {receipt.number} (token {receipt.token[:8]})"
