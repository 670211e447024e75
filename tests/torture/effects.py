"""What the log holds against what was applied of it: missing, doubled, reordered, phantoms, sums. The judging is pure."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field

import psycopg

from tests.torture.verdict import Logged


@dataclass(frozen=True, slots=True)
class Effect:
    """One effect, in the order in which they were made."""

    id: str
    key: str | None
    number: int


@dataclass(frozen=True)
class Effects:
    """Each list names messages; all empty is what was promised."""

    messages: int
    missing: list[str] = field(default_factory=list)
    doubled: list[str] = field(default_factory=list)
    reordered: list[str] = field(default_factory=list)
    phantoms: list[str] = field(default_factory=list)
    wrong_sums: list[str] = field(default_factory=list)
    marks_differ: list[str] = field(default_factory=list)

    @property
    def faults(self) -> dict[str, list[str]]:
        return {name: found for name, found in vars(self).items() if name != "messages" and found}


def judge(
    logged: Sequence[Logged],
    effects: Sequence[Effect],
    totals: dict[str, tuple[int, int]],
    marked: Counter[str],
) -> Effects:
    """Judge a finished run: the log, the effects, the sums per key, and how often each message is marked as applied."""
    there = {message.id: message for message in logged}
    seen = Counter(effect.id for effect in effects)
    sums: dict[str, tuple[int, int]] = {}
    for message in there.values():
        if message.key is not None:
            count, total = sums.get(message.key, (0, 0))
            sums[message.key] = count + 1, total + message.seq
    return Effects(
        messages=len(there),
        missing=[id_ for id_ in there if id_ not in seen],
        doubled=[f"{id_} × {times}" for id_, times in seen.items() if times > 1],
        reordered=_reordered(effects),
        phantoms=[id_ for id_ in seen if id_ not in there],
        wrong_sums=[
            f"{key}: {totals.get(key)} instead of {wanted}"
            for key, wanted in sums.items()
            if totals.get(key) != wanted
        ],
        marks_differ=[
            f"{id_} has {seen[id_]} effects and {marked[id_]} marks"
            for id_ in seen.keys() | marked.keys()
            if seen[id_] != marked[id_]
        ],
    )


def _reordered(effects: Sequence[Effect]) -> list[str]:
    highest: dict[str, int] = defaultdict(int)
    found = []
    for effect in effects:
        if effect.key is None:
            continue
        if effect.number < highest[effect.key]:
            found.append(
                f"{effect.id} (key {effect.key}, number {effect.number}) after {highest[effect.key]}"
            )
        highest[effect.key] = max(highest[effect.key], effect.number)
    return found


def read(url: str) -> tuple[list[Effect], dict[str, tuple[int, int]], Counter[str]]:
    """The consumer's database, by plain SQL."""
    with psycopg.connect(url) as connection:
        effects = [
            Effect(*row)
            for row in connection.execute("select message_id, key, n from effect order by seq").fetchall()
        ]
        totals = {row[0]: (row[1], row[2]) for row in connection.execute("select key, n, sum from total")}
        marked = Counter(
            row[0] for row in connection.execute("select id::text from tallymark.applications").fetchall()
        )
    return effects, totals, marked


def applied(url: str) -> int:
    """A sign of life, never a proof."""
    with psycopg.connect(url, connect_timeout=60) as connection:
        row = connection.execute("select coalesce(max(seq), 0) from effect").fetchone()
    return int(row[0]) if row else 0


def unfinished(url: str) -> int:
    """What is kept and not yet applied."""
    with psycopg.connect(url, connect_timeout=60) as connection:
        row = connection.execute("select count(*) from tallymark.queue").fetchone()
    return int(row[0]) if row else 0


def stuck(url: str) -> list[str]:
    """Dead letters and halted positions: none of it is due here."""
    with psycopg.connect(url) as connection:
        rows = connection.execute(
            "select 'dead: ' || reason || ' (' || id || ')' from tallymark.dead_letters "
            "union all select halted from tallymark.positions where halted is not null"
        ).fetchall()
    return [row[0] for row in rows]
