"""Sends messages again: new rows of the outbox with the original id and a resend number. Every one is audited."""

from __future__ import annotations

import json
import sys
import uuid
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import datetime
from operator import itemgetter
from typing import Any

import psycopg

from tallymark.errors import Problem, UsageError
from tallymark.inbox.identity import saved_id
from tallymark.lifecycle import MessageState, Role
from tallymark.message import TM_ORIGIN, TM_RESEND
from tallymark.outbox.ports import MessageStatus
from tallymark.store.postgres.connection import Connection, transaction
from tallymark.store.postgres.migrations import require_schema
from tallymark.store.postgres.resendmeanwhile import PATIENCE_S, Meanwhile
from tallymark.store.postgres.writer import PostgresWriter
from tallymark.store.queries import load
from tallymark.tally.resending import Standing, Wanted, refusal, seen_at
from tallymark.tally.verdicts import MENDABLE

# So many later messages of a key are looked up one by one; where there are more, one of them counts.
_ENOUGH = 20
# How often it is told how many were written.
_TOLD_EVERY = 100
_COMING = (MessageState.PENDING, MessageState.SENDING)
_MENDABLE = {"mendable": [str(each) for each in MENDABLE]}
_Missed = tuple[datetime, list[str]]
_LATER = ("ids", "topics", "keys", "positions", "more")


@dataclass(frozen=True, slots=True)
class Resent:
    """What was sent again (or would be), and why the rest was not."""

    resent: list[dict[str, object]] = field(default_factory=list)
    refused: dict[str, str] = field(default_factory=dict)


class Resending:
    """One outbox and the consumers' databases that may lack its messages."""

    def __init__(
        self,
        url: str,
        consumers: Mapping[str, str],
        *,
        schema: str = "tallymark",
        progress: Callable[[str], None] = lambda _text: None,
        patience_s: float = PATIENCE_S,
    ) -> None:
        """`patience_s`: how long it waits for others who write, at the end."""
        self._patience_s = patience_s
        self._url = url
        self._consumers = dict(consumers)
        self._schema = schema
        self._progress = progress
        self._sql = load("tallymark.store.postgres", "resend.sql", schema)

    def resend(
        self,
        wanted: Sequence[Wanted],
        *,
        who: str,
        reason: str,
        any_order: bool,
        dry_run: bool,
        forgotten: bool = False,
    ) -> Resent:
        """All in one transaction, in the order in which they were written: either all are sent again, or none.

        Of one message there may be several findings, one for each consumer that lacks it; it is sent again once.
        """
        unique, lacked_by, strange = _gathered(wanted)
        done = Resent(refused=dict.fromkeys(strange, "it is not in this outbox"))
        with self._open(self._url, Role.PRODUCER) as connection:
            connection.execute(self._sql["lock"])
            self._progress("where they stand")
            known = self._known(connection, list(unique))
            if unique and not known:
                raise UsageError(
                    "none of these messages is of this outbox",
                    remedy="check --database, and that the findings are this system's",
                )
            resent = {
                id_: (number, at)
                for id_, number, at in connection.execute(self._sql["resent"], {"ids": list(unique)})
            }
            missed = self._missed(connection, list(unique))
            first = dict(connection.execute(self._sql["first_rows"], {"ids": list(unique)}))
            order = sorted(unique, key=lambda id_: first.get(id_, 0))
            asked = [known[id_] for id_ in order if id_ in known]
            for id_, consumers in lacked_by.items():
                # Asked for by its id alone: who lacks it is known by what was found.
                consumers.update(consumers or (missed[id_][1] if id_ in missed else [""]))
            counted_on = self._counted_on(connection, list(unique))
            others = Meanwhile(connection, self._schema)
            standings = self._standings(connection, asked, first, missed, lacked_by, others)
            readers = self._readers(connection) if standings is None else {}
            going = []
            # Who would come too late behind what is written meanwhile, by topic and key.
            minded: dict[tuple[str, bytes], uuid.UUID] = {}
            # From the last one on: behind one that stays away, an earlier one of its key would come too late.
            staying: dict[tuple[str, bytes], uuid.UUID] = {}
            for id_ in reversed(order):
                each, status = unique[id_], known.get(id_)
                if each.seen_at is None:
                    each = replace(each, seen_at=missed[id_][0] if id_ in missed else None)
                number, at = resent.get(str(id_), (0, None))
                stand = None if standings is None else standings.get(id_, [])
                why = refusal(
                    each,
                    status.state if status else None,
                    at,
                    stand,
                    any_order=any_order,
                    forgotten=forgotten,
                    missed_by=lacked_by[id_].union(missed[id_][1] if id_ in missed else (), counted_on[id_]),
                    read_by=readers.get(status.topic, ()) if status else (),
                )
                key = None if status is None or status.key is None else (status.topic, status.key)
                # Who would apply it late, and minds.
                harmed = not any_order and any(each.minds for each in stand or ())
                if why is None and harmed and key in staying:
                    why = f"a later message of its key is not sent again: {staying[key]}"
                if why is None and status is not None:
                    going.append((each, id_, number + 1))
                    if harmed and key is not None:
                        minded.setdefault(key, id_)
                    continue
                done.refused[each.id] = why or "it is not in this outbox"
                if key is not None and status is not None and status.state is not MessageState.DISCARDED:
                    staying.setdefault(key, id_)
            for each, id_, number in reversed(going):
                if not len(done.resent) % _TOLD_EVERY:
                    self._progress(f"{len(done.resent):,} of {len(going):,} written again")
                done.resent.append(self._again(connection, each, id_, number, who=who, reason=reason))
            if minded and not dry_run:
                self._progress("what others have written of their keys meanwhile")
                others.refuse(minded, done.resent, patience_s=self._patience_s)
            self._record(connection, done.resent, who)
            if dry_run:
                connection.rollback()
        return done

    def _again(
        self, connection: Connection, wanted: Wanted, id_: uuid.UUID, number: int, *, who: str, reason: str
    ) -> dict[str, object]:
        original = connection.execute(self._sql["contents"], {"id": id_}).fetchone()
        if original is None:
            raise AssertionError("its status was read in this transaction")
        copied, of_position, headers = original
        added = connection.execute(
            self._sql["add"], {"position": copied, "headers": as_resend(headers, number, of_position)}
        ).fetchone()
        position = added[0] if added else None
        made = {"id": str(id_), "resend": number, "position": position, "of_position": of_position}
        told = {"verdict": wanted.verdict, "consumer": wanted.consumer}
        details = json.dumps({**made, **told})
        connection.execute(
            self._sql["audit"], {"who": who, "subject": str(id_), "reason": reason, "details": details}
        )
        return {**made, **told}

    def _counted_on(self, connection: Connection, ids: Sequence[uuid.UUID]) -> dict[uuid.UUID, set[str]]:
        """Of those that are missed by all: whom the tally knew to read them."""
        found: dict[uuid.UUID, set[str]] = defaultdict(set)
        for id_, consumer in connection.execute(
            self._sql["counted_on"], {"ids": [str(id_) for id_ in ids], **_MENDABLE}
        ):
            found[uuid.UUID(id_)].add(consumer)
        return found

    def _readers(self, connection: Connection) -> dict[str, set[str]]:
        """Whom the last tally knew, by topic."""
        found: dict[str, set[str]] = defaultdict(set)
        for topic, consumer in connection.execute(self._sql["readers"]):
            found[topic].add(consumer)
        return found

    def _record(self, connection: Connection, made: Sequence[Mapping[str, object]], who: str) -> None:
        names = {"position": "positions", "id": "ids", "resend": "numbers", "of_position": "of_positions"}
        names |= {"verdict": "verdicts", "consumer": "consumers"}
        columns = {plural: [row[name] for row in made] for name, plural in names.items()}
        connection.execute(self._sql["record"], {**columns, "who": who})

    def _known(self, connection: Connection, ids: Sequence[uuid.UUID]) -> dict[uuid.UUID, MessageStatus]:
        writer = PostgresWriter(self._schema)
        found = {id_: writer.status(connection, id_) for id_ in ids}
        return {id_: status for id_, status in found.items() if status is not None}

    def _missed(self, connection: Connection, ids: Sequence[uuid.UUID]) -> dict[uuid.UUID, _Missed]:
        """Of those that a tally misses: when it last did, and at which consumers."""
        rows = connection.execute(self._sql["seen"], {"ids": [str(id_) for id_ in ids], **_MENDABLE})
        return {uuid.UUID(id_): (seen_at, consumers) for id_, seen_at, consumers in rows}

    def _standings(
        self,
        connection: Connection,
        messages: Sequence[MessageStatus],
        first: Mapping[uuid.UUID, int],
        missed: Mapping[uuid.UUID, _Missed],
        lacked_by: Mapping[uuid.UUID, set[str]],
        others: Meanwhile,
    ) -> dict[uuid.UUID, list[Standing]] | None:
        if not self._consumers:
            return None
        found: dict[uuid.UUID, list[Standing]] = {each.id: [] for each in messages}
        sent = [each for each in messages if each.state is MessageState.SENT]
        parameters: dict[str, Any] = {
            "ids": [each.id for each in sent],
            "topics": [each.topic for each in sent],
            "keys": [each.key for each in sent],
            "positions": [first.get(each.id, each.position) for each in sent],
        }
        connection.execute(self._sql["lock_keys"], parameters)
        wanted = [(id_, consumer) for id_, consumers in lacked_by.items() for consumer in consumers]
        parameters |= {
            **_MENDABLE,
            "enough": _ENOUGH,
            "wanted_ids": [id_ for id_, _ in wanted],
            "wanted_by": [consumer for _, consumer in wanted],
        }
        self._progress("later messages of their keys, in the outbox")
        others.begin()
        later = connection.execute(self._sql["later"], parameters).fetchall()
        others.known += [row[0] for row in later]
        going = self._on_their_way(connection, [row[0] for row in later if row[5] and row[6]])
        lacked = [(row[0], consumer) for row in later if row[0] not in going for consumer in row[5]]
        stood = {row[0]: row[1:] for row in connection.execute(self._sql["stood"], parameters)}
        places = [stood.get(each.id, (None, None)) for each in sent]
        # From here on inboxes are asked, and know them by the ids that they are saved under.
        parameters |= {
            "partitions": [partition for partition, _ in places],
            "offsets": [offset for _, offset in places],
            **{f"later_{name}": [row[at] for row in later] for at, name in enumerate(_LATER)},
            "ids": _saved(each.id for each in sent),
            "later_ids": _saved(row[0] for row in later),
            "lacked_ids": _saved(id_ for id_, _ in lacked),
            "lacked_by": [consumer for _, consumer in lacked],
        }
        with others.asking():
            for name, url in self._consumers.items():
                self._progress(f"what {name} has applied of their keys")
                with self._open(url, Role.CONSUMER) as looking:
                    for at, consumer, *rest in looking.execute(
                        self._sql["standing"], {**parameters, "database": name}
                    ):
                        standing, id_ = replace(Standing(consumer, *rest), database=name), sent[at].id
                        if id_ in missed and not {"", *standing.names} & set(missed[id_][1]):
                            # Others miss it; here it has yet to come from the log, before whatever is later.
                            standing = replace(standing, later_comes=False)
                        found[id_].append(standing)
        return found

    def _on_their_way(self, connection: Connection, ids: Sequence[uuid.UUID]) -> set[uuid.UUID]:
        """Those that were sent again and have not left the outbox: whoever misses them has looked too early."""
        known = self._known(connection, ids)
        return {id_ for id_, status in known.items() if status.state in _COMING}

    @contextmanager
    def _open(self, url: str, role: Role) -> Iterator[Connection]:
        with transaction(url, application="tallymark tally resend") as connection:
            require_schema(connection, self._schema, role)
            try:
                yield connection
            except psycopg.errors.QueryCanceled as error:
                raise Problem(
                    "to look for later messages of its key takes too long",
                    remedy="`tallymark tally resend` takes the time that it needs",
                ) from error


def _saved(ids: Iterable[uuid.UUID]) -> list[uuid.UUID]:
    return [saved_id(str(each)) for each in ids]


def _gathered(
    wanted: Sequence[Wanted],
) -> tuple[dict[uuid.UUID, Wanted], dict[uuid.UUID, set[str]], list[str]]:
    """Each message once, last seen when any of its findings was; who lacks it by those; and names that are no ids."""
    unique: dict[uuid.UUID, Wanted] = {}
    lacked_by: dict[uuid.UUID, set[str]] = {}
    strange = []
    for each in wanted:
        try:
            id_ = uuid.UUID(each.id)
        except ValueError:
            strange.append(each.id)
            continue
        before = unique.setdefault(id_, each)
        if before.seen_at is not None and each.seen_at is not None and before.seen_at < each.seen_at:
            unique[id_] = replace(before, seen_at=each.seen_at)
        lacked_by.setdefault(id_, set()).update([each.consumer] if each.verdict else [])
    return unique, lacked_by, strange


def as_resend(headers: str, number: int, origin: int) -> str:
    """A row's headers with the resend's number and its original's position before them; order and repeated names stay.

    The position is what versions go by: the new row's own would make the oldest message the newest.
    """
    inner = headers.strip()[1:].lstrip()
    separator = "" if inner.startswith("}") else ","
    return f'{{"{TM_RESEND}":"{number}","{TM_ORIGIN}":"{origin}"{separator}{inner}'


def wanted_of(rows: Sequence[Mapping[str, object]]) -> list[Wanted]:
    """Findings as `tally run --json` and `tally list --json` write them; by position, as they were written."""
    found = []
    for row in rows:
        if not isinstance(row, Mapping) or not isinstance(row.get("id"), str) or "verdict" not in row:
            raise UsageError(
                "that is not a list of findings",
                remedy="give what `tallymark tally run --json` or `tally list --json` wrote",
            )
        position = row.get("position")
        id_, seen = str(row["id"]), seen_at(row)
        wanted = Wanted(id_, str(row["verdict"]), str(row.get("consumer") or ""), seen)
        found.append((position if isinstance(position, int) else sys.maxsize, wanted))
    return [wanted for _, wanted in sorted(found, key=itemgetter(0))]
