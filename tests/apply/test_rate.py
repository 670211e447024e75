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


def test_a_short_wait_is_waited() -> None:
    time = Time()
    bucket = Bucket(rate=1 / PATIENCE_S, burst=1)
    bucket.take(1, now=0.0)
    assert Pace({"t": bucket}, time.wait, time.clock, until=0.25).turn("t", 1)
    assert time.now == PATIENCE_S
