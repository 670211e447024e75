"""The two banks' traffic: steady while things are broken, as fast as it goes at the end, and exactly as much as asked."""

from __future__ import annotations

from tallymark.lab.services import must
from tallymark.lab.stage import Stage

_BANKS = ("bank", "naive-bank")
# This share of all transfers is spread over so many seconds of faults. Where a slow machine needs longer, a little is
# added at a time, at a slower pace, and some of it is reserved for each fault that is still to come: none may strike an
# idle system. The rest comes at the end.
_STEADY_SHARE = 0.6
_STEADY_S = 50.0
_STEP_SHARE = 0.01
_SLOWER = 0.3
_MOST_SHARE = 0.97
_RESERVED = 0.05
_MOST_PER_SECOND = 400.0
_LAST_S = 900.0


class Traffic:
    """Both banks take the same orders, at the same pace."""

    def __init__(self, stage: Stage) -> None:
        self._stage = stage
        self._messages = stage.wish.messages
        self._per_second = min(_MOST_PER_SECOND, self._messages * _STEADY_SHARE / _STEADY_S)
        self._share = _STEADY_SHARE
        self._to_come = 0

    def begin(self, faults: int) -> None:
        self._to_come = faults
        for name in _BANKS:
            self._start(name, self._per_second)

    def next_fault(self) -> None:
        self._to_come -= 1
        self.keep_going()

    def keep_going(self) -> None:
        """Whoever has run out of orders gets a few more."""
        idle = [name for name in _BANKS if self._stage.crew[name].has_ended_well()]
        if idle and self._share + _STEP_SHARE <= _MOST_SHARE - _RESERVED * self._to_come:
            self._share += _STEP_SHARE
            for name in idle:
                self._start(name, self._per_second * _SLOWER)

    def finish(self) -> None:
        """All the rest, as fast as it goes."""
        crew = self._stage.crew
        for name in _BANKS:
            crew[name].stop()
        for name in _BANKS:
            crew[name].start("--until", str(self._messages))
        for name in _BANKS:
            must(crew[name].has_ended_well, within=_LAST_S, what=f"{name} takes its last orders", crew=crew)

    def _start(self, name: str, per_second: float) -> None:
        until = int(self._messages * self._share)
        self._stage.crew[name].start("--until", str(until), "--per-second", f"{per_second:.3f}")
