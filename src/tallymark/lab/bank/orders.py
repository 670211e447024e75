"""What the bank's customers ask for: orders of one to nine transfers, the same again for the same seed."""

from __future__ import annotations

import random
from dataclasses import dataclass

ACCOUNTS = [f"account-{number:02}" for number in range(40)]
OPENING_CENTS = 10_000_000
# A transfer above this is refused by the bank, and with it the whole order.
LIMIT_CENTS = 1_000_000
PER_ORDER = 10
_REFUSED = 0.1


@dataclass(frozen=True)
class Transfer:
    """Money from one account to another. Numbers of one order stand together, and orders count up."""

    transfer: int
    payer: str
    payee: str
    cents: int


def order(seed: int, number: int) -> list[Transfer]:
    """Order `number`. About one in ten asks for more than the bank allows."""
    chance = random.Random(f"order {number} of {seed}")  # noqa: S311 - a seed that can be given again is the point
    transfers = []
    for at in range(chance.randint(1, PER_ORDER - 1)):
        payer, payee = chance.sample(ACCOUNTS, 2)
        transfers.append(Transfer(number * PER_ORDER + at, payer, payee, chance.randint(1, 100_000)))
    if chance.random() < _REFUSED:
        last = transfers[-1]
        transfers[-1] = Transfer(last.transfer, last.payer, last.payee, LIMIT_CENTS + last.cents)
    return transfers
