"""Which message this is: pure, with literal records."""

from __future__ import annotations

import json
import uuid
from datetime import UTC, datetime

from tallymark.inbox.identity import (
    KeyHashes,
    UsualHeaders,
    headers_json,
    id_floor,
    is_named,
    key_hash,
    named_id,
    received,
    saved_id,
)
from tallymark.inbox.ports import Received
from tallymark.message import new_id

V7 = "0190a8c0-0000-7000-8000-000000000001"


def record(**headers: bytes | None) -> Received:
    pairs = [(name.replace("__", "-"), value) for name, value in headers.items()]
    return received("transfers", 2, 17, b"alice", b"{}", pairs, 1_700_000_000_000)


def test_a_uuid7_is_saved_as_it_is() -> None:
    found = record(ce_id=V7.encode(), ce_source=b"/bank", tm_position=b"42", ce_type=b"made")
    assert (found.id, found.named, found.source, found.position) == (uuid.UUID(V7), None, "/bank", 42)
    assert json.loads(found.headers) == {"ce_type": "made"}
    assert found.logged_at == datetime(2023, 11, 14, 22, 13, 20, tzinfo=UTC)


def test_any_other_id_is_saved_under_its_name() -> None:
    for given in ("order-7", str(uuid.uuid4()), V7.replace("-", ""), "0190a8c0-0000-7000-8000-00000000000g"):
        found = record(ce_id=given.encode(), ce_source=b"/bank")
        assert found.named == given
        assert is_named(found.id)
        assert found.id == named_id(given.encode())


def test_what_looks_for_a_message_by_its_name_asks_for_what_was_saved() -> None:
    odd_variant, long_ago = "0190a8c0-0000-7000-0000-000000000001", "00000000-0001-7000-8000-000000000001"
    for given in ("Überweisung", str(uuid.uuid4()), V7, V7.replace("-", ""), odd_variant, long_ago):
        assert saved_id(given) == record(ce_id=given.encode(), ce_source=b"/bank").id


def test_a_message_without_an_id_is_known_by_its_place() -> None:
    first = received("transfers", 2, 17, None, b"x", None, 1000)
    again = received("transfers", 2, 17, None, b"x", None, 1000)
    assert first == again
    assert first.source == "kafka:transfers"
    assert first.named == "transfers/2/17@1000"


def test_the_same_place_of_a_topic_made_anew_is_another_message() -> None:
    before = received("transfers", 2, 17, None, b"x", None, 1000)
    after = received("transfers", 2, 17, None, b"x", None, 2000)
    assert before.id != after.id


def test_a_message_at_another_place_is_another_message() -> None:
    ids = {
        received(topic, partition, offset, None, b"", None, 0).id
        for topic in ("a", "b")
        for partition in (0, 1)
        for offset in (0, 1)
    }
    assert len(ids) == 8


def test_headers_keep_order_repeats_nulls_and_bytes() -> None:
    text = headers_json([("a", b"1"), ("b", None), ("a", b"\xff"), ("ü", "ö".encode())])
    pairs = json.loads(text, object_pairs_hook=list)
    assert pairs == [("a", "1"), ("b", None), ("a", [("base64", "/w==")]), ("ü", "ö")]


def test_what_postgresql_cannot_hold_as_text_is_made_visible() -> None:
    found = record(ce_id=b"a\0b", ce_source=b"\xff/x")
    assert found.named == "a␀b"
    assert found.source == "\\xff/x"
    # Two names that look alike afterwards are still two messages.
    assert found.id != record(ce_id="a␀b".encode()).id


def test_keys_share_a_hash_within_a_topic_only() -> None:
    one, other = new_id(), new_id()
    assert key_hash("t", b"alice", one) == key_hash("t", b"alice", other)
    assert key_hash("t", b"alice", one) != key_hash("t", b"bob", one)
    assert key_hash("t", b"alice", one) != key_hash("u", b"alice", one)
    assert key_hash("t", None, one) != key_hash("t", None, other)
    assert -(2**63) <= key_hash("t", b"alice", one) < 2**63


def test_the_floor_of_a_moment_lies_below_its_ids() -> None:
    before = datetime.now(UTC)
    assert id_floor(before) <= new_id().int


def test_a_position_that_no_outbox_can_have_is_none() -> None:
    for given in (b"", b"x7", b"-1", b"9" * 19, b"9" * 40, None):
        assert record(ce_id=V7.encode(), tm_position=given).position is None
    assert record(ce_id=V7.encode(), tm_position=b"9" * 18).position == 10**18 - 1


def test_what_the_relay_sends_and_any_other_order_of_it_are_the_same_message() -> None:
    """The relay's order has a way of its own through the code."""
    shared = {"ce_specversion": b"1.0", "ce_source": b"/bank", "ce_type": b"made"}
    relayed = record(**shared, ce_id=V7.encode(), tm_position=b"42")
    assert relayed == record(tm_position=b"42", ce_id=V7.encode(), **shared)
    assert relayed._replace(headers="") == record(
        **shared, traceparent=b"00-1-1-01", ce_id=V7.encode(), tm_position=b"42"
    )._replace(headers="")
    foreign = record(ce_type=b"made", ce_id=b"order-7", tm_position=b"x")
    assert (foreign.source, foreign.named, foreign.position) == ("kafka:transfers", "order-7", None)


def test_a_source_too_long_for_a_key_is_told_by_its_digest() -> None:
    one, other = (record(ce_id=V7.encode(), ce_source=b"/" + letter * 5000) for letter in (b"a", b"b"))
    assert len(one.source) < 100
    assert one.source != other.source


def test_a_source_is_as_long_as_an_index_counts() -> None:
    """In bytes: a thousand Chinese characters do not fit into an index, and the inbox would stand still before them."""
    assert record(ce_source="北".encode() * 333).source == "北" * 333
    assert record(ce_source="北".encode() * 334).source.startswith("blake2b:")


def test_what_is_remembered_is_bounded_in_bytes_too() -> None:
    hashes, headers = KeyHashes("transfers"), UsualHeaders()
    for n in range(2 * 65_536):
        assert hashes[b"%d" % n] == key_hash("transfers", b"%d" % n, uuid.UUID(int=0))
        assert len(hashes) <= 65_536
    large = b"x" * 1025
    assert hashes[large] == key_hash("transfers", large, uuid.UUID(int=0))
    assert large not in hashes
    for n in range(2 * 1_024):
        assert headers[("ce_type", b"%d" % n),] == (None, f'{{"ce_type":"{n}"}}')
        assert len(headers) <= 1_024
    assert headers[("ce_source", b"/bank"), ("note", large)] == ("/bank", f'{{"note":"{large.decode()}"}}')
    assert (("ce_source", b"/bank"), ("note", large)) not in headers
