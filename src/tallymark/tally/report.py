"""What a tally came to: counts by verdict and stage, the worst windows, the findings. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from tallymark.lifecycle import Stage, Verdict
from tallymark.tally.findings import Finding

_MISSING = (Verdict.LOST_IN_RELAY, Verdict.LOST_IN_LOG, Verdict.LOST_IN_INBOX)
_DOUBLED = (Verdict.DOUBLED_IN_LOG, Verdict.APPLIED_TWICE)


@dataclass(slots=True)
class TallyReport:
    """Of one run. Filled as it goes; `findings` holds the first `limit`, the counts hold all."""

    limit: int = 1000
    windows: int = 0
    differing: int = 0
    messages: int = 0
    by_verdict: Counter[Verdict] = field(default_factory=Counter)
    by_stage: Counter[tuple[Verdict, Stage, str]] = field(default_factory=Counter)
    by_window: Counter[tuple[str, int]] = field(default_factory=Counter)
    findings: list[Finding] = field(default_factory=list)
    found: int = 0
    certified: int = 0
    # Not closed yet: outbox, first and last position, whom it waits for.
    still_open: list[tuple[str, int, int, str]] = field(default_factory=list)
    # Closed, and not certified: outbox, first and last position, why.
    uncertified: list[tuple[str, int, int, str]] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)
    # Rows per window, for naming them.
    rows: int = 1

    def judged(self, verdict: Verdict, count: int = 1) -> None:
        self.messages += count
        self.by_verdict[verdict] += count

    def add(self, outbox_id: str, finding: Finding) -> None:
        self.found += 1
        self.by_stage[finding.verdict, finding.stage, finding.consumer] += 1
        if finding.position is not None:
            self.by_window[outbox_id, finding.position // self.rows] += 1
        if len(self.findings) < self.limit:
            self.findings.append(finding)

    @property
    def ordered(self) -> list[Finding]:
        """In the order of the outbox: Spark gives them as its tasks end."""

        def place(finding: Finding) -> tuple[bool, int, str, str]:
            at = finding.position
            return at is None, at or 0, finding.id, finding.consumer

        return sorted(self.findings, key=place)

    @property
    def clean(self) -> bool:
        return self.found == 0

    def as_json(self) -> dict[str, Any]:
        return {
            "windows": self.windows,
            "differing": self.differing,
            "open": len(self.still_open),
            "waiting": _windows(self.still_open),
            "certified": self.certified,
            "uncertified": _windows(self.uncertified),
            "messages": self.messages,
            "by_verdict": {verdict.value: n for verdict, n in sorted(self.by_verdict.items()) if n},
            "by_stage": [
                {"verdict": verdict.value, "stage": stage.value, "consumer": consumer or None, "count": n}
                for (verdict, stage, consumer), n in sorted(self.by_stage.items())
            ],
            "missing": self._count(_MISSING),
            "doubled": self._count(_DOUBLED),
            "reordered": self._count((Verdict.REORDERED,)),
            "worst_windows": [
                {"outbox": outbox, "window": [at * self.rows, (at + 1) * self.rows], "findings": n}
                for (outbox, at), n in sorted(self.by_window.items(), key=lambda each: (-each[1], each[0]))[
                    :10
                ]
            ],
            "findings": [finding.as_json() for finding in self.ordered],
            "truncated": self.found > len(self.findings),
            "remarks": list(self.remarks),
        }

    def _count(self, verdicts: tuple[Verdict, ...]) -> int:
        return sum(n for (verdict, _, _), n in self.by_stage.items() if verdict in verdicts)


def _windows(said: Sequence[tuple[str, int, int, str]]) -> list[dict[str, Any]]:
    return [{"outbox": outbox, "window": [first, last + 1], "why": why} for outbox, first, last, why in said]
