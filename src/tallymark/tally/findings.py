"""A finding: one message, one verdict that somebody has to look at, and the evidence in a sentence. Pure.

What a run finds is merged with what is kept: a finding is seen first and last, and is over when a later run over its
window no longer makes it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from tallymark.lifecycle import Stage, Verdict
from tallymark.tally.verdicts import Marks


@dataclass(frozen=True, slots=True)
class Finding:
    """What is kept of it, and shown."""

    id: str
    key: bytes | None
    topic: str
    partition: int | None
    offset: int | None
    position: int | None
    # "" where it holds for all consumers.
    consumer: str
    stage: Stage
    verdict: Verdict
    evidence: str

    def as_json(self) -> dict[str, Any]:
        return {
            "id": self.id,
            "key": None if self.key is None else self.key.decode("utf-8", "backslashreplace"),
            "topic": self.topic,
            "partition": self.partition,
            "offset": self.offset,
            "position": self.position,
            "consumer": self.consumer or None,
            "stage": self.stage.value,
            "verdict": self.verdict.value,
            "evidence": self.evidence,
        }


@dataclass(frozen=True, slots=True)
class KeptFinding:
    """A finding, and when it was seen."""

    finding: Finding
    run: str
    first_seen: datetime
    last_seen: datetime
    over_at: datetime | None

    def as_json(self) -> dict[str, Any]:
        return {
            **self.finding.as_json(),
            "run": self.run,
            "first_seen": self.first_seen.isoformat(),
            "last_seen": self.last_seen.isoformat(),
            "over_at": self.over_at.isoformat() if self.over_at else None,
        }


@dataclass(frozen=True, slots=True)
class Scope:
    """What a run looked at: only findings in it can be over."""

    first: int
    last: int
    topics: Sequence[str] | None = None
    consumers: Sequence[str] | None = None
    # All of the log and all consumers.
    whole: bool = False
    # All that was to be sent later: it has no position yet.
    delayed: bool = False
    # What lies below is dropped from the outbox: nobody will ever know more of it.
    lowest: int = 0

    def covers(self, finding: Finding) -> bool:
        """Whether a run over this would find it again, if it still were so; or no run ever will."""
        if finding.position is not None and finding.position < self.lowest:
            return True
        if self.topics is not None and finding.topic not in self.topics:
            return False
        if self.consumers is not None:
            if finding.consumer not in self.consumers:
                return False
            if not finding.consumer and finding.stage is Stage.INBOX:
                # Only an inbox told it, perhaps that of a consumer who was not asked.
                return False
        if finding.position is None:
            # A foreign hand's: only where all was looked at.
            return self.whole or (self.delayed and finding.verdict is Verdict.LATE)
        return self.first <= finding.position <= self.last


def merged(
    before: Iterable[KeptFinding], found: Iterable[Finding], scope: Scope, *, run: str, at: datetime
) -> list[KeptFinding]:
    """What is kept after a run: one row for each message, verdict and consumer.

    Of two runs the one that looked later has the last word, whichever ends last.
    """
    kept = {(each.finding.id, each.finding.verdict, each.finding.consumer): each for each in before}
    seen = set()
    for finding in found:
        name = (finding.id, finding.verdict, finding.consumer)
        seen.add(name)
        before_it = kept.get(name)
        if before_it is None or max(before_it.last_seen, before_it.over_at or at) <= at:
            kept[name] = KeptFinding(
                finding, run, at if before_it is None else before_it.first_seen, at, None
            )
    for name, each in kept.items():
        if name in seen or each.over_at is not None or not scope.covers(each.finding):
            continue
        dropped = each.finding.position is not None and each.finding.position < scope.lowest
        if dropped or each.last_seen <= at:
            kept[name] = replace(each, over_at=at)
    return list(kept.values())


def overdue(id: str, topic: str, key: bytes | None, due_at: datetime) -> Finding:
    """It was to be sent later, and that is over."""
    said = f"it was due at {due_at.isoformat(timespec='seconds')}, and no relay has moved it into the outbox"
    return Finding(id, key, topic, None, None, None, "", Stage.RELAY, Verdict.LATE, said)


def evidence(verdict: Verdict, stage: Stage, marks: Marks, consumer: str = "") -> str:
    """Why this verdict: what was found where, in one sentence."""
    sentence = _SENTENCES.get((verdict, stage)) or _SENTENCES[verdict, None]
    if verdict is Verdict.LOST_IN_LOG:
        sentence = _GONE[marks.gone]
    elif verdict is Verdict.LATE and stage is Stage.RELAY and marks.gone == "hidden":
        sentence = (
            "a batch has sent it, and behind a transaction that is open in its partition nobody can read it"
        )
    elif verdict is Verdict.LOST_IN_INBOX:
        sentence += "; the log no longer reaches back to it" if marks.copies == 0 else ""
        sentence += "; its effect was made all the same" if marks.effects else ""
    return sentence.format(
        consumer=consumer or "a consumer",
        copies=marks.copies,
        rows=max(marks.rows, 1),
        effects=marks.effects,
    )


_GONE: Mapping[str, str] = {
    "": "a consumer has it from an offset that the log still covers, and the log lacks it: truncated",
    "deleted": "the log starts behind it, although retention would have kept it: records were deleted",
    "expired": "it expired in the log before {consumer} had read it",
    "remade": "its topic was deleted and made anew before {consumer} had read it",
}
_SENTENCES: Mapping[tuple[Verdict, Stage | None], str] = {
    (Verdict.LATE, Stage.RELAY): "no batch has sent it for longer than the limit",
    (Verdict.LATE, Stage.INBOX): "{consumer} has not come to it for longer than the limit",
    (Verdict.LATE, None): "{consumer} has had it in its queue for longer than the limit",
    (Verdict.PARKED, Stage.RELAY): "it left its batch, and waits for an operator",
    (Verdict.PARKED, None): "{consumer} has failed on it, and tries again",
    (Verdict.DEAD, None): "{consumer} has given it up: a dead letter",
    (Verdict.LOST_IN_RELAY, None): (
        "a sent batch covers it, the log reaches back to it and lacks it, and so does every inbox"
    ),
    (Verdict.LOST_IN_LOG, None): "",
    (Verdict.LOST_IN_INBOX, None): "the position of {consumer} has passed it, and its inbox lacks it",
    (Verdict.UNAPPLIED, None): "{consumer} keeps it, and has neither applied nor queued nor buried it",
    (Verdict.DOUBLED_IN_LOG, None): "{copies} committed copies for {rows} written",
    (Verdict.APPLIED_TWICE, None): "{consumer} has made its effect {effects} times",
    (Verdict.REORDERED, Stage.APPLY): "{consumer} has applied a later one of its key before it",
    (Verdict.REORDERED, None): "it stands in the log behind a higher position of its key",
    (Verdict.ALTERED, Stage.LOG): "a copy in the log differs from the outbox in key, value or position",
    (Verdict.ALTERED, None): "what {consumer} kept differs from what was written",
    (Verdict.PHANTOM, Stage.INBOX): "an inbox has it; neither the outbox nor the log does",
    (Verdict.PHANTOM, None): (
        "it claims a position of the outbox, which has no such row: deleted there, or never written"
    ),
}
