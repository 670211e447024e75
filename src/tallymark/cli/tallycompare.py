"""`tallymark tally compare`: two tables that should say the same, what differs by column, and what would mend it."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from tallymark.cli import connections, output
from tallymark.errors import UsageError

if TYPE_CHECKING:
    from tallymark.pipeline.reconcilecompare import Table
    from tallymark.tally.comparing import Difference

_SHOWN = 20


def compare(
    left: Annotated[
        str, typer.Option("--left", metavar="DATABASE:TABLE|PATH", help="What is taken for right.")
    ],
    right: Annotated[
        str, typer.Option("--right", metavar="DATABASE:TABLE|PATH", help="What is compared with it.")
    ],
    key: Annotated[list[str], typer.Option("--key", help="A column of the key; may be repeated.")],
    columns: Annotated[
        str, typer.Option("--columns", metavar="A,B", help="What to compare; default: all that both have.")
    ] = "",
    repair: Annotated[
        Path | None,
        typer.Option("--repair", metavar="FILE", help="Write what would mend the right one there."),
    ] = None,
    repair_as: Annotated[
        Literal["sql", "messages"], typer.Option("--repair-as", help="As statements, or as messages by key.")
    ] = "sql",
    limit: Annotated[int, typer.Option("--limit", min=0, help="Differences to print.")] = 1000,
    master: Annotated[str, typer.Option("--master", help="Where Spark runs.")] = "local[*]",
    conf: Annotated[list[str] | None, typer.Option("--conf", metavar="NAME=VALUE", help="Spark's.")] = None,
    as_json: output.JsonOption = False,
) -> None:
    """Compare any two tables (PostgreSQL, Parquet) and name what differs, key by key and column by column."""
    from tallymark.cli.pipelinerun import plan_of
    from tallymark.pipeline.reconcilecompare import Compared
    from tallymark.pipeline.reconcilesources import explained
    from tallymark.pipeline.session import started

    one, other = _table(left), _table(right)
    if repair is not None and repair_as == "sql" and other.name is None:
        raise UsageError("statements mend a table, not Parquet", remedy="--repair-as messages")
    wanted = [name.strip() for name in columns.split(",") if name.strip()]
    plan = plan_of("tallymark compare", master, conf or [], report=not as_json)
    with started(plan) as spark, explained():
        compared = Compared(spark, one, other, key, wanted)
        try:
            lefts, rights = compared.counts()
            kinds, by_column, shown = _written(compared, other, repair, repair_as, limit)
        finally:
            compared.close()
    report = {
        "left": left,
        "right": right,
        "rows": {"left": lefts, "right": rights},
        "by_kind": dict(kinds),
        "by_column": dict(by_column),
        "differences": [each.as_json() for each in shown],
        "truncated": kinds.total() > len(shown),
        "repair": str(repair) if repair else None,
    }
    output.emit(report, as_json=as_json, human=lambda: _told(report, shown))
    if kinds.total():
        raise typer.Exit(1)


def _written(
    compared: Any, right: Table, repair: Path | None, repair_as: str, limit: int
) -> tuple[Counter[str], Counter[str], list[Difference]]:
    """One pass over the differences: counted, the first shown, each mended in the file."""
    from tallymark.tally.comparing import repair_messages, repair_script

    kinds: Counter[str] = Counter()
    by_column: Counter[str] = Counter()
    shown: list[Difference] = []

    def seen() -> Any:
        for each in compared.differences():
            kinds[each.kind] += 1
            by_column.update(list(each.columns))
            if len(shown) < limit:
                shown.append(each)
            yield each

    lines = (
        repair_script(right.name or "", seen()) if repair_as == "sql" and repair else repair_messages(seen())
    )
    if repair is None:
        for _ in lines:
            pass
        return kinds, by_column, shown
    try:
        with repair.open("w", encoding="utf-8") as file:
            for line in lines:
                file.write(line + "\n")
    except OSError as error:
        raise UsageError(f"{repair} cannot be written: {error.strerror}") from error
    return kinds, by_column, shown


def _table(text: str) -> Table:
    from tallymark.pipeline.reconcilecompare import Table

    where, separator, name = text.rpartition(":")
    if not separator or "/" in name or name.endswith(".parquet"):
        return Table(text, path=Path(text))
    settings = connections.load(database=where).settings
    return Table(text, url=connections.database(settings, where).url.get_secret_value(), name=name)


def _told(report: dict[str, Any], shown: list[Difference]) -> list[Any]:
    rows = report["rows"]
    parts: list[Any] = [f"{rows['left']:,} rows on the left, {rows['right']:,} on the right"]
    if not report["by_kind"]:
        return [*parts, "they say the same"]
    parts.append(output.table(("difference", "keys"), sorted(report["by_kind"].items())))
    if report["by_column"]:
        parts.append(output.table(("column", "differs in"), sorted(report["by_column"].items())))
    parts.append(
        output.table(
            ("key", "difference", "column", "left", "right"),
            [
                (", ".join(str(part) for part in each.key.values()), each.kind, column, *values)
                for each in shown[:_SHOWN]
                for column, values in (each.columns or {"": ("", "")}).items()
            ],
        )
    )
    return parts
