"""Rows and reports: what a reader of --json relies on."""

from __future__ import annotations

import io

import pytest
from bench.ratio import Ratio
from bench.report import Report, figure
from bench.row import Goal, Row, at_least, at_most, row
from rich.console import Console

MACHINE = {
    "cpus": 2,
    "cpu": "some processor",
    "memory_gb": 8.0,
    "system": "Linux 6.1",
    "python": "3.11.7",
    "load_1m": 0.5,
}


def test_json_has_exactly_the_promised_keys() -> None:
    measured = Row("drain", "messages/s", 123456.789, 100000.0, Ratio(1.2345678, 1.1, 1.3), at_least(0.85))
    assert Report("relay", {"cpus": 2}, [measured]).as_json() == {
        "name": "relay",
        "machine": {"cpus": 2},
        "rows": [
            {
                "metric": "drain",
                "unit": "messages/s",
                "ours": 123460.0,
                "against": 100000.0,
                "ratio": 1.2346,
                "ratio_low": 1.1,
                "ratio_high": 1.3,
                "goal": "ratio >= 0.85",
                "met": True,
            }
        ],
    }


def test_a_ceiling_has_no_yardstick_and_no_goal() -> None:
    ceiling = row("COPY in", "rows/s", [100.0, 300.0, 200.0]).as_json()
    assert ceiling["ours"] == 200.0
    assert [ceiling[key] for key in ("against", "ratio", "ratio_low", "ratio_high", "goal", "met")] == [
        None
    ] * 6


@pytest.mark.parametrize(
    ("goal", "ours", "ratio", "met"),
    [
        (at_least(0.85), 1.0, 0.85, True),
        (at_least(0.85), 1.0, 0.84, False),
        (at_most(1.3), 1.0, 1.3, True),
        (at_most(1.3), 1.0, 1.31, False),
        (at_most(15, of_ratio=False), 14.9, 99.0, True),
        (at_most(15, of_ratio=False), 15.1, 0.1, False),
        (at_least(0.85), 1.0, None, False),
    ],
)
def test_a_goal_bounds_the_ratio_or_our_own_figure(
    goal: Goal, ours: float, ratio: float | None, met: bool
) -> None:
    assert goal.met(ours, ratio) is met


def test_the_table_shows_a_missed_goal_and_the_machine() -> None:
    missed = Row("drain", "messages/s", 80.0, 100.0, Ratio(0.8, 0.7, 0.9), at_least(0.85))
    report = Report("relay", MACHINE, [missed])
    out = io.StringIO()
    report.render(Console(file=out, width=120))
    assert report.missed == [missed]
    for expected in ("drain", "0.80", "0.70–0.90", "missed ratio >= 0.85", "some processor", "0.5"):
        assert expected in out.getvalue()


@pytest.mark.parametrize(
    ("value", "text"), [(None, ""), (123456.7, "123,457"), (12.345, "12.3"), (0.00123, "0.00123")]
)
def test_figures_read_well(value: float | None, text: str) -> None:
    assert figure(value) == text
