"""Before a lane goes to work: whoever had it before is fenced, and what became of its last batches is found out.

Order matters (pitfall 8): fence, re-check the lease, read the last receipt, and only then mark or send.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

from tallymark.lifecycle import BatchKind, Mode
from tallymark.relay.config import RelayConfig
from tallymark.relay.dispatch import Dispatcher
from tallymark.relay.ledger import Ledger
from tallymark.relay.ports import Batch, Exclusion, Row
from tallymark.relay.resolve import resolve

log = logging.getLogger("tallymark.relay")


def settle(ledger: Ledger, dispatcher: Dispatcher, config: RelayConfig) -> int:
    """Bring a lane to where it can go on; gives back how many batches were in doubt."""
    ledger.recheck()
    ledger.mark()  # what is known to be in the log is not in doubt
    unsent = ledger.store.unsent(ledger.lane)
    # A batch that an earlier owner sent in a transaction is resolved as one, whatever this relay's own mode is.
    transactional = config.policy.transactional or any(batch.mode is Mode.TRANSACTIONAL for batch in unsent)
    dispatcher.start(Mode.TRANSACTIONAL if transactional else config.mode)
    in_doubt = len(unsent)
    if transactional:
        unsent = _resolved(ledger, dispatcher, unsent)
        if (ledger.lane.receipt is None or ledger.lane.receipt.forgotten) and not unsent:
            # The lane's first receipt: from then on "no receipt" can never pass for "not sent".
            unsent = [ledger.claim(ledger.batch(BatchKind.ORIGIN, ledger.lane.covered, ledger.lane.covered))]
    ledger.refresh()
    for claimed in unsent:
        batch = ledger.adopt(claimed, Mode.TRANSACTIONAL) if transactional else claimed
        if (tried := dispatcher.tried_at(batch)) is not None:
            batch = _given_up_if_too_old(ledger, batch, config.give_up_after_s, tried, known=transactional)
        rows: Sequence[Row] = ledger.store.contents(batch)
        # Claimed before the one in front of it was known to fail: its key's later messages must not overtake it.
        late = ledger.exclusion_since(batch, rows)
        if late is not None:
            batch, rows = ledger.leave_out(batch, rows, late)
        dispatcher.launch(batch, rows)
        dispatcher.drain()
    if transactional and not config.policy.transactional:
        dispatcher.start(config.mode)
    return in_doubt


def _resolved(ledger: Ledger, dispatcher: Dispatcher, unsent: list[Batch]) -> list[Batch]:
    """What is still to be sent of the batches that were never marked."""
    marked = ledger.lane.receipt
    found = dispatcher.publisher.last_receipt(marked)
    sent = resolve(found, marked, unsent)
    if found is not None and marked is not None and marked.forgotten:
        ledger.lane = ledger.store.advance(ledger.lane, receipt=found)
    for number, batch in enumerate(unsent, 1):
        log.warning(
            "batch %d of lane %d was in doubt: the receipts say that it is %sin the log",
            batch.number,
            batch.lane,
            "" if number <= sent else "not ",
            extra={
                "action": "relay.resolve",
                "lane": batch.lane,
                "batch": batch.number,
                "sent": number <= sent,
            },
        )
        if number <= sent:
            # The receipt is the last one's; a crash before that is marked finds it again.
            last = found if number == sent else None
            ledger.lane = ledger.store.advance(ledger.lane, mark=batch, receipt=last, in_doubt=True)
    return unsent[sent:]


def _given_up_if_too_old(
    ledger: Ledger, batch: Batch, give_up_after_s: float | None, tried_s: float, *, known: bool
) -> Batch:
    """Bounded retries, for those who want them: what could not be sent is recorded as failed.

    Its age counts from the claim, time in which nobody could try included: what decides is how old it was when it was
    last tried (`tried_s`). Only receipts say that it is not in the log (`known`).
    """
    if give_up_after_s is None or tried_s < give_up_after_s:
        return batch
    rows = ledger.store.contents(batch)
    if not rows:
        return batch
    reason = f"given up after {batch.age_s:.0f} s"
    if not known:
        reason += "; whether it is in the log is unknown"
    return ledger.leave_out(batch, rows, Exclusion(failed={row[0]: reason for row in rows}))[0]
