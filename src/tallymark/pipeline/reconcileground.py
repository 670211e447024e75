"""What a tally stands on: an outbox, its topics and consumers, how far each has come, and which positions to look at."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Set
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

from tallymark.errors import Problem, UsageError
from tallymark.lifecycle import ParkedState
from tallymark.pipeline.reconcileports import Stations
from tallymark.store.postgres.tally import ConsumerView, ProducerView
from tallymark.tally.records import ParkedRow, Place
from tallymark.tally.trace import LATE_AFTER
from tallymark.tally.windows import ROWS, Window

# Clocks differ: how much earlier than it was added a message may seem to have been logged.
SKEW = timedelta(minutes=10)


@dataclass(frozen=True, slots=True)
class TallyConfig:
    """What a run looks at, and what it does with it."""

    since: datetime | None = None
    until: datetime | None = None
    topics: tuple[str, ...] = ()
    consumers: tuple[str, ...] = ()
    # Look at certified windows too.
    everything: bool = False
    keep: bool = True
    window_rows: int | None = None
    late_after: timedelta = LATE_AFTER
    limit: int = 1000
    who: str = "tallymark"
    # Queries that run side by side on each database.
    tasks: int = 4

    @property
    def filtered(self) -> bool:
        return bool(self.since or self.until or self.topics or self.consumers)


@dataclass(slots=True)
class Ground:
    """One outbox as a run sees it. Read in this order, field by field."""

    name: str
    view: ProducerView
    topics: list[str]
    partitions: dict[str, int]
    # After so many seconds retention may drop a message of a topic.
    expires_after_s: dict[str, float]
    starts: dict[Place, int]
    ends: dict[Place, int]
    consumers: dict[str, ConsumerView]
    # Positions from `first` up to, and without, `upto`, in windows of so many rows; the log from `read_from` on.
    first: int
    upto: int
    rows: int
    read_from: dict[Place, int]
    # What left its batch, as it stood before the log's ends: what was sent by then lies below them.
    all_parked: list[ParkedRow] = field(default_factory=list)
    # What its messages name as their source (ce_source); None where nobody else writes into its topics.
    sources: frozenset[str] | None = None
    # Partitions that are written further than they can be read: a transaction is open there, and what others have
    # committed behind its first record is out of sight.
    unstable: frozenset[Place] = frozenset()
    # Consumers that nobody can follow.
    left_out: list[str] = field(default_factory=list)
    # Consumers of these topics that the run was not asked about: what they have was in the log all the same.
    unasked: list[ConsumerView] = field(default_factory=list)
    # As which certificates may speak of consumers that were retired, or read none of these topics any more.
    retired: frozenset[str] = frozenset()
    # Where all this is of copies: when the oldest one of a database was made, and that of the log.
    copied_at: datetime | None = None
    log_copied_at: datetime | None = None
    # … and from which position on the outbox's may lack what the others have, for they were made later.
    beyond: int | None = None
    # Of windows that are certified, by number: between which offsets their messages stood then.
    certified: dict[int, Mapping[str, tuple[int, int]]] = field(default_factory=dict)
    # … and of those that are passed by: the last of their offsets in each partition, and whose that is.
    anchors: dict[Place, tuple[int, Window]] = field(default_factory=dict)
    # Topics whose log keeps the last message of each key only.
    compacted: frozenset[str] = frozenset()
    # What an operator should know.
    remarks: list[str] = field(default_factory=list)
    # How many positions of a list lie in each window: lists are long, and windows many.
    counted: dict[tuple[str, str], Counter[int]] = field(default_factory=dict)
    parked_counted: dict[int, Counter[str]] | None = None

    @property
    def looked_at(self) -> datetime:
        """Who looked after that may know better. Ages go by `view.at`: a log in which nothing is logged stays old."""
        return self.view.at if self.log_copied_at is None else min(self.view.at, self.log_copied_at)

    @property
    def sourceless(self) -> bool:
        """Whether records without a source are not the outbox's: a copy of one of ours may be among them all the same."""
        return self.sources is not None and "" not in self.sources

    @property
    def goes_on(self) -> bool:
        """Whether it begins behind windows that are certified, and reads nothing of them again."""
        return self.first > self.lowest and any(
            self.read_from[place] > at for place, at in self.starts.items()
        )

    @property
    def since(self) -> dict[Place, int]:
        """From which offsets on inboxes are read; empty where all of them is."""
        return self.read_from if self.goes_on else {}

    @property
    def parked(self) -> list[ParkedRow]:
        """What left its batch, of the positions that this run looks at."""
        return [row for row in self.all_parked if row.position >= self.first]

    def parked_in(self, number: int) -> Counter[str]:
        """What left its batch, of a window, by state."""
        if self.parked_counted is None:
            self.parked_counted = {}
            for row in self.all_parked:
                self.parked_counted.setdefault(row.position // self.rows, Counter())[row.state] += 1
        return self.parked_counted.get(number, Counter())

    def unfinished(self, label: str, which: str, number: int) -> int:
        """How many positions of one of a consumer's lists lie in a window."""
        if (label, which) not in self.counted:
            positions = getattr(self.consumers[label], which)
            self.counted[label, which] = Counter(at // self.rows for at in positions)
        return self.counted[label, which][number]

    @property
    def unsent(self) -> set[int]:
        """Positions that left their batch and are not in the log."""
        return {row.position for row in self.all_parked if row.state != ParkedState.SENT}

    @property
    def lowest(self) -> int:
        """Where the lowest window begins that the outbox still has."""
        return self.view.outbox_from - self.view.outbox_from % self.rows

    def labels_in(self, database: str) -> dict[str, str]:
        """What the consumers of a database are called in this run, by their names there."""
        return {view.name: label for label, view in self.consumers.items() if view.database == database}

    def absent(self, known: Set[str]) -> set[str]:
        """Of those that earlier runs looked at, whom this one has not been given.

        A name that another database has, too, or had, goes by its database there.
        """
        labels = (
            label for view in self.consumers.values() for label in (view.name, f"{view.database}/{view.name}")
        )
        return {*known}.difference(labels, self.retired, self.left_out)

    def answerable(self, absent: Collection[str]) -> tuple[str, ...] | None:
        """At whom a run can see that something is over, where these are `absent`; None: at everybody."""
        return ("", *self.consumers) if absent or self.left_out else None


def outboxes_of(sources: Stations, config: TallyConfig) -> list[str]:
    """The outboxes that a run looks at: those that have sent something to the topics that it is asked for."""
    if not config.topics:
        return list(sources.outboxes)
    known = {name: set(sources.producer(name).view().topics) for name in sources.outboxes}
    if missing := sorted(set(config.topics).difference(*known.values())):
        here = sorted(set().union(*known.values()))
        raise UsageError(
            f"no relay has sent anything of {', '.join(known)} to topic {missing[0]}",
            remedy=f"topics of {', '.join(known)}: {', '.join(here) or 'none yet'}",
        )
    return [name for name, topics in known.items() if topics & set(config.topics)]


def look(sources: Stations, name: str, config: TallyConfig) -> Ground:
    """How far everybody has come: the relay and what it has parked, then the log's ends, then the consumers."""
    producer = sources.producer(name)
    view = producer.view()
    if sources.copied_at is not None:
        # Copies say nothing of what was after the oldest of them.
        view = replace(view, at=min(view.at, sources.copied_at))
    parked = producer.parked(view.outbox_from, view.frontier.last_position)
    topics = [each for each in sorted(view.topics) if not config.topics or each in config.topics]
    facts = sources.log.facts(topics)
    for topic in topics:
        if topic not in facts:
            raise Problem(
                f"topic {topic} of {name} is not in {sources.log.name}",
                remedy=f"archive it too: `tallymark pipeline archive --add-topics --topic {topic} …`"
                if sources.log.is_copy
                else "leave it out: `tallymark tally run --topic` the others",
            )
        if facts[topic].topic_id != view.topics[topic][0]:
            raise Problem(
                f"topic {topic} was deleted and made anew: the outbox speaks of another log",
                remedy=f"`tallymark topics accept {topic}` where that was meant",
            )
    # Before the stable ends: what was marked as sent by now is below this end, and above the other where it is hidden.
    written = sources.log.written_ends(topics)
    bounds = sources.log.bounds(topics)
    starts = {place: start for place, (start, _) in bounds.items()}
    beyond = view.frontier.visible + 1 if sources.log.is_copy else None
    readers, retired = _consumers(sources, topics, config)
    remarks: list[str] = []
    for label, each in readers.items():
        readers[label], gone = _of_this_log(each, {topic: fact.topic_id for topic, fact in facts.items()})
        remarks += [
            f"{label} stands in the log of {topic}/{partition} that was deleted with its topic, and has read nothing of"
            f" the new one: `tallymark inbox seek` takes it there"
            for topic, partition in gone
        ]
    consumers = {
        label: view for label, view in readers.items() if not config.consumers or label in config.consumers
    }
    return Ground(
        name=name,
        view=view,
        topics=topics,
        partitions={topic: count for topic, (_, count) in view.topics.items()},
        expires_after_s={
            topic: each.expires_after_s for topic, each in facts.items() if each.expires_after_s is not None
        },
        starts=starts,
        ends={place: end for place, (_, end) in bounds.items()},
        consumers={label: view for label, view in consumers.items() if not view.placeless},
        left_out=sorted(label for label, view in consumers.items() if view.placeless),
        unasked=[view for label, view in readers.items() if label not in consumers],
        retired=retired,
        copied_at=sources.copied_at,
        log_copied_at=sources.log.copied_at,
        beyond=beyond,
        first=0,
        upto=beyond or view.frontier.last_position + 1,
        rows=config.window_rows or ROWS,
        read_from=dict(starts),
        all_parked=parked,
        compacted=frozenset(topic for topic, each in facts.items() if each.compacted),
        remarks=remarks,
        unstable=frozenset(place for place, (_, end) in bounds.items() if written.get(place, end) > end),
    )


def same_topics(sources: Stations, ground: Ground) -> None:
    """Refuse what was read of a topic that was deleted and made anew meanwhile: part of it may be of the new one."""
    facts = sources.log.facts(ground.topics)
    for topic in ground.topics:
        if topic not in facts or facts[topic].topic_id != ground.view.topics[topic][0]:
            raise Problem(
                f"topic {topic} was deleted, or made anew, while it was read: nothing of this run counts",
                remedy=f"`tallymark topics accept {topic}` where that was meant; then run it again",
            )


def _of_this_log(view: ConsumerView, ids: Mapping[str, str]) -> tuple[ConsumerView, list[Place]]:
    """A consumer, and where it stands in a log that is no more: of the one that is there today it has read nothing."""
    gone = [
        place
        for place, known in sorted(view.topic_ids.items())
        if known and known != ids.get(place[0], known)
    ]
    none = dict.fromkeys(gone, 0)
    return replace(view, next_offsets=view.next_offsets | none, starts=view.starts | none), gone


def _consumers(
    sources: Stations, topics: Iterable[str], config: TallyConfig
) -> tuple[dict[str, ConsumerView], frozenset[str]]:
    """Who reads these topics: by name, or by database and name where two databases have one of that name.

    And as whom certificates may speak of those that do so no more.
    """
    inboxes = sources.inboxes()
    # Before it is asked who was retired: whoever is meanwhile is still looked at.
    found = [view for inbox in inboxes.values() for view in inbox.views()]
    there = {(view.database, view.name) for view in found}
    gone = {(database, name) for database, inbox in inboxes.items() for name in inbox.retired()} - there
    # A name that was told apart by its database stays so when the other one is retired.
    names = [name for _, name in (*there, *gone)]
    labelled = {
        view.name if names.count(view.name) == 1 else f"{view.database}/{view.name}": view for view in found
    }
    if unknown := sorted(set(config.consumers) - set(labelled)):
        raise UsageError(
            f"there is no consumer {unknown[0]}",
            remedy=f"known: {', '.join(sorted(labelled)) or 'none in the databases that were given'}",
        )
    read = set(topics)
    readers = {label: view for label, view in labelled.items() if view.topics & read}
    retired = {label for database, name in gone for label in (name, f"{database}/{name}")}
    return readers, frozenset((retired | labelled.keys()) - readers.keys())


def place_text(place: Place) -> str:
    """A partition as certificates write it."""
    return f"{place[0]}/{place[1]}"


def place_of(text: str) -> Place:
    """A partition as certificates write it, read."""
    topic, _, partition = text.rpartition("/")
    return topic, int(partition)
