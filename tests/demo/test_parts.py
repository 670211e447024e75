"""The demo's pure parts: orders, comparison, the programme of faults, the outcome, and what is shown of it."""

from __future__ import annotations

import io
import random
from dataclasses import replace

import pytest
import typer
from rich.console import Console, RenderableType

from tallymark.cli.demo import finish
from tallymark.lab import programme
from tallymark.lab.bank.orders import LIMIT_CENTS, order
from tallymark.lab.board import Picture
from tallymark.lab.comparison import Balances, Compared, balances, compare
from tallymark.lab.display import screen, totals
from tallymark.lab.ending import ending, try_next
from tallymark.lab.outcome import Certified, Outcome, Struck, Tallied
from tallymark.lab.soundings import Counts, rates

ALICE, BOB = "alice", "bob"


# Orders


def test_the_same_seed_gives_the_same_orders_and_another_gives_others() -> None:
    assert [order(7, n) for n in range(50)] == [order(7, n) for n in range(50)]
    assert [order(7, n) for n in range(50)] != [order(8, n) for n in range(50)]


def test_orders_have_one_to_nine_transfers_with_rising_numbers_and_some_are_refused() -> None:
    orders = [order(1, number) for number in range(1000)]
    numbers = [each.transfer for one in orders for each in one]
    assert {len(each) for each in orders} == set(range(1, 10))
    assert numbers == sorted(set(numbers))
    assert all(each.payer != each.payee for one in orders for each in one)
    refused = sum(any(each.cents > LIMIT_CENTS for each in one) for one in orders)
    assert 50 < refused < 200


# Comparison

WANTED = [(ALICE, 1), (BOB, 2), (ALICE, 3)]


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        ([(ALICE, 1), (BOB, 2), (ALICE, 3)], Compared(3, 3)),
        ([(BOB, 2), (ALICE, 1), (ALICE, 3)], Compared(3, 3)),
        ([(ALICE, 1), (ALICE, 3)], Compared(3, 2, missing=1)),
        ([(ALICE, 1), (BOB, 2), (ALICE, 3), (ALICE, 1), (ALICE, 1)], Compared(3, 5, doubled=2)),
        ([(ALICE, 3), (BOB, 2), (ALICE, 1)], Compared(3, 3, reordered=1)),
        ([(ALICE, 1), (BOB, 2), (ALICE, 3), (BOB, 9)], Compared(3, 4, phantoms=1)),
    ],
)
def test_what_a_station_has_is_compared_by_name(found: list[tuple[str, int]], expected: Compared) -> None:
    assert compare(WANTED, found) == expected
    assert expected.equal == (expected == Compared(3, 3))


def test_balances_that_differ_do_not_make_up_for_each_other() -> None:
    assert balances({ALICE: 5, BOB: 7}, {ALICE: 5, BOB: 7}) == Balances(0, 0)
    assert balances({ALICE: 5, BOB: 7}, {ALICE: 6, BOB: 6}) == Balances(2, 2)
    assert balances({ALICE: 5}, {}) == Balances(1, 5)


def test_rates_are_over_the_whole_span() -> None:
    assert rates([(10.0, Counts(bank=5)), (11.0, Counts(bank=5)), (12.0, Counts(bank=25))])["bank"] == 10
    assert rates([(10.0, Counts())])["bank"] == 0


# Faults


@pytest.mark.parametrize("seed", range(20))
def test_everything_breaks_once_whatever_the_seed(seed: int) -> None:
    found = programme.programme(random.Random(seed))  # noqa: S311 - a seed that can be given again is the point
    assert sorted(each.name for each in found) == sorted(
        each.name for each in (programme.FIRST, *programme.OTHERS)
    )
    assert found[0] is programme.FIRST
    assert found.index(programme.OTHERS[-1]) not in (0, 1, len(found) - 1)


# The outcome

CERTIFICATE = Certified(1, 0, 2200, 2000, 2000, {"ledger": 2000, "report": 2000}, "ab" * 32)
GOOD = Outcome(
    messages=2000,
    seed=7,
    stations={name: Compared(2000, 2000) for name in ("log", "ledger", "report")},
    balances={"ledger": Balances(), "report": Balances()},
    naive=Compared(2000, 2010, missing=30, doubled=40),
    naive_balances=Balances(12, 123_456),
    tally=Tallied(2000, 0, 0, 0, 0, CERTIFICATE),
    faults=[Struck("relay killed", "a relay is killed", "it went on", 4.2)],
    try_next=[("tallymark trace 0198", "the life of a message")],
)


def with_station(**change: Compared) -> Outcome:
    return replace(GOOD, stations={**GOOD.stations, **change})


def test_a_good_run_is_clean_whatever_became_of_the_twin() -> None:
    finish(GOOD)
    said = GOOD.as_json()
    assert (said["messages"], said["missing"], said["doubled"], said["reordered"]) == (2000, 0, 0, 0)
    assert said["balances_equal"] is True
    assert said["naive"]["missing"] == 30
    assert said["naive"]["doubled"] == 40
    assert said["naive"]["reordered"] == 0
    assert said["naive"]["balances_off"] == 123_456
    assert said["certificate"]["hash"] == "ab" * 32
    assert [each["name"] for each in said["faults"]] == ["relay killed"]


@pytest.mark.parametrize(
    "bad",
    [
        with_station(log=Compared(2000, 1999, missing=1)),
        with_station(ledger=Compared(2000, 2001, doubled=1)),
        with_station(report=Compared(2000, 2000, reordered=1)),
        with_station(ledger=Compared(2000, 2001, phantoms=1)),
        with_station(log=Compared(1999, 1999)),
        replace(GOOD, balances={"ledger": Balances(2, 10)}),
        replace(GOOD, tally=Tallied(2000, 1, 0, 0, 1, CERTIFICATE)),
        replace(GOOD, tally=Tallied(2000, 0, 0, 0, 0, None)),
    ],
)
def test_anything_missing_twice_out_of_order_or_not_certified_is_exit_1(bad: Outcome) -> None:
    with pytest.raises(typer.Exit) as ended:
        finish(bad)
    assert ended.value.exit_code == 1


# What is shown

PICTURE = Picture(
    messages=20_000,
    seed=7,
    elapsed_s=83,
    phase="transfers on their way",
    note="the other relay looks for its receipt",
    breaking="the leader broker is killed, and then the banks",
    faults=(Struck("relay killed", "a relay is killed -9 in mid-batch", "it was not sent again", 4.2),),
    counts=Counts(12_345, 12_300, 12_290, 11_000, 12_345, 12_301),
    rates={"bank": 254.0},
)


def printed(width: int, *parts: RenderableType) -> str:
    console = Console(width=width, color_system=None, file=io.StringIO())
    with console.capture() as captured:
        for part in parts:
            console.print(part)
    return captured.get()


@pytest.mark.parametrize("width", [80, 160])
def test_the_live_screen_tells_what_is_going_on_and_fits(width: int) -> None:
    text = printed(width, screen(PICTURE, width, 24))
    assert all(len(line) <= width for line in text.splitlines())
    for told in ("1:23", "12,345", "254/s", "naive twin", "the leader broker is killed", "for its receipt"):
        assert told in text
    assert ("it was not sent again" in text) == (width == 160)


LONG = "killed -9 between effect and commit; undone, and applied by the other 12.3 s later. The twin's had 112 booked"
FULLEST = replace(
    PICTURE,
    messages=10_000_000,
    counts=Counts(*[10_000_000] * 6),
    rates={"bank": 25_400.0},
    phase="the rest of the transfers, as fast as it goes",
    note="the batch is in doubt: the other relay looks for its receipt",
    faults=tuple(Struck(each.name, each.title, LONG, 114.2) for each in programme.OTHERS),
)


@pytest.mark.parametrize("width", [80, 120, 160])
def test_on_a_small_terminal_the_fullest_screen_is_cut_nowhere(width: int) -> None:
    """A live screen that is too high loses its last lines, which are what goes on now."""
    text = printed(width, screen(FULLEST, width, 24))
    lines = text.splitlines()
    assert len(lines) < 24
    assert "…" not in text
    assert all(len(line) <= width for line in lines)
    told = " ".join(text.split())
    for each in ("10,000,000", "25,400/s", "as fast as it goes", *(each.title for each in FULLEST.faults)):
        assert " ".join(each.split()[:4]) in told
    assert "for its receipt" in lines[-1] or "for its receipt" in lines[-2]
    high = " ".join(printed(width, screen(FULLEST, width, 80)).split())
    assert high.count("undone") == (0 if width == 80 else len(FULLEST.faults))


@pytest.mark.parametrize("width", [80, 160])
def test_the_last_screen_tells_what_it_came_to_and_fits(width: int) -> None:
    text = printed(width, *ending(GOOD, with_faults=True))
    assert all(len(line) <= width for line in text.splitlines())
    told = " ".join(text.split())
    for each in ("none lost, none twice", "equal to the cent", "off by 1,234.56", "ab" * 32, "it went on"):
        assert each in told
    assert try_next(GOOD) == ["", "Try next:", "  # the life of a message", "  tallymark trace 0198"]


def test_without_a_terminal_the_totals_are_one_line() -> None:
    assert totals(PICTURE) == (
        "  bank 12,345, relays 12,300, ledger 12,290, report 11,000; naive twin: bank 12,345, ledger 12,301"
    )
