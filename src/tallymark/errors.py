"""The one error tree. What a user can meet is here, by meaning; each carries its way out.

    TallymarkError
    ├── UsageError            wrong input: arguments, values, settings        exit 2
    │   ├── SettingsError     tallymark.toml, environment or flags
    │   ├── NotInTransaction  adding outside a transaction
    │   └── TransactionEnded  a handler ended the transaction that it works in
    ├── Unreachable           a dependency is not there (Kafka, PostgreSQL, Java, the network)   exit 3
    │   └── AccessDenied      it is there, and refuses us
    └── Problem               we looked, and something is wrong               exit 1
        ├── SchemaMismatch    the schema is missing, too old or too new
        ├── Stale             a write named an owner, an epoch or a version that is no longer so
        ├── OutcomeUnknown    a send or a commit timed out: neither done nor failed
        └── Inconsistent      two records that must agree do not: stop, name it, never paper over

`str(error)` is what a user reads: what was wrong and where. `error.remedy` says what to do. Neither ever
holds a secret.
"""

from __future__ import annotations

EXIT_DONE = 0
EXIT_PROBLEM = 1
EXIT_USAGE = 2
EXIT_UNREACHABLE = 3


class TallymarkError(Exception):
    """Root of all our errors."""

    exit_code = EXIT_PROBLEM

    def __init__(self, what: str, *, remedy: str = "") -> None:
        super().__init__(what)
        self.remedy = remedy
        if remedy:
            self.add_note(remedy)  # so that a traceback in someone's own program says it too

    @property
    def sentence(self) -> str:
        """What was wrong and what to do, in at most two lines."""
        return f"{self}\n{self.remedy}" if self.remedy else str(self)


class UsageError(TallymarkError):
    """The input is wrong; nothing was done."""

    exit_code = EXIT_USAGE


class SettingsError(UsageError):
    """A setting is unknown, misspelt or of the wrong type."""


class NotInTransaction(UsageError):
    """A message was added outside a transaction, where it could not share the fate of the business data."""


class TransactionEnded(UsageError):
    """A handler ended the transaction that it works in: what it wrote has no mark, or is gone with the others'."""


class Unreachable(TallymarkError):
    """A dependency is not there."""

    exit_code = EXIT_UNREACHABLE


class AccessDenied(Unreachable):
    """A dependency is there and refuses us: wrong password, missing right."""


class Problem(TallymarkError):
    """We looked, and something is wrong."""


class SchemaMismatch(Problem):
    """The database's schema is missing, or of a version that this code cannot run on."""


class Stale(Problem):
    """A write named an owner, an epoch or a version that is no longer so; it changed nothing."""


class OutcomeUnknown(Problem):
    """A send or a commit timed out. It is neither done nor failed until someone looks."""


class Inconsistent(Problem):
    """Two records that must agree do not. The part concerned stops and says what was found."""


def said(error: BaseException) -> str:
    """Class and message of anybody's error, whatever asking it for its message raises."""
    text = text_of(error)
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def text_of(error: object) -> str:
    """What it says of itself; nothing where it cannot: an application's own error must not stop what reports it."""
    try:
        return str(error)
    except Exception:  # noqa: BLE001 - its class is still known
        return ""
