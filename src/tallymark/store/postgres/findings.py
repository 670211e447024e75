"""Keeps what a tally found, and the chain of certificates, beside the outbox that they speak of."""

from __future__ import annotations

import json
import uuid
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from typing import Any

from tallymark.lifecycle import Role, Stage, Verdict
from tallymark.store.postgres.connection import Connection, transaction
from tallymark.store.postgres.migrations import require_schema
from tallymark.store.postgres.tally import TallyProducer
from tallymark.store.queries import load
from tallymark.tally.certificates import ACCOUNTED, Statement
from tallymark.tally.chain import Certificate, issued, newest, trusted
from tallymark.tally.findings import Finding, KeptFinding, Scope
from tallymark.tally.windows import Window


class Findings:
    """One connection per call; a run's findings are kept in one transaction."""

    def __init__(self, url: str, *, schema: str = "tallymark") -> None:
        self._url = url
        self._schema = schema
        self._sql = load("tallymark.store.postgres", "findings.sql", schema)

    @property
    def outbox_id(self) -> str:
        """Whose findings they are."""
        return TallyProducer(self._url, schema=self._schema).outbox_id()

    def begin(self, run: uuid.UUID, scope: Scope, *, who: str) -> None:
        with self._open() as connection:
            connection.execute(
                self._sql["begin"], {"run": run, "who": who, "first": scope.first, "last": scope.last}
            )

    def keep(self, run: uuid.UUID, scope: Scope, findings: Iterable[Finding], *, at: datetime) -> int:
        """Keep what was found; what is in the scope and was not found again is over. Gives back how many.

        `at`: when the outbox was looked at, by its own clock, before all the others.
        """
        count = 0
        with self._open() as connection:
            connection.execute(self._sql["staging"])
            with connection.cursor() as cursor, cursor.copy(self._sql["copy"]) as copy:
                for each in findings:
                    count += 1
                    copy.write_row(
                        (
                            _text(each.id),
                            each.verdict.value,
                            each.consumer,
                            each.stage.value,
                            each.topic,
                            each.key,
                            each.partition,
                            each.offset,
                            each.position,
                            each.evidence,
                        )
                    )
            connection.execute(self._sql["merge"], {"run": run, "at": at})
            connection.execute(
                self._sql["over"],
                {
                    "run": run,
                    "at": at,
                    "first": scope.first,
                    "last": scope.last,
                    "topics": None if scope.topics is None else list(scope.topics),
                    "consumers": None if scope.consumers is None else list(scope.consumers),
                    "whole": scope.whole,
                    "delayed": scope.delayed,
                    "lowest": scope.lowest,
                },
            )
            connection.execute(self._sql["prune"])
        return count

    def found_later(self, at: datetime) -> list[int]:
        """Positions of what is amiss in the eyes of those who looked after that moment, and may have ended before."""
        parameters = {"at": at, "accounted": [each.value for each in ACCOUNTED]}
        with self._open() as connection:
            return [position for (position,) in connection.execute(self._sql["found_later"], parameters)]

    def open_in(self, rows: int, consumers: Collection[str] | None) -> set[int]:
        """Windows of so many rows, by number, of which something is open that a run over these consumers could close."""
        parameters = {"rows": rows, "consumers": None if consumers is None else list(consumers)}
        with self._open() as connection:
            return {number for (number,) in connection.execute(self._sql["open_in"], parameters)}

    def end(self, run: uuid.UUID, summary: dict[str, Any]) -> None:
        """With the end of the chain as it stands by then: who cuts the chain off has this against him."""
        with self._open() as connection:
            if row := connection.execute(self._sql["last_certificate"]).fetchone():
                last = Certificate(*row)
                summary = {**summary, "chain": {"number": last.number, "hash": last.hash}}
            connection.execute(self._sql["end"], {"run": run, "summary": json.dumps(summary)})

    def listed(
        self,
        *,
        verdicts: Sequence[Verdict] | None = None,
        topic: str | None = None,
        consumer: str | None = None,
        ids: Sequence[str] | None = None,
        over: bool = False,
        limit: int = 100,
    ) -> list[KeptFinding]:
        """In the order of the outbox."""
        parameters = {
            "verdicts": None if verdicts is None else [each.value for each in verdicts],
            "topic": topic,
            "consumer": consumer,
            "ids": None if ids is None else list(ids),
            "over": over,
            "limit": limit,
        }
        with self._open() as connection:
            rows = connection.execute(self._sql["list"], parameters).fetchall()
        return [_kept(row) for row in rows]

    def messages(self, verdicts: Sequence[Verdict]) -> int:
        """Of how many messages something of these is open, at however many consumers."""
        with self._open() as connection:
            row = connection.execute(
                self._sql["messages"], {"verdicts": [each.value for each in verdicts]}
            ).fetchone()
        return 0 if row is None else int(row[0])

    def counts(self) -> list[tuple[Verdict, Stage, str, int]]:
        """How many are open, by verdict, stage and consumer."""
        with self._open() as connection:
            rows = connection.execute(self._sql["counts"]).fetchall()
        return [(Verdict(verdict), Stage(stage), consumer, n) for verdict, stage, consumer, n in rows]

    def consumers(self) -> set[str]:
        """Whom the last runs looked at."""
        with self._open() as connection:
            return {name for (name,) in connection.execute(self._sql["consumers"]).fetchall()}

    def runs(self, *, limit: int = 20) -> list[dict[str, Any]]:
        """The last runs, the newest first."""
        with self._open() as connection:
            rows = connection.execute(self._sql["runs"], {"limit": limit}).fetchall()
        names = ("run", "started_at", "ended_at", "who", "from_position", "to_position")
        return [{**dict(zip(names, row, strict=False)), "summary": json.loads(row[6])} for row in rows]

    # Certificates

    def chain(self) -> list[Certificate]:
        with self._open() as connection:
            rows = connection.execute(self._sql["certificates"]).fetchall()
        return [_certificate(row) for row in rows]

    def ends(self) -> list[tuple[int, str]]:
        """Number and hash of the certificates that runs have seen at the end of the chain."""
        with self._open() as connection:
            return [(number, hash_) for number, hash_ in connection.execute(self._sql["ends"])]

    def certify(self, statements: Iterable[Statement], *, retired: Collection[str] = ()) -> list[Certificate]:
        """Add to the chain. Two at once take turns; what is in the chain is left out, unless there is more to say now.

        Windows need not come in order: one that was mended is certified behind those that were whole before it.
        """
        with self._open() as connection:
            connection.execute(self._sql["lock_certificates"])
            row = connection.execute(self._sql["last_certificate"]).fetchone()
            last = None if row is None else Certificate(*row)
            rows = connection.execute(self._sql["certificates"]).fetchall()
            known = {
                each.said.window: each for each in newest(trusted([_certificate(each) for each in rows]))
            }
            added = []
            for statement in statements:
                given = known.get(statement.window)
                if given is not None and not statement.supersedes(
                    given.said, issued_at=given.issued_at, retired=retired
                ):
                    continue
                last = issued(statement, last)
                connection.execute(
                    self._sql["certify"],
                    {
                        "number": last.number,
                        "start": statement.window.start,
                        "end": statement.window.end,
                        "statement": last.statement,
                        "previous": last.previous,
                        "hash": last.hash,
                    },
                )
                added.append(last)
            return added

    @contextmanager
    def _open(self) -> Iterator[Connection]:
        with transaction(self._url, application="tallymark tally") as connection:
            require_schema(connection, self._schema, Role.PRODUCER)
            yield connection


def _certificate(row: tuple[Any, ...]) -> Certificate:
    return Certificate(row[0], row[3], row[4], row[5], Window(row[1], row[2]), row[6])


def _kept(row: tuple[Any, ...]) -> KeptFinding:
    (
        id_,
        verdict,
        consumer,
        stage,
        topic,
        key,
        partition,
        offset,
        position,
        evidence,
        run,
        first,
        last,
        over,
    ) = row
    finding = Finding(
        id_, key, topic, partition, offset, position, consumer, Stage(stage), Verdict(verdict), evidence
    )
    return KeptFinding(finding, run, first, last, over)


def _text(text: str) -> str:
    """Text that PostgreSQL can hold, whatever a foreign hand wrote."""
    return text.replace("\0", "␀")
