"""Dataclasses as models: JSON becomes an instance, or a sentence that names the field that did not fit.

What the outbox writes of a dataclass is read back: UUIDs, decimals and times from text, enums from their values,
dataclasses within dataclasses, lists, tuples, sets and dicts of those. Numbers are read exactly: a field of type
Decimal gets what stands in the JSON, never a float's neighbour. A sentence names fields and types, never the contents.
The types are looked at once, when the handler is declared. Pure.
"""

from __future__ import annotations

import dataclasses
import enum
import types
import typing
import uuid
from collections.abc import Callable, Sequence
from datetime import date, datetime, time
from decimal import Decimal, InvalidOperation
from typing import Any, Literal, Union, get_args, get_origin

from tallymark.errors import UsageError

# A value from JSON, and where it stands, to a value of the field's type.
Convert = Callable[[Any, str], Any]


class Misfit(Exception):
    """What did not fit, and where."""


def converter_of(model: type) -> Convert:
    """How JSON becomes an instance of this dataclass. Its types must be known ones."""
    return _dataclass(model, {})


def _dataclass(model: type, made: dict[type, Convert]) -> Convert:
    if model in made:
        return made[model]
    fields: dict[str, Convert] = {}
    required: set[str] = set()
    computed: set[str] = set()

    def convert(value: Any, where: str) -> Any:
        if not isinstance(value, dict):
            raise Misfit(f"{where or 'the value'} is {_kind(value)}, not an object")
        if missing := sorted(required - value.keys()):
            raise Misfit(f"{_names(missing)} missing in {where or model.__name__}")
        if unknown := sorted(value.keys() - fields.keys() - computed):
            raise Misfit(f"{_names(unknown)} not known to {where or model.__name__}")
        inner = f"{where}." if where else ""
        return model(
            **{name: fields[name](item, inner + name) for name, item in value.items() if name in fields}
        )

    made[model] = convert  # before its fields: a tree's node names itself
    try:
        hints = typing.get_type_hints(model)
    except Exception as error:
        raise UsageError(
            f"the types of {model.__name__} cannot be read: {error}",
            remedy="define the model at the top of a module, with every type it names imported",
        ) from error
    for field in dataclasses.fields(model):
        if field.init:
            fields[field.name] = _converter(hints[field.name], f"{model.__name__}.{field.name}", made)
            if field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING:
                required.add(field.name)
        else:
            computed.add(field.name)  # its producer wrote it; here it is worked out again
    return convert


def _converter(  # noqa: PLR0911 - one return per kind of type
    hint: Any, field: str, made: dict[type, Convert]
) -> Convert:
    origin, arguments = get_origin(hint), get_args(hint)
    if hint in _SIMPLE:
        return _SIMPLE[hint]
    if origin in (Union, types.UnionType):
        return _either([_converter(argument, field, made) for argument in arguments], hint)
    if origin is Literal:
        return _one_of([(argument, argument) for argument in arguments])
    if isinstance(hint, type) and issubclass(hint, enum.Enum):
        return _one_of([(member.value, member) for member in hint])
    if isinstance(hint, type) and dataclasses.is_dataclass(hint):
        return _dataclass(hint, made)
    if origin in (list, set, frozenset) or (origin is tuple and arguments[1:] == (...,)):
        return _sequence(origin, _converter(arguments[0], field, made))
    if origin is dict and arguments[0] is str:
        return _mapping(_converter(arguments[1], field, made))
    raise UsageError(
        f"{field} is of type {_named(hint)}, which a dataclass model cannot be checked for",
        remedy="use a pydantic model, or decode=",
    )


def _exactly(kind: type, name: str) -> Convert:
    def convert(value: Any, where: str) -> Any:
        if type(value) is not kind:
            raise Misfit(f"{where} is {_kind(value)}, not {name}")
        return value

    return convert


def _parsed_by(parse: Callable[[str], Any], name: str) -> Convert:
    def convert(value: Any, where: str) -> Any:
        if not isinstance(value, str):
            raise Misfit(f"{where} is {_kind(value)}, not {name}")
        try:
            return parse(value)
        except ValueError:
            raise Misfit(f"{where} is not {name}") from None

    return convert


def _decimal(value: Any, where: str) -> Decimal:
    if isinstance(value, bool) or not isinstance(value, str | int | Decimal):
        raise Misfit(f"{where} is {_kind(value)}, not a decimal")
    try:
        number = Decimal(value)
    except InvalidOperation:
        raise Misfit(f"{where} is not a decimal") from None
    if not number.is_finite():
        raise Misfit(f"{where} is not a finite decimal")
    return number


def _float(value: Any, where: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | Decimal):
        raise Misfit(f"{where} is {_kind(value)}, not a number")
    try:
        return float(value)
    except OverflowError:
        raise Misfit(f"{where} is too large a number") from None


def _anything(value: Any, _where: str) -> Any:
    """As plain JSON gives it: floats, not decimals."""
    if isinstance(value, Decimal):
        return float(value)
    if isinstance(value, list):
        return [_anything(item, "") for item in value]
    if isinstance(value, dict):
        return {name: _anything(item, "") for name, item in value.items()}
    return value


def _either(converters: list[Convert], hint: Any) -> Convert:
    def convert(value: Any, where: str) -> Any:
        misfits = []
        for one in converters:
            try:
                return one(value, where)
            except Misfit as misfit:
                misfits.append(misfit)
        if value is not None and len(converters) == 2 and _SIMPLE[type(None)] in converters:
            raise misfits[converters.index(_SIMPLE[type(None)]) - 1]  # Optional: what the other one says
        raise Misfit(f"{where} is {_kind(value)}, which fits none of {_named(hint)}")

    return convert


def _one_of(known: Sequence[tuple[Any, Any]]) -> Convert:
    def convert(value: Any, where: str) -> Any:
        # By type too: True is not 1.
        for given, meant in known:
            if type(given) is type(value) and given == value:
                return meant
        raise Misfit(f"{where} is none of {', '.join(repr(given) for given, _ in known)}")

    return convert


def _sequence(kind: Callable[[Any], Any], item: Convert) -> Convert:
    def convert(value: Any, where: str) -> Any:
        if not isinstance(value, list):
            raise Misfit(f"{where} is {_kind(value)}, not a list")
        return kind(item(one, f"{where}[{at}]") for at, one in enumerate(value))

    return convert


def _mapping(item: Convert) -> Convert:
    def convert(value: Any, where: str) -> Any:
        if not isinstance(value, dict):
            raise Misfit(f"{where} is {_kind(value)}, not an object")
        return {name: item(one, f"{where}.{name}") for name, one in value.items()}

    return convert


_SIMPLE: dict[Any, Convert] = {
    Any: _anything,
    object: _anything,
    dict: _anything,
    list: _anything,
    str: _exactly(str, "text"),
    int: _exactly(int, "a whole number"),
    bool: _exactly(bool, "true or false"),
    type(None): _exactly(type(None), "null"),
    float: _float,
    Decimal: _decimal,
    uuid.UUID: _parsed_by(uuid.UUID, "a UUID"),
    datetime: _parsed_by(datetime.fromisoformat, "a time in ISO 8601"),
    date: _parsed_by(date.fromisoformat, "a date in ISO 8601"),
    time: _parsed_by(time.fromisoformat, "a time of day in ISO 8601"),
}

_KINDS = {
    str: "text",
    int: "a number",
    Decimal: "a number",
    bool: "true or false",
    list: "a list",
    dict: "an object",
}


def _kind(value: Any) -> str:
    return "null" if value is None else _KINDS.get(type(value), type(value).__name__)


def _named(hint: Any) -> str:
    return (
        hint.__name__ if isinstance(hint, type) and not get_args(hint) else str(hint).replace("typing.", "")
    )


def _names(names: list[str]) -> str:
    return f"{', '.join(names)} {'is' if len(names) == 1 else 'are'}"
