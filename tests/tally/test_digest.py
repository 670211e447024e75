"""Digests, windows and certificates."""

from __future__ import annotations

import hashlib
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tallymark.errors import Inconsistent
from tallymark.tally.certificates import ConsumerCount, Statement, differences
from tallymark.tally.chain import GENESIS, Certificate, broken_links, issued, unseen, width
from tallymark.tally.digest import Digest, inversions, message_digest
from tallymark.tally.windows import Frontier, Window, open_because, window_of, windows_between

PARTS = st.none() | st.binary(max_size=6)


def test_a_message_s_digest_can_be_had_with_md5sum() -> None:
    said = message_digest("m1", b"alice", None)
    assert said == hashlib.md5(b"2:m15:alice-", usedforsecurity=False).hexdigest()


@given(st.tuples(PARTS, PARTS), st.tuples(PARTS, PARTS))
def test_no_two_messages_read_alike(one: tuple[bytes, bytes], other: tuple[bytes, bytes]) -> None:
    assert (message_digest("m", *one) == message_digest("m", *other)) == (one == other)


@given(st.lists(st.binary(max_size=4)), st.integers(0, 20))
def test_digests_merge_whatever_the_order_and_the_cut(values: list[bytes], cut: int) -> None:
    digests = [message_digest("m", None, value) for value in values]
    whole = Digest.of(digests)
    assert Digest.of(reversed(digests[:cut])) + Digest.of(digests[cut:]) == whole
    assert whole - Digest.of(digests[:cut]) == Digest.of(digests[cut:])
    assert Digest.parse(whole.text) == whole


def test_as_many_messages_that_differ_are_not_the_same() -> None:
    one, other = (Digest.of([message_digest("m", None, value)]) for value in (b"1", b"2"))
    assert one.same_messages(one)
    assert not one.same_messages(other)
    assert all(mine != theirs for mine, theirs in zip(one.limbs, other.limbs, strict=True))


def test_sums_do_not_see_order_and_inversions_do() -> None:
    assert inversions([1, 2, 3]) == 0
    assert inversions([2, 1, 3]) == 1
    assert inversions([3, 1, 2, 4]) == 2


def test_a_position_belongs_to_one_window() -> None:
    assert window_of(0, 10) == Window(0, 10)
    assert window_of(9, 10) == Window(0, 10)
    assert window_of(10, 10) == Window(10, 20)
    assert windows_between(5, 25, 10) == [Window(0, 10), Window(10, 20), Window(20, 30)]
    assert windows_between(5, 4, 10) == []


@pytest.mark.parametrize(
    ("frontier", "next_offset", "waits"),
    [
        (Frontier(last_position=50, floor=None, relayed=50), 8, None),
        (Frontier(last_position=9, floor=None, relayed=9), 8, None),
        (Frontier(last_position=50, floor=None, relayed=50), 7, "ledger stands at offset 7 of t/0: 1 to go"),
        (Frontier(last_position=50, floor=None, relayed=50), 5, "ledger stands at offset 5 of t/0: 3 to go"),
        (
            Frontier(last_position=50, floor=5, relayed=50),
            8,
            "a transaction that is still open may add to it, from position 6 on",
        ),
        (Frontier(last_position=50, floor=None, relayed=8), 8, "the relay has sent up to position 8"),
        (Frontier(last_position=8, floor=None, relayed=8), 8, "it fills: it closes after 1 more message"),
    ],
)
def test_a_window_is_closed_when_everybody_has_passed_it(
    frontier: Frontier, next_offset: int, waits: str | None
) -> None:
    passed = {"ledger": ({"t"}, {("t", 0): next_offset})}
    assert open_because(Window(0, 10), frontier, {("t", 0): 7}, passed) == waits


def test_behind_an_open_transaction_nobody_knows_what_was_written() -> None:
    assert Frontier(last_position=50, floor=None, relayed=8).visible == 50
    assert Frontier(last_position=50, floor=5, relayed=8).visible == 5
    assert Frontier(last_position=50, floor=60, relayed=8).visible == 50


def statement(start: int = 0, **changes: object) -> Statement:
    digest = Digest.of([message_digest(str(n), None, None) for n in range(10)])
    said = Statement(
        "an-outbox",
        Window(start, start + 10),
        written=10,
        logged=10,
        parked=0,
        discarded=0,
        outbox=digest,
        log=digest,
        consumers={"ledger": ConsumerCount(10, 9, 0, 1, 0, digest)},
        offsets={"t/0": (0, 12)},
        resume={"t/0": 13},
    )
    return replace(said, **changes)  # type: ignore[arg-type]


def chain() -> list[Certificate]:
    certificates: list[Certificate] = []
    for n in range(3):
        certificates.append(issued(statement(10 * n), certificates[-1] if certificates else None))
    return certificates


def test_a_certificate_is_given_only_where_the_equations_hold() -> None:
    first = issued(statement(), None)
    assert (first.number, first.previous) == (1, GENESIS)
    assert first.said == statement()
    assert issued(statement(logged=8, parked=1, discarded=1, consumers={}), None)
    with pytest.raises(Inconsistent, match="window 0–9: written 10 <> logged 9"):
        issued(statement(logged=9, consumers={}), None)
    short = {"ledger": ConsumerCount(10, 8, 0, 1, 0, Digest())}
    with pytest.raises(Inconsistent, match="ledger: logged 10 <> applied 8"):
        issued(statement(consumers=short), None)


def test_a_chain_is_whole_until_somebody_touches_it() -> None:
    whole = chain()
    assert broken_links(whole) == []
    changed = [whole[0], replace(whole[1], statement=whole[1].statement.replace("10", "11", 1)), whole[2]]
    assert [number for number, _ in broken_links(changed)] == [2]
    # Somebody who hashes it again breaks the link to the next one.
    forged = replace(changed[1], hash=issued(statement(99), whole[0]).hash)
    assert 3 in [number for number, _ in broken_links([whole[0], forged, whole[2]])]
    assert broken_links([whole[0], whole[2]]) == [(3, "certificate 2 is missing")]


def test_how_wide_windows_are_is_told_by_what_was_signed() -> None:
    first, second, _ = chain()
    assert width([first]) == 10
    assert width([replace(first, window=Window(0, 11)), second]) == 10
    assert width([replace(first, statement=first.statement.replace("[0,10]", "[0,11]")), second]) == 10
    assert width([replace(first, statement="{")]) is None
    assert width([]) is None


def test_a_chain_that_was_cut_off_lacks_what_runs_have_seen() -> None:
    whole = chain()
    ends = [(each.number, each.hash) for each in whole]
    assert unseen(whole, ends) == unseen(whole, ends[:1]) == unseen(whole, []) == unseen([], []) == []
    assert broken_links(whole[:1]) == []
    assert unseen(whole[:1], ends) == [
        (3, "a run has seen certificates up to 3, and the chain ends at certificate 1")
    ]
    assert unseen([], ends) == [(3, "a run has seen certificates up to 3, and there are none")]
    # Whoever writes it anew from there on does not come by the same hashes.
    anew = [whole[0], issued(statement(70), whole[0])]
    assert broken_links(anew) == []
    assert [number for number, _ in unseen(anew, ends)] == [2, 3]


def test_what_the_data_say_today_is_compared_with_what_was_said() -> None:
    said = statement(consumers={"ledger": ConsumerCount(10, 10, 0, 0, 0, statement().log)})
    assert differences(said, said) == []
    other = Digest.of([message_digest("x", None, None)])
    assert "the outbox holds 1 messages" in differences(said, replace(said, outbox=other))[0]
    assert "the log holds 1 messages" in differences(said, replace(said, log=other))[0]
    altered = {"ledger": ConsumerCount(10, 10, 0, 0, 0, other)}
    assert "the inbox of ledger" in differences(said, replace(said, consumers=altered))[0]
    assert differences(said, replace(said, consumers={})) == [
        "no database or snapshot that was given has a consumer ledger"
    ]
