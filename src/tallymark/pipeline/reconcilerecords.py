"""Records of a log as the tally compares them: whose they are, where they claim to stand, and their digest."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from tallymark.message import CE_ID, CE_SOURCE, TM_POSITION
from tallymark.store.postgres.tallycells import FOLD, FOLD_MASK
from tallymark.tally.digest import LIMBS

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

_LOW = 2**32 - 1


def records_of(raw: DataFrame) -> DataFrame:
    """Committed records: topic, partition, offset, id, position, source, key, digest, slot, at."""
    from pyspark.sql import functions as F

    # What several columns are made of stands in a projection of its own: it is made once.
    named = raw.withColumn("names", F.expr("reverse(headers.key)"))
    read = named.select(
        "topic",
        "partition",
        "offset",
        "key",
        "value",
        F.col("timestamp").alias("at"),
        F.expr(_header(CE_ID)).alias("ce_id"),
        F.expr(f"try_cast({_header(TM_POSITION)} as bigint)").alias("position"),
        F.coalesce(F.expr(_header(CE_SOURCE)), F.lit("")).alias("source"),
    )
    id_ = F.coalesce(F.col("ce_id"), F.expr("concat(topic, '/', partition, '/', offset)"))
    return read.select(
        "topic",
        "partition",
        "offset",
        id_.alias("id"),
        F.col("ce_id").isNotNull().alias("named"),
        "position",
        "source",
        "key",
        F.md5(
            F.concat(netstring(id_.cast("binary")), netstring(F.col("key")), netstring(F.col("value")))
        ).alias("digest"),
        F.when(F.col("key").isNull(), F.col("position") % 256)
        .otherwise(F.conv(F.substring(F.md5("key"), 1, 2), 16, 10).cast("int"))
        .cast("int")
        .alias("slot"),
        "at",
    )


def halves(digest: Column) -> tuple[Column, Column]:
    """The 128 bits of a digest as two signed numbers: half as much to carry, and to convert, as its four limbs."""
    from pyspark.sql import functions as F

    return (
        F.conv(F.substring(digest, 1, 16), 16, -10).cast("bigint"),
        F.conv(F.substring(digest, 17, 16), 16, -10).cast("bigint"),
    )


def number_of(topic: Column, topics: Sequence[str]) -> Column:
    """A topic as its number among these; null where it is none of them. Numbers are many times cheaper than names."""
    from pyspark.sql import functions as F

    found = F.lit(None).cast("bigint")
    for number, name in enumerate(topics):
        found = F.when(topic == name, F.lit(number).cast("bigint")).otherwise(found)
    return found


def folded(position: Column, half: Column) -> Column:
    """A message and the position that it claims, in one number: that of tallycells.sql (`{claim}`)."""
    from pyspark.sql import functions as F

    return F.pmod(position, F.lit(FOLD)) * half.bitwiseAND(FOLD_MASK)


def limbs(first: Column, second: Column) -> list[Column]:
    """The four numbers of 32 bits that a window's digest adds up."""
    from pyspark.sql import functions as F

    found = [
        each for half in (first, second) for each in (F.shiftrightunsigned(half, 32), half.bitwiseAND(_LOW))
    ]
    if len(found) != LIMBS:
        raise AssertionError(f"a digest has {LIMBS} limbs")
    return found


def netstring(part: Column) -> Column:
    from pyspark.sql import functions as F

    prefix = F.concat(F.octet_length(part).cast("string"), F.lit(":")).cast("binary")
    return F.when(part.isNull(), F.lit("-").cast("binary")).otherwise(F.concat(prefix, part))


def _header(name: str) -> str:
    """A header's value as text. Of a name that is repeated the last one counts, as at an inbox.

    By the names alone, which stand from the last one on: a lambda over all headers is not compiled. Where none is of that
    name, this asks for one behind the last, which is null.
    """
    at = f"cast(size(headers) - array_position(names, '{name}') as int)"
    return f"cast(get(headers, {at}).value as string)"
