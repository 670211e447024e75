"""Durations and sizes as people write them."""

from __future__ import annotations

from datetime import timedelta

import pytest

from tallymark.settings.quantity import parse_duration, parse_size, write_duration


@pytest.mark.parametrize(
    ("written", "seconds"),
    [
        ("7d", 604800),
        ("1.5h", 5400),
        ("30m", 1800),
        ("10s", 10),
        ("250ms", 0.25),
        (12, 12),
        ("12", 12),
        ("2 W", 1209600),
    ],
)
def test_durations(written: object, seconds: float) -> None:
    assert parse_duration(written) == timedelta(seconds=seconds)


@pytest.mark.parametrize("wrong", ["", "d", "7 fortnights", "-1s", True, None, [], "1h30m"])
def test_what_is_no_duration(wrong: object) -> None:
    with pytest.raises(ValueError, match="must be written like"):
        parse_duration(wrong)


@pytest.mark.parametrize(("written", "size"), [("16MiB", 2**24), ("500kB", 500_000), (1024, 1024), ("1b", 1)])
def test_sizes(written: object, size: int) -> None:
    assert parse_size(written) == size


@pytest.mark.parametrize("written", ["7d", "36h", "90m", "10s", "250ms", "0ms"])
def test_a_duration_is_written_as_it_was_read(written: str) -> None:
    assert write_duration(parse_duration(written)) == written
