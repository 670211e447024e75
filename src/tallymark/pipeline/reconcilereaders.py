"""What a consumer reads, has come to and can still know, as expressions over the rows of a tally. Native SQL only.

The definitions are `Reader`'s (tally/records.py) and those of the marks (tally/history.py).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from tallymark.tally.records import Horizon, Reader

if TYPE_CHECKING:
    from pyspark.sql import Column


def offset_of(offsets: Mapping[tuple[str, int], int]) -> Column:
    """What a consumer's offsets say of a record's place; 0 where they say nothing."""
    from pyspark.sql import functions as F

    if not offsets:
        return F.lit(0)
    pairs = [
        each
        for (topic, part), at in sorted(offsets.items())
        for each in (F.lit(f"{topic}/{part}"), F.lit(at).cast("bigint"))
    ]
    return F.coalesce(F.try_element_at(F.create_map(*pairs), _place()), F.lit(0))


def reached(reader: Reader) -> Column:
    """Whether a row is a record of the log behind its beginning; where that is not written down, since it is known."""
    from pyspark.sql import functions as F

    unsaid = ~_place().isin(["/".join(map(str, place)) for place in sorted(reader.begun)])
    known = unsaid & (F.col("age_s") < F.expr(known_for(reader)))
    # One id may be written to several topics.
    logged = (F.col("station") == "log") & F.expr(reads(reader))
    return logged & ((F.col("offset") >= offset_of(reader.beginnings)) | known)


def _place() -> Column:
    from pyspark.sql import functions as F

    return F.concat_ws("/", F.col("topic"), F.col("partition").cast("string"))


def reads(reader: Reader) -> str:
    """Whether a consumer reads the topic that stands there."""
    return among(reader.topics)


def among(topics: Iterable[str]) -> str:
    """Whether the topic that stands there is one of these."""
    listed = ", ".join(quoted(topic) for topic in sorted(topics)) or "''"
    return f"coalesce(topic in ({listed}), false)"


def expires(horizon: Horizon) -> str:
    """After how many seconds the log may drop a message of its topic."""
    after = {topic: seconds for topic, seconds in horizon.expires_after_s.items() if seconds}
    return _by_topic(after, "cast('Infinity' as double)")


def known_for(reader: Reader) -> str:
    """For how many seconds a consumer has read its topic."""
    return _by_topic(reader.read_for_s, f"{reader.known_for_s!r}D")


def _by_topic(seconds: Mapping[str, float], otherwise: str) -> str:
    cases = " ".join(f"when {quoted(topic)} then {float(s)!r}D" for topic, s in sorted(seconds.items()))
    return f"(case topic {cases} else {otherwise} end)" if cases else otherwise


def dropped(reader: Reader) -> str:
    moment = "cast(conv(concat(substr(id, 1, 8), substr(id, 10, 4)), 16, 10) as bigint)"
    is_uuid7 = "id rlike '^[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$'"
    nameless = f"copies = 0 and rows > 0 and {among(reader.pruned)}"
    return f"case when {is_uuid7} then {moment} < {reader.kept_from_ms} else {nameless} end"


def quoted(text: str) -> str:
    """A text as SQL has it."""
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"
