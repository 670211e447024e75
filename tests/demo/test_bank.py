"""The example services on real databases: what they write, and what the comparison says when something is missing."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict

import psycopg
import pytest

from tallymark.lab import comparison
from tallymark.lab.bank import bank, books, ledger
from tallymark.lab.bank.orders import LIMIT_CENTS, Transfer, order
from tallymark.lifecycle import Role
from tallymark.store.postgres.migrations import migrate
from tallymark.testing import added, deliver

Make = Callable[[], str]


@pytest.fixture
def url(make_database: Make) -> str:
    made = make_database()
    migrate(made, role=Role.PRODUCER)
    books.open_books(made, books.BANK)
    return made


def test_a_bank_that_ends_and_starts_again_makes_exactly_as_many_transfers_as_asked(url: str) -> None:
    with psycopg.connect(url, autocommit=True) as connection:
        bank.serve(connection, 7, 30, 0.0)
        bank.serve(connection, 7, 80, 0.0)
        bank.serve(connection, 7, 80, 0.0)
    written, messages = comparison.bank_books(url), comparison.outbox(url)
    assert len(written.booked) == len(messages) == 80
    assert [payer for payer, _ in written.booked] == [bytes(key).decode() for key, _ in messages]  # type: ignore[call-overload]
    assert sum(written.accounts.values()) == len(written.accounts) * 10_000_000


def test_a_refused_order_leaves_neither_rows_nor_messages(url: str) -> None:
    allowed = Transfer(1, "account-01", "account-02", 5)
    with psycopg.connect(url) as tx:
        with pytest.raises(bank.Refused), tx.transaction():
            bank.book(tx, [allowed, Transfer(2, "account-01", "account-03", LIMIT_CENTS + 1)])
        assert added(tx) == []
        bank.book(tx, [allowed])
        assert [message.value for message in added(tx)] == [asdict(allowed)]
    assert comparison.bank_books(url).booked == [("account-01", 1)]


def test_the_ledger_books_a_transfer_once(make_database: Make) -> None:
    url = make_database()
    migrate(url, role=Role.CONSUMER)
    books.open_books(url, books.FOLLOWER)
    made = Transfer(1, "account-01", "account-02", 5)
    with psycopg.connect(url) as tx:
        assert deliver(ledger.inbox, asdict(made), tx, key="account-01") == ["applied", "repeated"]
    found = comparison.follower_books(url)
    assert found.booked == [("account-01", 1)]
    assert found.accounts["account-01"] + 5 == found.accounts["account-02"] - 5 == 10_000_000


def test_a_booking_that_is_missing_or_twice_is_found(url: str, make_database: Make) -> None:
    other = make_database()
    books.open_books(other, books.FOLLOWER)
    transfers = [each for number in range(20) for each in order(7, number) if each.cents <= LIMIT_CENTS]
    with psycopg.connect(url) as tx:
        bank.book(tx, transfers)
    with psycopg.connect(other) as tx:
        for each in [*transfers[1:], transfers[-1]]:
            tx.execute(
                "insert into entry (transfer, payer, payee, cents) values (%s, %s, %s, %s)",
                [each.transfer, each.payer, each.payee, each.cents],
            )
    wanted, found = comparison.bank_books(url), comparison.follower_books(other)
    compared = comparison.compare(wanted.booked, found.booked)
    assert (compared.missing, compared.doubled, compared.phantoms) == (1, 1, 0)
    assert not comparison.balances(wanted.accounts, found.accounts).equal
