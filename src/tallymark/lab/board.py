"""What is known of a running demo, for whoever shows it: its phase, its faults, its counts."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

from tallymark.lab.outcome import Struck
from tallymark.lab.soundings import Counts, Sampler

Listener = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Picture:
    """One moment of it."""

    messages: int
    seed: int
    elapsed_s: float
    phase: str
    note: str
    # What is being broken right now.
    breaking: str
    faults: tuple[Struck, ...]
    counts: Counts
    rates: dict[str, float]


@dataclass
class Board:
    """Written by the demo, read by a display at any time. `listener` hears of each step as a line of text."""

    messages: int
    seed: int
    listener: Listener = lambda _line: None
    began: float = field(default_factory=time.monotonic)
    sampler: Sampler | None = None
    _phase: str = ""
    _note: str = ""
    _breaking: str = ""
    _faults: list[Struck] = field(default_factory=list)

    def phase(self, what: str) -> None:
        self._phase, self._note = what, ""
        self.listener(what)

    def note(self, what: str) -> None:
        self._note = what

    def told(self, what: str) -> None:
        """What a phase came to."""
        self._note = what
        self.listener(f"  {what}")

    def breaks(self, title: str) -> None:
        self._breaking, self._note = title, ""
        self.listener(f"⚡ {title}")

    def mended(self, struck: Struck) -> None:
        self._faults.append(struck)
        self._breaking = self._note = ""
        self.listener(f"✓ {struck.title}: {struck.result} ({struck.seconds:.1f} s)")

    @property
    def faults(self) -> list[Struck]:
        return list(self._faults)

    @property
    def elapsed_s(self) -> float:
        return time.monotonic() - self.began

    def picture(self) -> Picture:
        sampler = self.sampler
        return Picture(
            self.messages,
            self.seed,
            self.elapsed_s,
            self._phase,
            self._note,
            self._breaking,
            tuple(self._faults),
            sampler.counts if sampler else Counts(),
            sampler.rates if sampler else {},
        )
