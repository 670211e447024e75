"""How often an address may come with a wrong token: decided by times that are given."""

from __future__ import annotations

from tallymark.console.guard import FailedTokens

HOME, AWAY = "10.0.0.1", "10.0.0.2"


def test_so_many_wrong_ones_and_no_more_until_the_minute_is_over() -> None:
    failed = FailedTokens(allowed=3, within_s=60)
    for second in (0.0, 10.0, 20.0):
        assert failed.wait_s(HOME, None, second) == 0
        failed.was_wrong(HOME, second)
    assert failed.wait_s(HOME, None, 20.0) == 40.0
    assert failed.wait_s(AWAY, None, 20.0) == 0
    assert failed.wait_s(HOME, None, 60.5) == 0


def test_a_bearer_who_was_let_in_is_not_locked_out_by_others() -> None:
    failed = FailedTokens(allowed=1, within_s=60)
    failed.was_right(b"good", 0.0)
    failed.was_wrong(HOME, 1.0)
    assert failed.wait_s(HOME, b"bad", 2.0) > 0
    assert failed.wait_s(HOME, b"good", 2.0) == 0
    assert failed.wait_s(HOME, b"good", 60.9) > 0


def test_what_is_remembered_is_bounded() -> None:
    failed = FailedTokens(allowed=1, remembered=10)
    for number in range(1000):
        failed.was_wrong(f"10.0.{number // 256}.{number % 256}", float(number) / 1000)
    assert len(failed._wrong) == 10
    for _ in range(1000):
        failed.was_wrong(HOME, 5.0)
    assert len(failed._wrong[HOME]) <= 2
