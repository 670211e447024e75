"""The token bucket, and when a run's time is up."""

from __future__ import annotations

import pytest

from tallymark.apply.rate import PATIENCE_S, Bucket, Pace


def test_a_burst_and_then_the_rate() -> None:
    bucket = Bucket(rate=2, burst=3)
    assert [bucket.take(1, now=10.0) for _ in range(5)] == [0, 0, 0, 0.5, 1.0]
    # A second later the debt is paid, and no more.
    assert bucket.take(1, now=11.0) == 0.5
    # However long nobody came: no more than a burst.
    assert bucket.take(3, now=100.0) == 0
    assert bucket.take(1, now=100.0) == 0.5


def test_over_any_time_no_more_than_the_rate() -> None:
    bucket, now, taken = Bucket(rate=10, burst=1), 0.0, 0
    while now < 100:
        now += bucket.take(7, now)
        taken += 7
    assert taken == pytest.approx(10 * now, abs=7)


def test_a_clock_that_steps_back_takes_nothing() -> None:
    bucket = Bucket(rate=1, burst=1)
    assert bucket.take(1, now=10.0) == 0
    assert bucket.take(1, now=5.0) == 1.0
    assert bucket.take(1, now=10.0) == 2.0


def test_less_than_one_a_second() -> None:
    bucket = Bucket(rate=0.5)
    assert [bucket.take(1, now=0.0), bucket.take(1, now=0.0)] == [0, 2.0]
    assert bucket.second == 1


class Time:
    """A clock that only waiting moves."""

    def __init__(self) -> None:
        self.now = 0.0

    def clock(self) -> float:
        return self.now

    def wait(self, seconds: float) -> None:
        self.now += seconds


def pace(time: Time, *, rate: float | None = None, until: float | None = None) -> Pace:
    return Pace({} if rate is None else {"t": Bucket(rate, burst=1)}, time.wait, time.clock, until)


def test_without_a_rate_or_an_end_every_turn_comes() -> None:
    assert all(pace(Time()).turn("t", 1) for _ in range(3))


def test_a_rate_is_waited_for() -> None:
    time = Time()
    turns = pace(time, rate=2)
    assert [turns.turn("t", 1) for _ in range(5)] == [True] * 5
    assert time.now == 2.0
    assert turns.turn("other", 1)
    assert time.now == 2.0


def test_when_the_time_is_up_the_first_call_is_made_and_no_other() -> None:
    time = Time()
    turns = pace(time, until=-1.0)
    assert turns.turn("t", 1)
    assert not turns.time_is_up()
    assert not turns.turn("t", 1)
    assert turns.time_is_up()


def test_a_wait_beyond_the_end_is_not_waited_and_costs_nothing() -> None:
    time = Time()
    turns = pace(time, rate=2, until=0.4)
    assert [turns.turn("t", 1), turns.turn("t", 1)] == [True, False]
    assert time.now == 0
    # The token was given back: a moment later it is there for others.
    assert turns._buckets["t"].take(1, now=0.5) == 0


def test_a_long_wait_comes_again_rather_than_hold_its_locks() -> None:
    time = Time()
    bucket = Bucket(rate=0.1, burst=1)
    bucket.take(1, now=0.0)
    turns = Pace({"t": bucket}, time.wait, time.clock, until=0.25)
    assert not turns.turn("t", 1)
    assert time.now == 0
    # Others are not held up by it, and it does not come before its time.
    assert turns.turn("other", 1)
    assert not turns.time_is_up()
    assert not turns.turn("t", 1)
    assert [bucket.is_ready(now) for now in (0.0, 9.9, 10.0)] == [False, False, True]
    assert bucket.take(1, now=10.0) == 0, "what was not waited for was given back"


@pytest.mark.parametrize("rate", [0.3, 1, 2, 3, 7, 40, 1000])
def test_whoever_finds_a_token_gets_a_turn(rate: float) -> None:
    """As workers do: look whether one is there, claim, hand lists over. In vain it would be again at once, for ever."""
    time, bucket = Time(), Bucket(rate)
    handed = rounds = 0
    while time.now < 50:
        if not bucket.is_ready(time.now):
            time.now += 0.1  # a worker rests
            continue
        turns = Pace({"t": bucket}, time.wait, time.clock, until=time.now + 0.25)
        size = turns.at_once("t")
        assert size is not None
        count = 0
        while turns.turn("t", size):
            count += size
        assert count, "a claim in vain"
        handed, rounds = handed + count, rounds + 1
    assert handed <= rate * time.now + max(1, rate)
    assert handed >= 0.7 * rate * time.now


def test_what_runs_again_does_not_wait_for_itself() -> None:
    """A handler that fails is called again, carefully: refused that, it would fail for ever and never be counted."""
    time = Time()
    bucket = Bucket(rate=1)
    first = Pace({"t": bucket}, time.wait, time.clock, until=0.25)
    assert first.turn("t", 1)
    assert not Pace({"t": bucket}, time.wait, time.clock, until=0.25).turn("t", 1)
    first.runs_again()
    assert Pace({"t": bucket}, time.wait, time.clock, until=0.25).turn("t", 1)


def test_without_an_end_a_list_is_a_seconds_worth() -> None:
    assert pace(Time(), rate=7).at_once("t") == 7
    assert pace(Time(), rate=7).at_once("other") is None


def test_a_short_wait_is_waited() -> None:
    time = Time()
    bucket = Bucket(rate=1 / PATIENCE_S, burst=1)
    bucket.take(1, now=0.0)
    assert Pace({"t": bucket}, time.wait, time.clock, until=0.25).turn("t", 1)
    assert time.now == PATIENCE_S
