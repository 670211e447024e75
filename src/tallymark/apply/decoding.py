"""From bytes to what a handler calls `message.value`. What does not fit is permanent, and said in one sentence.

Without `model=` or `decode=` the content type decides: JSON (also where there is none), text, or bytes as they are.
None, a tombstone, stays None whatever was asked for. The sentence says what did not fit and where, never the payload:
it is kept in a table and shown on screens.
"""

from __future__ import annotations

import dataclasses
import inspect
import json
from collections.abc import Callable
from decimal import Decimal
from typing import Any

from tallymark.apply.incoming import content_type_of, headers_of
from tallymark.apply.shapes import Misfit, converter_of
from tallymark.errors import Problem, UsageError, said
from tallymark.inbox.ports import Received

Decode = Callable[..., Any]
Decoder = Callable[[Received], Any]

_SHOWN_ERRORS = 3
_OPENS = ("{", "[")


class DecodeFailed(Problem):
    """The bytes do not become the value that the handler wants. Trying again gives the same."""


def decoder_for(topic: str, model: Any = None, decode: Decode | None = None) -> Decoder:
    """How this topic's values are decoded; refuses a model that is none."""
    if model is not None and decode is not None:
        raise UsageError(
            f"the handler of topic {topic} has both model= and decode=", remedy="give one of the two"
        )
    if decode is not None:
        return _by_function(topic, decode)
    return _by_content_type if model is None else _by_model(model)


def _by_content_type(received: Received) -> Any:
    value = received.value
    if value is None:
        return None
    kind = content_type_of(received)
    if not kind or kind == "application/json" or kind.endswith("+json"):
        return _json(value, _plain)
    if kind.startswith("text/"):
        return _utf8(value)
    return value


def _by_model(model: Any) -> Decoder:
    validate = _validator_of(model)
    name = getattr(model, "__name__", type(model).__name__)
    if validate is None:
        if not (isinstance(model, type) and dataclasses.is_dataclass(model)):
            raise UsageError(
                f"model={name} is neither a pydantic model nor a dataclass",
                remedy="give the class itself, or use decode=",
            )
        return _by_dataclass(model)

    def decoded(received: Received) -> Any:
        if received.value is None:
            return None
        try:
            return validate(received.value)
        except Exception as error:  # noqa: BLE001 - whatever a validator raises, it will raise again
            # Not chained: pydantic's own text quotes the payload.
            raise DecodeFailed(f"the value does not fit {name}: {_pydantic_sentence(error)}") from None

    return decoded


def _validator_of(model: Any) -> Callable[[bytes], Any] | None:
    """pydantic, known by what it offers: a model, a TypeAdapter, or one of its own dataclasses."""
    for holder in (model, getattr(model, "__pydantic_validator__", None)):
        for offered in ("model_validate_json", "validate_json"):
            if callable(found := getattr(holder, offered, None)):
                return found  # type: ignore[no-any-return]  # pydantic is optional: its types are not at hand
    return None


def _pydantic_sentence(error: Exception) -> str:
    errors = getattr(error, "errors", None)
    if not callable(errors):
        return f"a validator raised {type(error).__name__}"
    found = errors(include_url=False, include_context=False, include_input=False)
    shown = [
        f"{'.'.join(map(str, one['loc']))}: {one['msg']}" if one["loc"] else str(one["msg"])
        for one in found[:_SHOWN_ERRORS]
    ]
    more = len(found) - len(shown)
    return "; ".join(shown) + (f"; and {more} more" if more else "")


def _by_dataclass(model: type) -> Decoder:
    convert = converter_of(model)

    def decoded(received: Received) -> Any:
        if received.value is None:
            return None
        try:
            return convert(_json(received.value, _exact), "")
        except Misfit as misfit:
            raise DecodeFailed(f"the value does not fit {model.__name__}: {misfit}") from None
        except DecodeFailed:
            raise
        except Exception as error:  # noqa: BLE001 - the model's own __post_init__
            raise DecodeFailed(f"{model.__name__} refuses the value: {said(error)}") from None

    return decoded


def _by_function(topic: str, decode: Decode) -> Decoder:
    if not callable(decode) or inspect.iscoroutinefunction(decode):
        raise UsageError(
            f"decode= of topic {topic} is not a plain function",
            remedy="give decode(raw) or decode(raw, headers)",
        )
    with_headers = _wants_headers(decode)

    def decoded(received: Received) -> Any:
        if received.value is None:
            return None
        try:
            if with_headers:
                return decode(received.value, headers_of(received))
            return decode(received.value)
        except Exception as error:
            if _from_outside(error):
                raise
            raise DecodeFailed(f"decode= refuses the value: {said(error)}") from error

    return decoded


def _wants_headers(decode: Decode) -> bool:
    try:
        parameters = list(inspect.signature(decode).parameters.values())
    except (TypeError, ValueError):  # written in C, and silent about what it takes
        return False
    places = [one for one in parameters if one.kind in (one.POSITIONAL_ONLY, one.POSITIONAL_OR_KEYWORD)]
    return len(places) > 1 and (places[1].default is inspect.Parameter.empty or places[1].name == "headers")


def _from_outside(error: BaseException | None) -> bool:
    """Whether the network or the disk failed, not the message: a schema registry that is down comes back."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        if isinstance(error, OSError):
            return True
        seen.add(id(error))
        error = error.__cause__ or error.__context__
    return False


def _json(value: bytes, parse: Callable[[str], Any]) -> Any:
    text = _utf8(value)
    try:
        return parse(text[1:] if text.startswith("\ufeff") else text)
    except json.JSONDecodeError as error:
        what = f"the value is not JSON: {error.msg} at line {error.lineno}, column {error.colno}"
    except RecursionError:
        what = "the value is JSON that is nested too deeply"
    except ValueError as error:
        what = f"the value is not JSON that can be used: {error}"
    raise DecodeFailed(what)


def _utf8(value: bytes) -> str:
    try:
        return str(value, "utf-8")
    except UnicodeDecodeError as error:
        raise DecodeFailed(f"the value is not UTF-8: {error.reason} at byte {error.start}") from None


def _no_constant(name: str) -> Any:
    raise ValueError(f"it holds {name}")


def _parser(**options: Any) -> Callable[[str], Any]:
    """A decoder made once: json.loads with options would make one for each value."""
    decoder = json.JSONDecoder(parse_constant=_no_constant, **options)

    def parse(text: str) -> Any:
        # What machines write has no space around it, so that this is nearly always all.
        if text[:1] in _OPENS:
            value, end = decoder.raw_decode(text)
            if end == len(text):
                return value
        return decoder.decode(text)

    return parse


_plain = _parser()
_exact = _parser(parse_float=Decimal)
