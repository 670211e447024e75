"""From bytes to values; what does not fit is said in one sentence that never quotes the payload."""

from __future__ import annotations

import dataclasses
import enum
import uuid
from collections.abc import Mapping
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any, Literal

import pydantic
import pytest

from tallymark.apply.decoding import DecodeFailed, decoder_for
from tallymark.errors import UsageError
from tallymark.message import encoded
from tests.apply.given import received

SECRET = "s3cr3t-payload"


def decoded(value: bytes | None, content_type: str | None = None, **how: Any) -> Any:
    return decoder_for("transfers", **how)(received(value, content_type=content_type))


def refusal(value: bytes, content_type: str | None = None, **how: Any) -> str:
    with pytest.raises(DecodeFailed) as refused:
        decoded(value, content_type, **how)
    assert SECRET not in str(refused.value)
    return str(refused.value)


@pytest.mark.parametrize(
    ("value", "content_type", "expected"),
    [
        (b'{"amount":5}', "application/json", {"amount": 5}),
        (b'{"amount":5}', None, {"amount": 5}),
        (b"[1]", "application/cloudevents+json; charset=UTF-8", [1]),
        (b"\xef\xbb\xbf[1]", None, [1]),
        (b"5", "text/plain; charset=utf-8", "5"),
        (b"5", "application/octet-stream", b"5"),
        (b"5", "application/avro", b"5"),
        (None, "application/json", None),
    ],
)
def test_the_content_type_decides(value: bytes | None, content_type: str | None, expected: Any) -> None:
    assert decoded(value, content_type) == expected


def test_what_is_not_json() -> None:
    assert (
        refusal(f'{{"a": {SECRET}'.encode()) == "the value is not JSON: Expecting value at line 1, column 7"
    )
    assert refusal(b"\xff", "text/plain") == "the value is not UTF-8: invalid start byte at byte 0"
    assert refusal(b"[NaN]") == "the value is not JSON that can be used: it holds NaN"
    assert refusal(b"[" * 100_000) == "the value is JSON that is nested too deeply"
    assert refusal(b"") == "the value is not JSON: Expecting value at line 1, column 1"
    assert refusal(b"1" * 5000).startswith("the value is not JSON that can be used: Exceeds the limit")


class Side(enum.StrEnum):
    DEBIT = "debit"
    CREDIT = "credit"


@dataclasses.dataclass(frozen=True)
class Party:
    name: str
    email: str | None = None


@dataclasses.dataclass
class Transfer:
    id: uuid.UUID
    amount: Decimal
    made_at: datetime
    payer: Party
    day: date = date(2026, 1, 1)
    side: Side = Side.DEBIT
    kind: Literal["plain", "urgent"] = "plain"
    tags: list[str] = dataclasses.field(default_factory=list)
    shares: dict[str, float] = dataclasses.field(default_factory=dict)
    more: Any = None
    children: "list[Transfer]" = dataclasses.field(default_factory=list)  # noqa: UP037 - as older code writes it
    note: str = dataclasses.field(default="", init=False)


WHOLE = Transfer(
    id=uuid.UUID(int=7),
    amount=Decimal("5.10"),
    made_at=datetime(2026, 3, 1, tzinfo=UTC),
    payer=Party("alice"),
    tags=["a"],
    shares={"a": 0.5},
    more={"deep": [1.5]},
)
SMALL = b'{"id":"00000000-0000-0000-0000-000000000007","amount":5.10,"made_at":"2026-03-01","payer":{"name":"a"}%s}'


def test_what_the_outbox_writes_of_a_dataclass_is_read_back() -> None:
    raw, content_type = encoded(WHOLE)
    assert decoded(raw, content_type, model=Transfer) == WHOLE


def test_a_decimal_is_what_stands_in_the_json() -> None:
    assert str(decoded(SMALL % b"", model=Transfer).amount) == "5.10"
    assert str(decoded((SMALL % b"").replace(b"5.10", b'"0.1"'), model=Transfer).amount) == "0.1"
    more = decoded(SMALL % b',"more":{"x":[0.5]},"shares":{"a":1}', model=Transfer)
    assert (more.more, more.shares) == ({"x": [0.5]}, {"a": 1.0})
    assert (type(more.more["x"][0]), type(more.shares["a"])) == (float, float)


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (b"[]", "the value is a list, not an object"),
        (b"{}", "amount, id, made_at, payer are missing in Transfer"),
        (SMALL % b',"extra":1', "extra is not known to Transfer"),
        (SMALL.replace(b'"name":"a"', b"") % b"", "name is missing in payer"),
        (SMALL.replace(b'"name":"a"', b'"name":"a","email":7') % b"", "payer.email is a number, not text"),
        (SMALL.replace(b"5.10", b"true") % b"", "amount is true or false, not a decimal"),
        (SMALL.replace(b"5.10", b'"NaN"') % b"", "amount is not a finite decimal"),
        (SMALL.replace(b"5.10", b'"%s"' % SECRET.encode()) % b"", "amount is not a decimal"),
        (SMALL.replace(b"2026-03-01", SECRET.encode()) % b"", "made_at is not a time in ISO 8601"),
        (SMALL % b',"side":"left"', "side is none of 'debit', 'credit'"),
        (SMALL % b',"kind":"slow"', "kind is none of 'plain', 'urgent'"),
        (SMALL % b',"tags":["a",1]', "tags[1] is a number, not text"),
        (SMALL % b',"tags":{}', "tags is an object, not a list"),
        (SMALL % b',"shares":{"b":"1"}', "shares.b is text, not a number"),
        (SMALL % b',"children":[{}]', "amount, id, made_at, payer are missing in children[0]"),
    ],
)
def test_what_does_not_fit_a_dataclass(value: bytes, said: str) -> None:
    assert refusal(value, model=Transfer) == f"the value does not fit Transfer: {said}"


def test_numbers_are_not_mistaken_for_each_other() -> None:
    @dataclasses.dataclass
    class Count:
        n: int
        ok: bool = True
        either: int | str | None = None

    assert "n is true or false, not a whole number" in refusal(b'{"n":true}', model=Count)
    assert "n is a number, not a whole number" in refusal(b'{"n":1.0}', model=Count)
    assert "ok is a number, not true or false" in refusal(b'{"n":1,"ok":1}', model=Count)
    assert "either is a list, which fits none of int | str | None" in refusal(
        b'{"n":1,"either":[]}', model=Count
    )
    assert decoded(b'{"n":1,"either":null}', model=Count) == Count(1)


def test_a_dataclass_that_refuses_by_itself() -> None:
    @dataclasses.dataclass
    class Positive:
        n: int

        def __post_init__(self) -> None:
            if self.n < 0:
                raise ValueError("n must not be negative")

    said = "Positive refuses the value: ValueError: n must not be negative"
    assert refusal(b'{"n":-1}', model=Positive) == said


def test_a_pydantic_model_an_adapter_and_its_dataclass() -> None:
    class Payment(pydantic.BaseModel):
        amount: Decimal
        tags: list[int] = []

    @pydantic.dataclasses.dataclass
    class Small:
        n: int

    assert decoded(b'{"amount":5.10}', model=Payment) == Payment(amount=Decimal("5.10"))
    assert decoded(b"[1]", model=pydantic.TypeAdapter(list[int])) == [1]
    assert decoded(b'{"n":"1"}', model=Small) == Small(1)
    assert decoded(None, model=Payment) is None
    said = refusal(b'{"tags":["%s"]}' % SECRET.encode(), model=Payment)
    assert said == (
        "the value does not fit Payment: amount: Field required; "
        "tags.0: Input should be a valid integer, unable to parse string as an integer"
    )
    many = refusal(b'{"amount":1,"tags":["a","b","c","d","e"]}', model=Payment)
    assert many.endswith("; and 2 more")
    assert "Invalid JSON" in refusal(b"{", model=Payment)


def test_the_failure_of_a_model_is_not_chained_to_an_error_that_quotes_the_payload() -> None:
    class Payment(pydantic.BaseModel):
        amount: int

    with pytest.raises(DecodeFailed) as refused:
        decoded(b'{"amount":"%s"}' % SECRET.encode(), model=Payment)
    assert refused.value.__cause__ is None
    assert refused.value.__suppress_context__


def test_a_function_of_the_teams_own() -> None:
    def with_headers(raw: bytes, headers: Mapping[str, bytes]) -> tuple[bytes, bytes]:
        return raw, headers["ce_source"]

    def with_option(raw: bytes, schema: str = "v1") -> tuple[bytes, str]:
        return raw, schema

    def broken(raw: bytes) -> None:
        raise KeyError("rev")

    assert decoded(b"a", decode=bytes.upper) == b"A"
    assert decoded(b"a", decode=with_headers) == (b"a", b"/bank")
    assert decoded(b"a", decode=with_option) == (b"a", "v1")
    assert decoded(None, decode=with_headers) is None
    assert refusal(b"a", decode=broken) == "decode= refuses the value: KeyError: 'rev'"


def test_a_registry_that_is_down_is_not_the_messages_fault() -> None:
    class RegistryError(Exception):
        pass

    def decode(raw: bytes) -> None:
        try:
            raise ConnectionRefusedError("registry:8081")
        except OSError as error:
            raise RegistryError("no schema") from error

    with pytest.raises(RegistryError):
        decoded(b"a", decode=decode)


async def _later(raw: bytes) -> None: ...


@dataclasses.dataclass
class Odd:
    n: complex


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ({"model": Transfer, "decode": bytes}, "both model= and decode="),
        ({"model": dict}, "model=dict is neither a pydantic model nor a dataclass"),
        ({"model": WHOLE}, "model=Transfer is neither"),
        ({"model": Odd}, "Odd.n is of type complex, which a dataclass model cannot be checked for"),
        ({"decode": "avro"}, "decode= of topic transfers is not a plain function"),
        ({"decode": _later}, "decode= of topic transfers is not a plain function"),
    ],
)
def test_bad_input(how: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError, match=said) as refused:
        decoder_for("transfers", **how)
    assert refused.value.remedy


def test_a_model_whose_types_cannot_be_read() -> None:
    @dataclasses.dataclass
    class Local:
        other: "Unknown"  # type: ignore[name-defined]  # noqa: F821, UP037 - that is the point

    with pytest.raises(UsageError, match="the types of Local cannot be read"):
        decoder_for("transfers", model=Local)
