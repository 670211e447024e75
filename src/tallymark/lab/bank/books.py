"""The business tables: what the bank keeps, and what those keep who follow it."""

from __future__ import annotations

import psycopg

from tallymark.lab.bank.orders import ACCOUNTS, OPENING_CENTS

_ACCOUNT = "create table account (name text primary key, cents bigint not null)"

# The bank's own: each transfer once, by its number.
BANK = (
    _ACCOUNT,
    "create table transfer (number bigint primary key, payer text not null, payee text not null, "
    "cents bigint not null)",
)
# A follower's: nothing in these tables would stop a second booking, so that one would show.
FOLLOWER = (
    _ACCOUNT,
    "create table entry (seq bigserial primary key, transfer bigint not null, payer text not null, "
    "payee text not null, cents bigint not null)",
)


def open_books(url: str, tables: tuple[str, ...]) -> None:
    """Make the tables, and open every account with the same money in it."""
    with psycopg.connect(url) as tx:
        for table in tables:
            tx.execute(table.encode())
        tx.cursor().executemany(
            "insert into account values (%s, %s)", [(name, OPENING_CENTS) for name in ACCOUNTS]
        )
