"""The three schemes: each delivers the same twice, or the older after the newer, and looks at what is there."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

from tallymark.apply.incoming import Message
from tallymark.apply.schemes import SavedId, UniqueConstraint, Version
from tallymark.inbox.ports import Queued
from tallymark.lifecycle import ApplicationOutcome
from tallymark.store.postgres.inboxstore import PostgresInboxStore
from tests.apply.conftest import Ground, effect
from tests.apply.given import queued

APPLIED, ALREADY, OLDER = ApplicationOutcome.APPLIED, ApplicationOutcome.ALREADY, ApplicationOutcome.OLDER


def outcomes(ground: Ground, *rows: Queued) -> list[ApplicationOutcome]:
    return [each.outcome for each in ground.apply(*rows).applications]


def reasons(ground: Ground, *rows: Queued) -> list[str]:
    failures = ground.settle(*rows).failed
    assert all(failure.again_in_s is None for failure in failures)
    return [failure.reason for failure in failures]


def test_saved_id_is_the_inbox_row(ground: Ground) -> None:
    """A second delivery never comes here: keeping finds it. What does come is applied."""

    @ground.handler("transfers", once=SavedId())
    def apply(message: Message, tx: Any) -> None:
        effect(tx, message.value)

    row = queued(1)
    for _ in range(2):
        with ground.store.begin() as tx:
            kept = tx.keep([row.message])
            ground.in_tx(tx, *[row for _ in kept.new])
    assert ground.effects() == ["1"]


@pytest.fixture
def entries(ground: Ground) -> Ground:
    """A handler that books entries; its key is the effect's own name."""

    @ground.handler("transfers", once=UniqueConstraint("ledger_entry_pkey"))
    def apply(message: Message, tx: Any) -> None:
        effect(tx, message.value["id"])
        entry = message.value
        tx.execute(
            "insert into ledger_entry values (%s, %s, %s)",
            [entry["id"], entry.get("amount", 1), entry.get("reference")],
        )

    return ground


def test_a_conflict_on_the_named_constraint_means_already(entries: Ground) -> None:
    """Two messages with ids of their own for one business fact; what the second did is undone, and others go on."""
    rows = [queued({"id": "e1"}), queued({"id": "e1"}), queued({"id": "e2"})]
    assert outcomes(entries, *rows) == [APPLIED, ALREADY, APPLIED]
    assert outcomes(entries, rows[0]) == [ALREADY]
    assert entries.effects() == ["e1", "e2"]
    assert entries.query("select id from ledger_entry order by id") == [("e1",), ("e2",)]


def test_a_conflict_on_another_constraint_is_a_failure(entries: Ground) -> None:
    entries.apply(queued({"id": "e1", "reference": "r"}))
    rows = [queued({"id": "e2", "reference": "r"}), queued({"id": "e3", "amount": -1}, key=b"bob")]
    failures = entries.settle(*rows).failed
    assert ["ledger_entry_reference" in failures[0].reason, "check" in failures[1].reason] == [True, True]
    assert all(failure.again_in_s is not None for failure in failures)
    assert entries.query("select id from ledger_entry") == [("e1",)]


@pytest.mark.parametrize("careful", [False, True])
def test_a_conflict_on_a_deferred_constraint_means_already_too(ground: Ground, careful: bool) -> None:
    @ground.handler("transfers", once=UniqueConstraint("holding_slot"))
    def apply(message: Message, tx: Any) -> None:
        effect(tx, message.value)
        tx.execute("insert into holding (slot) values (%s)", [message.value])

    applied = ground.apply(queued(1), queued(1), queued(2), careful=careful)
    assert [each.outcome for each in applied.applications] == [APPLIED, ALREADY, APPLIED]
    assert ground.effects() == ["1", "2"]


def test_already_on_the_careful_way_too(entries: Ground) -> None:
    row = queued({"id": "e1"})
    assert [each.outcome for each in entries.apply(row, row, careful=True).applications] == [APPLIED, ALREADY]
    assert entries.effects() == ["e1"]


def test_a_list_with_one_that_is_there_already_goes_one_by_one(ground: Ground) -> None:
    calls: list[int] = []

    @ground.handler("transfers", once=UniqueConstraint("ledger_entry_pkey"), batch=True)
    def apply(messages: Sequence[Message], tx: Any) -> None:
        calls.append(len(messages))
        for message in messages:
            effect(tx, message.value)
            tx.execute("insert into ledger_entry values (%s, 1)", [message.value])

    assert outcomes(ground, queued("e1"), queued("e2")) == [APPLIED, APPLIED]
    assert outcomes(ground, queued("e3"), queued("e1"), queued("e4")) == [APPLIED, ALREADY, APPLIED]
    assert calls == [2, 3, 1, 1, 1]
    assert ground.effects() == ["e1", "e2", "e3", "e4"]


class Base(DeclarativeBase):
    pass


class Entry(Base):
    __tablename__ = "ledger_entry"
    id: Mapped[str] = mapped_column(primary_key=True)
    amount: Mapped[int]


@pytest.mark.parametrize("careful", [False, True])
def test_a_conflict_that_a_session_meets_behind_the_handler(
    ground: Ground, ledger: str, careful: bool
) -> None:
    """An object that is added is written when it is flushed, and only then there is something to conflict."""

    @ground.handler("transfers", once=UniqueConstraint("ledger_entry_pkey"))
    def apply(message: Message, session: Session) -> None:
        session.add(Entry(id=message.value["id"], amount=message.value.get("amount", 1)))

    ground.store.close()
    ground.store = PostgresInboxStore(ledger, "ledger", tx="sqlalchemy")
    rows = [queued({"id": "e1"}), queued({"id": "e1"}), queued({"id": "e2"})]
    applied = ground.apply(*rows, careful=careful)
    assert [each.outcome for each in applied.applications] == [APPLIED, ALREADY, APPLIED]
    failures = ground.settle(queued({"id": "e3", "amount": -1})).failed
    assert ["ledger_entry_amount_check" in failure.reason for failure in failures] == [True]
    assert ground.query("select id from ledger_entry order by id") == [("e1",), ("e2",)]


def level(ground: Ground, once: Version) -> None:
    @ground.handler("stock", once=once)
    def apply(message: Message, tx: Any) -> None:
        effect(tx, message.value["level"])
        if message.value.get("bad"):
            raise ValueError("bad")


def stock(level: int, **rest: Any) -> Queued:
    more = {name: rest.pop(name) for name in ("rev", "sku", "bad") if name in rest}
    return queued({"level": level, **more}, topic="stock", **rest)


def test_an_older_position_never_overwrites_a_newer_one(ground: Ground) -> None:
    level(ground, Version())
    rows = [stock(1, position=10), stock(2, position=12), stock(3, position=11), stock(4, position=12)]
    assert outcomes(ground, *rows) == [APPLIED, APPLIED, OLDER, OLDER]
    assert outcomes(ground, stock(5, position=11), stock(6, position=5, key=b"bob")) == [OLDER, APPLIED]
    assert ground.effects() == ["1", "2", "6"]


def test_what_is_sent_again_is_as_old_as_its_original(ground: Ground) -> None:
    """Pitfall 18: its new row stands behind all others, and its contents are the oldest."""
    level(ground, Version())
    again = '{"tm_resend":"1","tm_origin":"10"}'
    rows = [stock(2, position=50), stock(1, position=90, headers=again), stock(3, position=60)]
    assert outcomes(ground, *rows) == [APPLIED, OLDER, APPLIED]
    # Where nothing newer was applied, it is.
    assert outcomes(ground, stock(4, position=91, headers=again, key=b"bob")) == [APPLIED]


def test_offsets_where_there_is_no_position_and_each_source_for_itself(ground: Ground) -> None:
    level(ground, Version())
    rows = [
        stock(1, position=1000),
        stock(2, position=None, offset=7, source="kafka:stock"),
        stock(3, position=None, offset=6, source="kafka:stock"),
        stock(4, position=5, source="/other"),
    ]
    assert outcomes(ground, *rows) == [APPLIED, APPLIED, OLDER, APPLIED]


def test_a_key_that_moved_to_another_partition_is_not_older_for_ever(ground: Ground) -> None:
    """Partitions were added: its offsets begin again where it stands now, and mean nothing to those before."""
    level(ground, Version())
    foreign = {"position": None, "source": "kafka:stock"}
    rows = [
        stock(1, offset=5000, partition=2, **foreign),
        stock(2, offset=3, partition=7, **foreign),
        stock(3, offset=2, partition=7, **foreign),
        stock(4, offset=4999, partition=2, **foreign),
    ]
    assert outcomes(ground, *rows) == [APPLIED, APPLIED, OLDER, OLDER]


def test_a_business_version(ground: Ground) -> None:
    level(ground, Version(of=lambda message: message.value["rev"]))
    rows = [stock(1, rev=3), stock(2, rev=2, source="/other"), stock(3, rev=4, source="/other")]
    assert outcomes(ground, *rows) == [APPLIED, OLDER, APPLIED]


def test_a_failed_one_leaves_the_version_as_it_was(ground: Ground) -> None:
    level(ground, Version())
    applied = ground.settle(stock(1, position=10, bad=True))
    assert len(applied.failed) == 1
    assert outcomes(ground, stock(1, position=10)) == [APPLIED]


def test_what_cannot_be_a_version_is_dead_at_once(ground: Ground) -> None:
    level(ground, Version())
    ground.handler("revs", once=Version(of=lambda message: message.value["rev"]))(lambda _message, _tx: None)
    ground.handler("rows", once=Version(table="stock", key="sku", column="version"))(
        lambda _message, _tx: None
    )
    ground.handler("typo", once=Version(table="stok", key="sku", column="version"))(
        lambda _message, _tx: None
    )
    said = reasons(
        ground,
        stock(1, key=None),
        stock(1, position=None, offset=None),
        *(
            queued(value, topic="revs", key=None)
            for value in ({}, {"rev": "3"}, {"rev": True}, {"rev": 2**63})
        ),
        queued({"rev": 1}, topic="revs", key=None),
        queued({}, topic="rows", key=None),
        queued({}, topic="typo"),
    )
    expected = [
        "has no key, so that it is no version of anything",
        "has neither a position nor an offset to go by",
        "Version(of=…) failed: KeyError: 'rev'",
        "gave str, not a whole number",
        "gave bool, not a whole number",
        "gave int, not a whole number of 64 bits",
        "has no key, so that it is no version of anything",
        "has no key to find its row in stock by",
        'relation "stok" does not exist',
    ]
    assert [part for part, reason in zip(expected, said, strict=True) if part not in reason] == []


OWN = Version(table="stock", key="sku", column="version", of=lambda message: message.value["rev"])


def upsert(message: Message, tx: Any) -> None:
    tx.execute(
        "insert into stock values (%s, %s, %s) on conflict (sku) do update "
        "set level = excluded.level, version = excluded.version",
        [message.key_text, message.value["level"], message.value["rev"]],
    )


def test_the_teams_own_version_column(ground: Ground) -> None:
    ground.handler("stock", once=OWN)(upsert)
    rows = [stock(1, rev=5), stock(2, rev=4), stock(3, rev=5), stock(4, rev=6)]
    # A missing row is applied; older and equal are not.
    assert outcomes(ground, *rows) == [APPLIED, OLDER, OLDER, APPLIED]
    assert ground.query("select * from stock") == [("alice", 4, 6)]


def test_the_key_may_be_found_in_the_value(ground: Ground) -> None:
    once = Version(
        table="public.stock",
        key="sku",
        column="version",
        of=lambda message: message.value["rev"],
        value=lambda message: message.value["sku"],
    )
    level(ground, once)
    ground.query("insert into stock values ('apple', 1, 5)")
    assert outcomes(ground, stock(2, rev=5, sku="apple"), stock(3, rev=6, sku="apple")) == [OLDER, APPLIED]


@pytest.mark.parametrize("once", [OWN, Version(of=lambda message: message.value["rev"])])
def test_a_list_holds_no_older_one_behind_a_newer_one(ground: Ground, once: Version) -> None:
    calls: list[list[int]] = []

    @ground.handler("stock", once=once, batch=True)
    def apply(messages: Sequence[Message], tx: Any) -> None:
        calls.append([message.value["rev"] for message in messages])
        for message in messages:
            upsert(message, tx)

    rows = [stock(1, rev=5), stock(2, rev=7), stock(3, rev=6), stock(4, rev=7), stock(5, rev=8)]
    assert outcomes(ground, *rows) == [APPLIED, APPLIED, OLDER, OLDER, APPLIED]
    assert outcomes(ground, *rows) == [OLDER] * 5
    assert calls == [[5, 7, 8]]


def test_a_precondition(ground: Ground) -> None:
    def still_empty(message: Message, tx: Any) -> bool:
        return bool(tx.execute("select count(*) < %s from effect", [message.value["rev"]]).fetchone()[0])

    level(ground, Version(when=still_empty))
    assert outcomes(ground, *(stock(n, rev=2) for n in range(4))) == [APPLIED, APPLIED, OLDER, OLDER]
    assert ground.effects() == ["0", "1"]
