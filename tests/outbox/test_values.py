"""How a caller's values become bytes and headers, and what is refused before anything is written. Pure."""

from __future__ import annotations

import dataclasses
import datetime
import decimal
import json
import uuid
from collections.abc import Iterator
from typing import Any

import psycopg
import pydantic
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tallymark import Draft, Outbox, UsageError
from tallymark.message import encoded, encoded_key, headers_json, kafka_headers
from tallymark.outbox.tracing import current_traceparent

OUTBOX = Outbox("/bank")


class Model(pydantic.BaseModel):
    amount: decimal.Decimal
    at: datetime.date


@dataclasses.dataclass
class Plain:
    amount: decimal.Decimal
    inner: Model


MODEL = Model(amount=decimal.Decimal("5.10"), at=datetime.date(2026, 1, 2))
DAY = datetime.datetime(2026, 1, 2, 3, 4, tzinfo=datetime.UTC)
NAME = uuid.UUID(int=5)
NO_UUID7 = (
    NAME,
    uuid.UUID("7f2c5b0e-1d1a-4c64-9d0b-6a1f0f6f7a11"),
    uuid.UUID("0190a8c0-0000-7000-0000-000000000001"),  # of no variant
    uuid.UUID("00000000-0001-7000-8000-000000000001"),  # of 1970
    "order 4711",
)


@pytest.mark.parametrize(
    ("value", "encoded_value", "content_type"),
    [
        (b"\x00\xff", b"\x00\xff", "application/octet-stream"),
        (bytearray(b"ab"), b"ab", "application/octet-stream"),
        (memoryview(b"ab"), b"ab", "application/octet-stream"),
        ("grüße", "grüße".encode(), "text/plain; charset=utf-8"),
        ("", b"", "text/plain; charset=utf-8"),
        (None, None, ""),
        ({"a": [1, None, "ü"]}, '{"a":[1,null,"ü"]}'.encode(), "application/json"),
        (5, b"5", "application/json"),
        (True, b"true", "application/json"),
        (MODEL, b'{"amount":"5.10","at":"2026-01-02"}', "application/json"),
        (
            Plain(decimal.Decimal("0.1"), MODEL),
            b'{"amount":"0.1","inner":{"amount":"5.10","at":"2026-01-02"}}',
            "application/json",
        ),
        ([MODEL], b'[{"amount":"5.10","at":"2026-01-02"}]', "application/json"),
        (
            {"id": NAME, "at": DAY},
            f'{{"id":"{NAME}","at":"2026-01-02T03:04:00+00:00"}}'.encode(),
            "application/json",
        ),
    ],
)
def test_values(value: Any, encoded_value: bytes | None, content_type: str) -> None:
    assert encoded(value) == (encoded_value, content_type)


@pytest.mark.parametrize(
    "value", [object(), {1, 2}, 1j, {"a": object()}, {("a", "b"): 1}, "\ud800", {"a": "\ud800"}]
)
def test_values_of_the_wrong_type(value: Any) -> None:
    with pytest.raises(UsageError, match="cannot be sent"):
        encoded(value)


@pytest.mark.parametrize("value", [float("nan"), {"a": float("inf")}])
def test_numbers_that_json_does_not_have(value: Any) -> None:
    with pytest.raises(UsageError, match="cannot be sent"):
        encoded(value)


def test_encode_of_the_callers_own() -> None:
    assert encoded({"a": 1}, lambda value: repr(value).encode()) == (b"{'a': 1}", "application/octet-stream")
    assert OUTBOX.entry(Draft("t", 5), bytes).value == bytes(5)
    assert Outbox("/b", encode=lambda _: b"mine").entry(Draft("t", 5)).value == b"mine"
    with pytest.raises(UsageError, match="encode= gave back str, not bytes"):
        encoded(1, lambda _: "text")  # type: ignore[arg-type,return-value]


@pytest.mark.parametrize(
    ("key", "bytes_"),
    [(None, None), ("ü", "ü".encode()), (b"\xff", b"\xff"), (7, b"7"), (NAME, str(NAME).encode()), ("", b"")],
)
def test_keys(key: Any, bytes_: bytes | None) -> None:
    assert encoded_key(key) == bytes_


@pytest.mark.parametrize("key", [1.5, True, object(), ["a"], {"a": 1}, "\ud800"])
def test_keys_of_the_wrong_type(key: Any) -> None:
    with pytest.raises(UsageError, match="cannot be used"):
        encoded_key(key)


@pytest.mark.parametrize(
    ("headers", "said"),
    [
        ({"h": None}, "header 'h' is null"),
        ({"h": 5}, "header 'h' is of type int"),
        ({"": "x"}, "non-empty"),
        ({5: "x"}, "non-empty"),
        ({"ce_id": "x"}, "written by Tallymark itself"),
        ({"CE_ID": "x"}, "written by Tallymark itself"),
        ({"tm_position": "1"}, "written by Tallymark itself"),
        ({"tm_origin": "1"}, "written by Tallymark itself"),
        ({"ce_specversion": "0.3"}, "written by Tallymark itself"),
        ({"h": "\ud800"}, "half a surrogate pair"),
    ],
)
def test_headers_that_are_refused(headers: Any, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        OUTBOX.entry(Draft("t", "x", headers=headers))


@given(
    st.dictionaries(
        st.text(st.characters(codec="utf-8"), min_size=1).filter(
            lambda s: s.lower()[:3] not in ("ce_", "tm_")
        ),
        st.binary(),
    )
)
def test_headers_come_out_as_they_went_in(extra: dict[str, bytes]) -> None:
    text = headers_json(source="/s", type="t", content_type="", traceparent=None, extra=extra)
    found = {name: value for name, value in kafka_headers(text) if not name.startswith("tm_")}
    assert found == {"ce_specversion": b"1.0", "ce_source": b"/s", "ce_type": b"t", **extra}


def test_the_trace_of_the_span_that_is_current() -> None:
    trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"

    def inject(carrier: dict[str, str]) -> None:
        carrier["traceparent"] = trace

    assert current_traceparent(inject) == trace
    assert current_traceparent(lambda _: None) is None
    assert current_traceparent(None) is None
    headers = headers_json(source="/s", type="t", content_type="", traceparent=trace, extra=None)
    assert json.loads(headers)["traceparent"] == trace


def test_the_trace_is_taken_from_opentelemetry_itself() -> None:
    trace = pytest.importorskip("opentelemetry.trace")
    context = trace.SpanContext(0xA, 0xB, is_remote=False, trace_flags=trace.TraceFlags(1))
    assert current_traceparent() is None
    with trace.use_span(trace.NonRecordingSpan(context)):
        assert current_traceparent() == f"00-{0xA:032x}-{0xB:016x}-01"


@pytest.mark.parametrize("topic", ["", ".", "..", "a b", "ü", "a/b", "x" * 250, None, 5, b"t"])
def test_topics_that_are_none(topic: Any) -> None:
    with pytest.raises(UsageError, match="is not a topic's name"):
        OUTBOX.entry(Draft(topic, "x"))


@pytest.mark.parametrize("partition", [-1, "1", 1.0, 1 << 31])
def test_partitions_that_are_none(partition: Any) -> None:
    with pytest.raises(UsageError, match="is not a number from 0 to"):
        OUTBOX.entry(Draft("t", "x", partition=partition))


@pytest.fixture
def tx(bank: str) -> Iterator[psycopg.Connection[Any]]:
    with psycopg.connect(bank) as connection:
        yield connection
        connection.rollback()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"if_exists": "replace", "dedup_key": "x"}, "if_exists='replace' is not known"),
        ({"if_exists": "ignore"}, "says nothing without a dedup_key"),
        ({"serialize_key": True}, "needs a key"),
        ({"deliver_after": 5}, "deliver_after=5 is no time"),
        ({"deliver_after": datetime.datetime(2026, 1, 1)}, "has no time zone"),  # noqa: DTZ001 - it is the point
    ],
)
def test_options_that_make_no_sense(tx: Any, options: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        OUTBOX.add(tx, "t", "x", **options)


def test_a_source_is_needed() -> None:
    with pytest.raises(UsageError, match="needs a source"):
        Outbox("")


def test_a_value_larger_than_the_topic_takes_is_refused_where_the_limit_is_known(tx: Any) -> None:
    big = b"x" * (5 * 2**20)
    assert OUTBOX.add(tx, "unknown-limit", big)  # found out by the relay, which parks it
    tx.execute(
        "insert into tallymark.topics (topic, topic_id, partitions, max_message_bytes) values ('small', 'i', 1, 1000000)"
    )
    OUTBOX.add(tx, "small", big[:1_000_000])
    for add in (
        lambda: OUTBOX.add_many(tx, [Draft("small", "ok"), Draft("small", big)]),
        lambda: OUTBOX.add(tx, "small", big),
    ):
        with pytest.raises(
            UsageError, match="a value of 5242880 bytes is larger than topic small takes"
        ) as refused:
            add()
        assert "max.message.bytes" in refused.value.remedy


def test_an_id_of_ones_own_is_a_uuid7_otherwise() -> None:
    ids = [OUTBOX.entry(Draft("t", "x")).id for _ in range(1000)]
    assert {each.version for each in ids} == {7}
    assert len(set(ids)) == 1000
    own = uuid.UUID("0190a8c0-0000-7000-8000-000000000001")
    assert OUTBOX.entry(Draft("t", "x", id=own)).id == own


@pytest.mark.parametrize("id_", NO_UUID7)
def test_an_id_of_ones_own_that_is_no_uuid7_is_refused(id_: Any) -> None:
    """An inbox forgets ids by the time that they name: another kind would be known for another time than all others."""
    with pytest.raises(UsageError, match=f"id '{id_}' is not a UUIDv7") as refused:
        OUTBOX.entry(Draft("t", "x", id=id_))
    assert "dedup_key" in refused.value.remedy
