"""The SQL that the tally gives to Spark: cells of digests, and single rows. Only numbers, ids and topics go in.

A query is cut into several by ranges of positions or of ids, one for each task: each range is an index range, and
nothing is read twice. A `Dialect` says in whose words: those of a live database, or of a snapshot that Spark reads.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import pairwise

from tallymark.store.queries import load

_HIGHEST = uuid.UUID(int=2**128 - 1)
_LOWEST = uuid.UUID(int=0)
# Ids below this one are names of foreign producers (inbox/identity.py).
_FIRST7 = uuid.UUID("00010000-0000-0000-0000-000000000000")

# Beside its digest a window sums up which message claims which position: a prime, and bits of the digest, so that the
# sum of ten thousand million of them is no overflow. It says where to look, and never what is so.
FOLD, FOLD_MASK = 32_749, 2**20 - 1

IdRange = tuple[uuid.UUID, uuid.UUID]
ALL_IDS: IdRange = (_LOWEST, _HIGHEST)
Place = tuple[str, int]
# A partition, and offsets from the first up to, and without, the second.
Stretch = tuple[Place, int, int]
# Kafka's own rule: nothing in a topic's name needs quoting.
_TOPIC = re.compile(r"[A-Za-z0-9._-]+")


@dataclass(frozen=True, slots=True)
class Dialect:
    """What PostgreSQL and Spark say in words of their own. `{netstring}` in the digest is that of the id."""

    digest: str
    # The two halves of the digest `h`, as signed numbers of 64 bits.
    first_half: str
    second_half: str
    # Two hashes of `o.id`, in the way of the engine, and what that is called: only the same can be compared.
    hash0: str
    hash1: str
    hashed: str
    # An id as text that sorts by its bytes, and as it is shown: the producer's own name where it has one.
    bytewise: str
    id: str
    named: str
    id_netstring: str
    named_netstring: str
    div: str
    # What stands before a moment as text.
    moment: str
    quote: str = '"'
    # Behind a subselect: its columns are worked out once, however often they are used around it.
    fence: str = ""

    def said(self, text: str) -> str:
        """A query in these words."""
        return text if self.quote == '"' else text.replace('"', self.quote)


POSTGRES = Dialect(
    digest=load("tallymark.store.postgres", "tallycells.sql", "tallymark")["digest"],
    first_half="('x' || left(h, 16))::bit(64)::bigint",
    second_half="('x' || right(h, 16))::bit(64)::bigint",
    hash0="uuid_hash_extended(o.id, 0)",
    hash1="uuid_hash_extended(o.id, 1)",
    hashed="uuid_hash_extended",
    bytewise='o.id::text collate "C"',
    id="o.id::text",
    named="coalesce(o.named, o.id::text)",
    # Digits, dashes and a colon: what they are in bytes needs no conversion.
    id_netstring="('36:' || o.id::text)::bytea",
    named_netstring="case when o.named is null then ('36:' || o.id::text)::bytea"
    " else convert_to(octet_length(o.named) || ':' || o.named, 'UTF8') end",
    div="/",
    moment="timestamptz",
    fence="offset 0",
)


class CellQueries:
    """Named queries of one schema, filled in."""

    def __init__(self, schema: str, *, rows: int, bucket: int, dialect: Dialect = POSTGRES) -> None:
        self._sql = load("tallymark.store.postgres", "tallycells.sql", schema)
        self._rows, self._bucket = rows, bucket
        self._dialect = dialect

    def outbox_cells(self, first: int, upto: int) -> str:
        return self._filled("outbox_cells", named=False, first=first, upto=upto)

    def outbox_rows(self, positions: Sequence[tuple[int, int]]) -> str:
        return self._filled("outbox_rows", named=False, positions=_positions(positions))

    def outbox_ids(self, positions: Sequence[tuple[int, int]]) -> str:
        return self._filled("outbox_ids", named=False, positions=_positions(positions))

    def inbox_cells(self, ids: IdRange, since: Mapping[Place, int], beyond: int | None = None) -> str:
        """`since`: only what lies at these offsets or behind; empty: everything. `beyond`: from there on of no window."""
        window = "o.position {div} {rows}"
        if beyond is not None:
            window = f"case when o.position < {beyond} then {window} end"
        return self._filled("inbox_cells", window=window, low=ids[0], high=ids[1], places=_since(since))

    def effect_cells(self, ids: IdRange, since: Mapping[Place, int]) -> str:
        return self._filled("effect_cells", low=ids[0], high=ids[1], places=_since(since))

    def inbox_counts(self, ids: IdRange, positions: Sequence[tuple[int, int]]) -> str:
        return self._filled("inbox_counts", low=ids[0], high=ids[1], positions=_positions(positions))

    def inbox_rows(self, ids: IdRange, positions: Sequence[tuple[int, int]]) -> str:
        return self._filled("inbox_rows", low=ids[0], high=ids[1], positions=_positions(positions))

    def effect_rows(self, ids: IdRange, places: Iterable[Stretch] | None = None) -> str:
        """`places`: only there; None: wherever."""
        where = "true" if places is None else _places(places, of="a", placeless=True)
        return self._filled("effect_rows", low=ids[0], high=ids[1], places=where)

    def window_effects(self, places: Iterable[Stretch]) -> str:
        return self._filled("window_effects", places=_places(places, of="a", placeless=True))

    def inbox_among(self, ids: Iterable[uuid.UUID]) -> str:
        return self._filled("inbox_among", ids=", ".join(f"'{each}'" for each in ids))

    def overtaking(self, since: Mapping[Place, int], remade: Mapping[str, datetime]) -> str:
        """`remade`: topics whose offsets begin anew at a moment: what was applied before it is of another log."""
        return self._filled("overtaking", places=_since(since), of_this_log=self._of_this_log(remade))

    def misapplied(self, places: Iterable[Stretch], remade: Mapping[str, datetime]) -> str:
        return self._filled("misapplied", places=_places(places), of_this_log=self._of_this_log(remade))

    def _of_this_log(self, remade: Mapping[str, datetime]) -> str:
        moments = {topic: f"{self._dialect.moment} '{at.isoformat()}'" for topic, at in remade.items()}
        return (
            " and ".join(
                f"(o.topic <> '{_plain(topic)}' or o.applied_at >= {at})"
                for topic, at in sorted(moments.items())
            )
            or "true"
        )

    def _filled(self, name: str, *, named: bool = True, **values: int | str | uuid.UUID) -> str:
        """`named`: whether its rows may have a producer's own name in place of an id."""
        words = self._dialect
        text = self._sql[name].replace("{digest}", words.digest)
        chosen: dict[str, int | str | uuid.UUID] = {
            # First: there are others in it.
            "window": values.get("window", ""),
            "id": words.named if named else words.id,
            "netstring": words.named_netstring if named else words.id_netstring,
            "first_half": words.first_half,
            "second_half": words.second_half,
            "hash0": words.hash0,
            "hash1": words.hash1,
            "bytewise": words.bytewise,
            "div": words.div,
            "claim": f"(place % {FOLD}) * (a & {FOLD_MASK})",
            "fence": words.fence,
            "rows": self._rows,
            "bucket": self._bucket,
            **values,
        }
        for key, value in chosen.items():
            text = text.replace(f"{{{key}}}", str(value))
        return words.said(text)


def _positions(ranges: Iterable[tuple[int, int]]) -> str:
    wanted = " or ".join(f"o.position >= {low} and o.position < {high}" for low, high in ranges)
    return f"({wanted or 'false'})"


def _since(offsets: Mapping[Place, int]) -> str:
    """From these offsets on, and what has none."""
    if not offsets:
        return "true"
    topics: dict[str, list[str]] = {}
    for (topic, partition), offset in sorted(offsets.items()):
        topics.setdefault(_plain(topic), []).append(f"when {partition} then {offset}")
    cases = " ".join(
        f"when '{topic}' then case o.partition {' '.join(of)} end" for topic, of in topics.items()
    )
    return f'(o."offset" is null or o."offset" >= case o.topic {cases} end)'


def _places(places: Iterable[Stretch], *, of: str = "o", placeless: bool = False) -> str:
    """In one of these stretches of the log."""
    found = [
        f"{of}.topic = '{_plain(topic)}' and {of}.partition = {partition}"
        f' and {of}."offset" >= {low} and {of}."offset" < {high}'
        for (topic, partition), low, high in places
    ]
    if placeless:
        found.append(f'{of}."offset" is null')
    return f"({' or '.join(found) or 'false'})"


def _plain(topic: str) -> str:
    if not _TOPIC.fullmatch(topic):
        raise AssertionError(f"{topic!r} is no topic's name")
    return topic


def position_ranges(first: int, upto: int, parts: int, step: int) -> list[tuple[int, int]]:
    """Positions from `first` up to, and without, `upto` in at most so many ranges, cut at multiples of `step`."""
    if upto <= first:
        return []
    width = -(-(upto - first) // parts)
    width += -width % step
    cuts = [*range(first - first % step + width, upto, width), upto]
    return list(zip([first, *cuts], cuts, strict=False))


def id_ranges(
    bounds: tuple[uuid.UUID, uuid.UUID] | None, parts: int, *, first: uuid.UUID = _LOWEST
) -> list[IdRange]:
    """All ids from `first` on in ranges of about the same time; foreign names in one of their own."""
    if bounds is None:
        return [(first, _HIGHEST)]
    low, high = max(bounds[0].int, first.int), bounds[1].int
    step = max(1, -(-(high - low + 1) // parts))
    cuts = [uuid.UUID(int=at) for at in range(low + step, high, step)]
    begin = [first] if first >= _FIRST7 else [first, _FIRST7]
    edges = [*begin, *(cut for cut in cuts if cut > begin[-1]), _HIGHEST]
    return list(pairwise(edges))
