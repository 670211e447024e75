"""Two tables that should say the same: their differences by name, and what would mend the right one. Pure.

The left one is taken for right. A difference is one key: missing on one side, there twice, or with other values.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from tallymark.errors import UsageError

Kind = Literal["missing-left", "missing-right", "doubled", "differs"]
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_$]*")


@dataclass(frozen=True, slots=True)
class Difference:
    """One key that the two tables do not agree on. Values are as text, None is null."""

    key: Mapping[str, str | None]
    kind: Kind
    left: Mapping[str, str | None] = field(default_factory=dict)
    right: Mapping[str, str | None] = field(default_factory=dict)
    copies: tuple[int, int] = (1, 1)

    @property
    def columns(self) -> dict[str, tuple[str | None, str | None]]:
        """What differs, column by column."""
        if self.kind != "differs":
            return {}
        return {
            name: (self.left[name], self.right[name])
            for name in self.left
            if self.left[name] != self.right[name]
        }

    def as_json(self) -> dict[str, Any]:
        return {
            "key": dict(self.key),
            "kind": self.kind,
            "columns": {name: {"left": a, "right": b} for name, (a, b) in self.columns.items()},
            "copies": {"left": self.copies[0], "right": self.copies[1]},
        }


def identifier(name: str) -> str:
    """A column's or a table's name, quoted; parts with a dot between are quoted each."""
    parts = name.split(".")
    if not all(_NAME.fullmatch(part) for part in parts):
        raise UsageError(f"{name!r} is not a name", remedy="letters, digits, _ and $; a schema before a dot")
    return ".".join(f'"{part}"' for part in parts)


def literal(value: str | None) -> str:
    """A value as SQL takes it, whatever the column's type: an untyped literal."""
    if value is None:
        return "null"
    return "'" + value.replace("'", "''") + "'"


def repair_sql(table: str, differences: Iterable[Difference]) -> Iterator[str]:
    """Statements that make the right table say what the left one does. Doubled keys are left to people.

    Each changes a row only where it still says what was compared: what changed since is neither overwritten nor deleted.
    """
    name = identifier(table)
    for each in differences:
        where = _equal(each.key)
        if each.kind == "missing-right":
            row = {**each.key, **each.left}
            columns = ", ".join(identifier(column) for column in row)
            values = ", ".join(map(literal, row.values()))
            # It may be there meanwhile, in a table without a unique key too; with one, it may be about to be.
            absent = f"not exists (select 1 from {name} where {where})"
            yield f"insert into {name} ({columns}) select {values} where {absent} on conflict do nothing;"
        elif each.kind == "missing-left":
            yield f"delete from {name} where {_equal({**each.key, **each.right})};"
        elif each.kind == "differs":
            sets = ", ".join(
                f"{identifier(column)} = {literal(a)}" for column, (a, _) in each.columns.items()
            )
            stands = _equal({column: b for column, (_, b) in each.columns.items()})
            yield f"update {name} set {sets} where {where} and {stands};"
        else:
            yield f"-- doubled, look yourself: {json.dumps(dict(each.key), ensure_ascii=False)}"


def repair_script(table: str, differences: Iterable[Difference]) -> Iterator[str]:
    """The same as one transaction. Times were compared in UTC, and are written so, whatever zone a session has."""
    yield "begin;"
    yield "set local time zone 'UTC';"
    yield from repair_sql(table, differences)
    yield "commit;"


def repair_messages(differences: Iterable[Difference]) -> Iterator[str]:
    """One line of JSON for each key: what the left table says of it; null where it has none."""
    for each in differences:
        if each.kind != "doubled":
            value = None if each.kind == "missing-left" else {**each.key, **each.left}
            key = "|".join(str(part) for part in each.key.values())
            yield json.dumps({"key": key, "value": value}, ensure_ascii=False)


def _equal(row: Mapping[str, str | None]) -> str:
    return " and ".join(
        f"{identifier(column)} is null" if value is None else f"{identifier(column)} = {literal(value)}"
        for column, value in row.items()
    )


def checked_columns(named: Sequence[str], left: Sequence[str], right: Sequence[str]) -> None:
    """Each is in both tables."""
    for side, columns in (("left", left), ("right", right)):
        if missing := [name for name in named if name not in columns]:
            raise UsageError(
                f"the {side} table has no column {missing[0]}", remedy=f"it has {', '.join(sorted(columns))}"
            )
