"""What a handler can ask of a message."""

from __future__ import annotations

import uuid

import pytest

from tallymark.apply.incoming import Message, content_type_of
from tests.apply.given import TIME, received

ID = uuid.UUID("0190f3a0-0000-7000-8000-000000000001")


def test_what_the_log_and_the_producer_said() -> None:
    message = Message.of(received(b'{"amount":5}', id=ID), 3, {"amount": 5})
    assert (message.id, message.source, message.type) == (ID, "/bank", "transfer.made")
    assert (message.topic, message.partition, message.offset, message.position) == ("transfers", 2, 5, 70)
    assert (message.key, message.key_text) == (b"alice", "alice")
    assert (message.raw, message.value) == (b'{"amount":5}', {"amount": 5})
    assert (message.time, message.attempt, message.traceparent) == (TIME, 3, None)


def test_headers_have_back_what_has_a_column_of_its_own() -> None:
    kept = '{"ce_type":"t","trace":{"base64":"/w=="},"empty":null,"twice":"1","twice":"2"}'
    message = Message.of(received(id=ID, headers=kept), 1, None)
    assert message.headers == {
        "ce_id": str(ID).encode(),
        "ce_source": b"/bank",
        "tm_position": b"70",
        "ce_type": b"t",
        "trace": b"\xff",
        "empty": b"",
        "twice": b"2",
    }


@pytest.mark.parametrize(
    ("headers", "position"),
    [
        ('{"tm_resend":"1","tm_origin":"7"}', 7),
        ('{"tm_origin":"71"}', 70),  # no original stands behind its resend
        ('{"tm_origin":"x"}', 70),
        ('{"tm_origin":"1000000000000000000000"}', 70),
        ('{"about":"tm_origin"}', 70),
    ],
)
def test_the_position_of_what_was_sent_again_is_its_original_s(headers: str, position: int) -> None:
    message = Message.of(received(headers=headers), 1, None)
    assert (message.position, message.headers["tm_position"]) == (position, b"70")


def test_headers_of_one_message_can_be_changed_without_the_next_one_seeing_it() -> None:
    first, second = (Message.of(received(headers='{"a":"1"}'), 1, None) for _ in range(2))
    dict(first.headers)["a"] = b"2"
    first.headers.pop("a")  # type: ignore[attr-defined]  # a Mapping for typing; somebody may do it all the same
    assert second.headers["a"] == b"1"


def test_a_foreign_producers_message() -> None:
    message = Message.of(
        received(named="order/4711", source="kafka:t", position=None, key=None, headers="{}"), 1, None
    )
    assert message.id == "order/4711"
    assert (message.type, message.position, message.key_text) == (None, None, None)
    assert message.headers == {"ce_id": b"order/4711", "ce_source": b"kafka:t"}


def test_a_key_that_is_not_text() -> None:
    assert Message.of(received(key=b"a\xff"), 1, None).key_text == "a\\xff"


def test_the_idempotency_key_is_the_same_at_each_attempt_and_unlike_any_other() -> None:
    first, again = (
        Message.of(received(id=ID, offset=offset), attempt, None) for offset, attempt in ((5, 1), (9, 4))
    )
    assert first.idempotency_key == again.idempotency_key == f"%2Fbank/{ID}"
    # A source and an id that could be cut in two ways.
    one = Message.of(received(source="a", named="b/c"), 1, None)
    other = Message.of(received(source="a/b", named="c"), 1, None)
    assert one.idempotency_key != other.idempotency_key


def test_its_repr_holds_no_payload() -> None:
    message = Message.of(received(b"secret", id=ID), 1, "secret")
    assert repr(message) == f"<Message {ID} from /bank, transfers/2@5, attempt 1>"


def test_content_types() -> None:
    assert content_type_of(received(content_type="Application/JSON; charset=utf-8")) == "application/json"
    assert content_type_of(received()) == ""
