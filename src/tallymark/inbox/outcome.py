"""What keeping a batch came to: what was kept, applied, put off and set aside, and how far the positions were moved."""

from __future__ import annotations

from dataclasses import dataclass, field

from tallymark.inbox.ports import Failed, Place


@dataclass(slots=True)
class Outcome:
    """What keeping a batch came to."""

    kept: int = 0
    repeated: int = 0
    applied: int = 0
    queued: int = 0
    quarantined: int = 0
    failures: list[Failed] = field(default_factory=list)
    reruns: int = 0
    fenced: set[Place] = field(default_factory=set)
    ends: dict[Place, int] = field(default_factory=dict)

    @property
    def failed(self) -> int:
        return len(self.failures)

    @property
    def dead(self) -> int:
        return sum(each.again_in_s is None for each in self.failures)
