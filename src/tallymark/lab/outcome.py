"""What a demo came to, as data: the one thing that its exit code, its JSON and its last screen are made from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from tallymark.lab.comparison import Balances, Compared


@dataclass(frozen=True, slots=True)
class Struck:
    """A fault that was made, and what came of it."""

    name: str
    title: str
    result: str
    seconds: float


@dataclass(frozen=True, slots=True)
class Certified:
    """The certificate of the demo's one window."""

    number: int
    first: int
    last: int
    written: int
    logged: int
    # By consumer.
    applied: dict[str, int]
    hash: str


@dataclass(frozen=True, slots=True)
class Tallied:
    """What `tallymark tally run` said."""

    messages: int
    missing: int
    doubled: int
    reordered: int
    findings: int
    certificate: Certified | None

    @property
    def clean(self) -> bool:
        return not self.findings


@dataclass(frozen=True, slots=True)
class Outcome:
    """Everything that was found."""

    messages: int
    seed: int
    # By station: log, ledger, report.
    stations: dict[str, Compared]
    balances: dict[str, Balances]
    naive: Compared
    naive_balances: Balances
    tally: Tallied
    faults: Sequence[Struck] = ()
    survivor: str = ""
    seconds: float = 0.0
    home: str = ""
    try_next: Sequence[tuple[str, str]] = field(default=())

    @property
    def missing(self) -> int:
        return max(self.tally.missing, *(each.missing for each in self.stations.values()))

    @property
    def doubled(self) -> int:
        return max(self.tally.doubled, *(each.doubled for each in self.stations.values()))

    @property
    def reordered(self) -> int:
        return max(self.tally.reordered, *(each.reordered for each in self.stations.values()))

    @property
    def balances_equal(self) -> bool:
        return all(each.equal for each in self.balances.values())

    @property
    def clean(self) -> bool:
        """Nothing is missing, twice, out of order or there without reason, by both checks, and it is certified."""
        return (
            all(each.equal and each.wanted == self.messages for each in self.stations.values())
            and self.balances_equal
            and self.tally.clean
            and self.tally.certificate is not None
        )

    def as_json(self) -> dict[str, Any]:
        return {
            "messages": self.messages,
            "seed": self.seed,
            "faults": [
                {"name": each.name, "what": each.title, "result": each.result, "seconds": each.seconds}
                for each in self.faults
            ],
            "missing": self.missing,
            "doubled": self.doubled,
            "reordered": self.reordered,
            "balances_equal": self.balances_equal,
            "naive": {
                "missing": self.naive.missing,
                "doubled": self.naive.doubled,
                "reordered": self.naive.reordered,
                # In cents, over all accounts.
                "balances_off": self.naive_balances.cents_off,
                "accounts_off": self.naive_balances.accounts_off,
            },
            "certificate": None if self.tally.certificate is None else self._certificate(),
            "clean": self.clean,
            "stations": {
                name: {
                    "found": each.found,
                    "missing": each.missing,
                    "doubled": each.doubled,
                    "reordered": each.reordered,
                    "phantoms": each.phantoms,
                }
                for name, each in self.stations.items()
            },
            "tally": {
                "messages": self.tally.messages,
                "missing": self.tally.missing,
                "doubled": self.tally.doubled,
                "reordered": self.tally.reordered,
                "findings": self.tally.findings,
            },
            "survivor": self.survivor or None,
            "seconds": self.seconds,
            "home": self.home,
            "try_next": [command for command, _ in self.try_next],
        }

    def _certificate(self) -> dict[str, Any]:
        found = self.tally.certificate
        assert found is not None  # noqa: S101 - asked before
        return {
            "number": found.number,
            "positions": [found.first, found.last],
            "written": found.written,
            "logged": found.logged,
            "applied": found.applied,
            "hash": found.hash,
        }
