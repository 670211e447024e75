"""The relay's pure decisions, by literal inputs."""

from __future__ import annotations

import re
from importlib.resources import files

import pytest

from tallymark.broker.partition import murmur2, partition_of
from tallymark.errors import Inconsistent, UsageError
from tallymark.lifecycle import BatchKind, Mode
from tallymark.message import headers_json, kafka_headers
from tallymark.policy import Backoff, ModePolicy, fair_share
from tallymark.relay.exclusion import exclusion_of
from tallymark.relay.ports import Batch, Failure, Receipt, Rejected, Row
from tallymark.relay.resolve import resolve

MARKED = Receipt(6, "token-6", 40)
IN_DOUBT = Batch(0, 7, "token-7", BatchKind.RANGE, 100, 200, 200, Mode.TRANSACTIONAL, 50)
BEHIND_IT = Batch(0, 8, "token-8", BatchKind.RANGE, 200, 300, 300, Mode.TRANSACTIONAL, 50)


def test_the_receipt_of_the_batch_in_doubt_says_that_it_was_sent() -> None:
    assert resolve(Receipt(7, "token-7", 41), MARKED, [IN_DOUBT]) == 1
    assert resolve(Receipt(7, "token-7", 0), None, [IN_DOUBT]) == 1


def test_the_receipt_of_the_second_in_doubt_says_that_both_were_sent() -> None:
    assert resolve(Receipt(8, "token-8", 42), MARKED, [IN_DOUBT, BEHIND_IT]) == 2
    assert resolve(Receipt(7, "token-7", 41), MARKED, [IN_DOUBT, BEHIND_IT]) == 1
    assert resolve(MARKED, MARKED, [IN_DOUBT, BEHIND_IT]) == 0


def test_the_receipt_of_the_batch_before_says_that_it_was_not() -> None:
    assert resolve(MARKED, MARKED, [IN_DOUBT]) == 0
    assert resolve(None, None, [IN_DOUBT]) == 0


def test_nothing_in_doubt_and_all_agree() -> None:
    assert resolve(MARKED, MARKED, []) == 0
    assert resolve(None, None, []) == 0


@pytest.mark.parametrize(
    ("found", "marked", "in_doubt"),
    [
        pytest.param(Receipt(7, "another", 41), MARKED, IN_DOUBT, id="token of another batch 7"),
        pytest.param(Receipt(6, "another", 40), MARKED, IN_DOUBT, id="token of another batch 6"),
        pytest.param(Receipt(8, "token-8", 42), MARKED, IN_DOUBT, id="log is ahead: database restored"),
        pytest.param(Receipt(5, "token-5", 39), MARKED, IN_DOUBT, id="log is behind"),
        pytest.param(None, MARKED, IN_DOUBT, id="receipts gone"),
        pytest.param(None, MARKED, None, id="receipts gone, nothing in doubt"),
        pytest.param(Receipt(7, "token-7", 41), MARKED, None, id="sent, but never claimed here"),
        pytest.param(Receipt(0, "token-0", 0), None, None, id="never marked, yet in the log"),
        pytest.param(Receipt(3, "token-3", 9), None, IN_DOUBT, id="another's receipt in a fresh lane"),
    ],
)
def test_anything_else_stops_the_lane(
    found: Receipt | None, marked: Receipt | None, in_doubt: Batch | None
) -> None:
    with pytest.raises(Inconsistent, match="the receipts say"):
        resolve(found, marked, [in_doubt] if in_doubt else [])


@pytest.mark.parametrize("found", [None, Receipt(40, "token-40", 99)])
def test_what_an_operator_has_forgotten_is_not_asked_for(found: Receipt | None) -> None:
    forgotten = Receipt(-1, "", 0)
    assert resolve(found, forgotten, []) == 0
    assert resolve(found, forgotten, [IN_DOUBT]) == 0
    assert resolve(Receipt(7, "token-7", 41), forgotten, [IN_DOUBT, BEHIND_IT]) == 1


def _row(position: int, key: bytes | None, topic: str = "t") -> Row:
    return (position, f"id-{position}", topic, key, b"", "{}", None, 100)


def test_what_failed_is_parked_and_its_key_waits_behind_it() -> None:
    rows = [_row(1, b"a"), _row(2, b"b"), _row(3, b"a"), _row(4, None), _row(5, b"b"), _row(6, b"a", "u")]
    left = exclusion_of(Rejected((Failure(2, "t", "large"), Failure(3, "t", "odd"))), rows, hold_key=True)
    assert (left.failed, list(left.waiting), left.topics) == ({2: "large", 3: "odd"}, [5], {})


def test_a_second_failure_of_a_key_waits_like_the_rest() -> None:
    rows = [_row(1, b"a"), _row(2, b"a"), _row(3, b"a")]
    left = exclusion_of(Rejected((Failure(1, "t", "large"), Failure(3, "t", "large"))), rows, hold_key=True)
    assert (list(left.failed), list(left.waiting)) == ([1], [2, 3])
    skipped = exclusion_of(
        Rejected((Failure(1, "t", "large"), Failure(3, "t", "large"))), rows, hold_key=False
    )
    assert (list(skipped.failed), list(skipped.waiting)) == ([1, 3], [])


def test_a_whole_topic_is_held_in_one_row_and_parks_nothing() -> None:
    rows = [_row(1, b"a"), _row(2, b"a"), _row(3, b"a", "u")]
    failures = (Failure(1, "t", "gone", whole_topic=True), Failure(2, "t", "large"), Failure(3, "u", "large"))
    left = exclusion_of(Rejected(failures), rows, hold_key=True)
    assert (left.topics, left.failed, left.waiting) == ({"t": "gone"}, {3: "large"}, {})


@pytest.mark.parametrize(
    ("data", "java"),
    [
        (b"21", -973932308),
        (b"foobar", -790332482),
        (b"a-little-bit-long-string", -985981536),
        (b"a-little-bit-longer-string", -1486304829),
        (b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8", -58897971),
        (b"abc", 479470107),
    ],
)
def test_keys_are_hashed_as_java_does(data: bytes, java: int) -> None:
    unsigned = murmur2(data)
    assert (unsigned - 2**32 if unsigned >= 2**31 else unsigned) == java
    assert partition_of(data, 7) == (java & 0x7FFFFFFF) % 7


def test_back_off_doubles_up_to_its_cap_and_jitter_only_shortens() -> None:
    backoff = Backoff(first_s=0.1, cap_s=10, jitter=0.5)
    assert [backoff.delay(n, 0) for n in (1, 2, 3)] == [0.1, 0.2, 0.4]
    assert backoff.delay(100_000, 0) == 10
    assert backoff.delay(100_000, 1) == 5


@pytest.mark.parametrize(
    ("lanes", "relays", "share"), [(4, 1, 4), (4, 2, 2), (4, 3, 2), (4, 4, 1), (4, 9, 1), (1, 0, 1)]
)
def test_a_fair_share_leaves_no_lane_over(lanes: int, relays: int, share: int) -> None:
    assert fair_share(lanes, relays) == share
    assert share * max(1, relays) >= lanes


def test_only_transactional_promises_once() -> None:
    assert [mode for mode in Mode if ModePolicy.of(mode).transactional] == [Mode.TRANSACTIONAL]
    assert ModePolicy.of(Mode.SYNC).in_flight == 1


def test_headers_go_there_and_back() -> None:
    text = headers_json(
        source="/bank",
        type="made",
        content_type="application/json",
        traceparent="00-1-2-01",
        extra={"plain": "ü", "raw": b"\xff\x00"},
    )
    assert kafka_headers(text) == [
        ("ce_specversion", b"1.0"),
        ("tm_format", b"1"),
        ("ce_source", b"/bank"),
        ("ce_type", b"made"),
        ("content-type", b"application/json"),
        ("traceparent", b"00-1-2-01"),
        ("plain", "ü".encode()),
        ("raw", b"\xff\x00"),
    ]


@pytest.mark.parametrize(
    "text",
    [
        *('{"a": null}', '{"a": [1]}', '{"a": {"b": "c"}}', '{"a": [""]}', '{"a": [{}]}', '{"a": {}}'),
        *('{"\\ud800": "x"}', '{"a": "\\ud800"}', '{"a": {"base64": 5}}'),
        *('{"a": [["base64", "AA=="]]}', "[]", '[["a", "b"]]', "5", "null"),
        *('{"a": ' + "[" * 100_000 + "]" * 100_000 + "}", '{"a": ' + "1" * 5000 + "}"),
    ],
    ids=lambda text: text[:20],
)
def test_headers_that_sql_wrote_wrongly_are_refused(text: str) -> None:
    with pytest.raises(UsageError):  # the publisher parks the message for each
        kafka_headers(text)


def test_every_clock_is_the_databases() -> None:
    """Relays an hour apart: no statement takes a time from its client, and none uses one frozen at its begin."""
    sql = (files("tallymark.store.postgres") / "relay.sql").read_text()
    code = re.sub(r"--.*", "", sql)
    assert "clock_timestamp()" in code
    assert not re.search(r"\b(now\(\)|current_timestamp|localtimestamp|statement_timestamp)", code)
    parameters = set(re.findall(r"%\((\w+)\)s", code))
    assert not {name for name in parameters if re.search(r"time|_at$|until|date|now", name)}
    store = (files("tallymark.store.postgres") / "relaystore.py").read_text()
    assert not re.search(r"^(import|from) (time|datetime)\b", store, re.MULTILINE)
