"""Findings in Parquet: one file for each outbox, one row for each message, verdict and consumer, first and last seen.

The same as is kept beside the outbox (store/postgres/findings.py), for whoever reads files: Spark, pandas, a lake.
A file is replaced as a whole by each run, or not at all. Memory does not grow with what is found, nor with what was: what
is to be sorted waits on the disk.
"""

from __future__ import annotations

import os
import pickle
import secrets
import shutil
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from datetime import datetime
from heapq import merge
from itertools import groupby, islice
from pathlib import Path
from typing import Any, Generic, TypeVar

from tallymark.errors import Problem, UsageError
from tallymark.lifecycle import Stage, Verdict
from tallymark.pipeline.scratch import scratch
from tallymark.tally.findings import Finding, KeptFinding, Scope, merged

_OF_FINDING = (
    "id",
    "key",
    "topic",
    "partition",
    "offset",
    "position",
    "consumer",
    "stage",
    "verdict",
    "evidence",
)
_SEEN = ("run", "first_seen", "last_seen", "over_at")
# What is sorted in memory; what of a file is there at a time; and of each part that was sorted.
_PART, _GROUP, _BLOCK = 100_000, 10_000, 100
_Row = TypeVar("_Row", bound=Finding | KeptFinding)


class FindingFiles:
    """A folder of them."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UsageError(
                f"{folder} cannot be made: {error.strerror}", remedy="choose another folder"
            ) from error

    def path(self, outbox_id: str) -> Path:
        return self._folder / f"{outbox_id}.parquet"

    def passing(
        self, found: Iterable[Finding], scope: Scope, *, outbox_id: str, run: str, at: datetime
    ) -> Iterator[Finding]:
        """What is found goes by; when all has, it is kept, as seen when the stations were looked at."""
        path, aside = self.path(outbox_id), scratch("findings")
        try:
            seen, before = _Sorted[Finding](aside, _name), _Sorted[KeptFinding](aside, _name)
            for each in found:
                seen.add(each)
                yield each
            for kept in self.kept(outbox_id):
                before.add(kept)
            after = _Sorted[KeptFinding](aside, _place)
            # By name first, for where a finding stands may be known better by now.
            both: tuple[Iterable[Finding | KeptFinding], ...] = (before, seen)
            for _, same in groupby(merge(*both, key=_name), _name):
                rows = list(same)
                kept_before = [each for each in rows if isinstance(each, KeptFinding)]
                found_now = [each for each in rows if isinstance(each, Finding)]
                for kept in merged(kept_before, found_now, scope, run=run, at=at):
                    after.add(kept)
            self._write(path, after)
        finally:
            shutil.rmtree(aside, ignore_errors=True)

    def kept(self, outbox_id: str) -> Iterator[KeptFinding]:
        """What earlier runs have kept."""
        import pyarrow as pa
        import pyarrow.dataset as ds

        path = self.path(outbox_id)
        if not path.exists():
            return
        try:
            file = ds.dataset(path, schema=_schema(), format="parquet")
            for batch in file.to_batches(batch_size=_GROUP, batch_readahead=1):
                yield from map(_kept, batch.to_pylist())
        except (OSError, pa.ArrowException) as error:
            raise Problem(
                f"{path} is no file of findings", remedy="give --findings-to another folder"
            ) from error

    def _write(self, path: Path, rows: Iterable[KeptFinding]) -> None:
        import pyarrow as pa
        import pyarrow.parquet as pq

        aside = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
        left = iter(rows)
        try:
            with _written(path):
                with pq.ParquetWriter(aside, _schema(), compression="zstd") as file:
                    while group := [_row(each) for each in islice(left, _GROUP)]:
                        file.write_table(pa.Table.from_pylist(group, schema=_schema()))
                os.replace(aside, path)
        finally:
            aside.unlink(missing_ok=True)


class _Sorted(Generic[_Row]):
    """Rows in an order, however many: parts of them are sorted, wait on the disk, and are merged as they are read."""

    def __init__(self, folder: Path, order: Callable[[_Row], Any]) -> None:
        self._folder = folder
        self._order = order
        self._part: list[_Row] = []
        self._aside: list[Path] = []

    def add(self, row: _Row) -> None:
        self._part.append(row)
        if len(self._part) >= _PART:
            self._aside.append(self._folder / secrets.token_hex(8))
            with _written(self._aside[-1]), self._aside[-1].open("wb") as file:
                rows = sorted(self._part, key=self._order)
                for at in range(0, len(rows), _BLOCK):
                    pickle.dump(rows[at : at + _BLOCK], file)
            self._part = []

    def __iter__(self) -> Iterator[_Row]:
        parts = [self._read(path) for path in self._aside]
        return merge(*parts, sorted(self._part, key=self._order), key=self._order)

    def _read(self, path: Path) -> Iterator[_Row]:
        with path.open("rb") as file:
            while file.peek(1):
                yield from pickle.load(file)  # noqa: S301 - this very process has written it


@contextmanager
def _written(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise Problem(f"{path} cannot be written: {error.strerror}", remedy="look at its folder") from error


def _name(row: Finding | KeptFinding) -> tuple[str, str, str]:
    """Of which there is one row."""
    finding = row.finding if isinstance(row, KeptFinding) else row
    return finding.id, finding.verdict.value, finding.consumer


def _place(row: KeptFinding) -> tuple[Any, ...]:
    """In the order of the outbox, as `tally list` has them."""
    position = row.finding.position
    return position is None, position or 0, *_name(row)


def _schema() -> Any:
    import pyarrow as pa

    moment = pa.timestamp("us", tz="UTC")
    kinds = {"key": pa.binary(), "partition": pa.int32(), "offset": pa.int64(), "position": pa.int64()}
    kinds |= dict.fromkeys(("first_seen", "last_seen", "over_at"), moment)
    return pa.schema([(name, kinds.get(name, pa.string())) for name in (*_OF_FINDING, *_SEEN)])


def _row(each: KeptFinding) -> dict[str, Any]:
    finding = {name: getattr(each.finding, name) for name in _OF_FINDING}
    said = {"stage": each.finding.stage.value, "verdict": each.finding.verdict.value}
    return {**finding, **said, **{name: getattr(each, name) for name in _SEEN}}


def _kept(row: dict[str, Any]) -> KeptFinding:
    named = {name: row[name] for name in _OF_FINDING}
    finding = Finding(**{**named, "stage": Stage(row["stage"]), "verdict": Verdict(row["verdict"])})
    return KeptFinding(finding, *(row[name] for name in _SEEN))
