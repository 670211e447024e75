"""An archive's manifests on the disk: numbered files that appear whole or not at all, and each number once.

    ARCHIVE/
      archive.lock                    held by the run at work; says who it is
      manifests/00000000000000000007.json     what the seventh commit did
      manifests/00000000000000000050.sum      all commits up to the fiftieth, so that reading stays quick
      data/topic=…/date=…/*.parquet   files; only those that the manifests name count
      staging/                        what a run writes before it commits

A number is taken by making a hard link, which fails where the name exists: of two runs that want the same number one
is refused, whatever either believes about locks (a zombie after a pause, a folder shared by two machines).
"""

from __future__ import annotations

import fcntl
import json
import os
import secrets
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Any

from tallymark.errors import Inconsistent, Problem, Stale, TallymarkError, UsageError
from tallymark.pipeline.manifest import Archive, Change, change_of, change_text, state_of, state_text

_DIGITS = 20
_LOCK_TRIES = 5
_LOCK_AGAIN_S = 0.05
# A sum is written every so many changes; changes below the last but one sum are deleted.
SUM_EVERY = 50


class ManifestLog:
    """The manifests of one archive."""

    def __init__(self, folder: Path, *, sum_every: int = SUM_EVERY) -> None:
        self.folder = folder.absolute()
        self._manifests = self.folder / "manifests"
        self._sum_every = sum_every

    @property
    def data(self) -> Path:
        return self.folder / "data"

    @property
    def staging(self) -> Path:
        return self.folder / "staging"

    def prepare(self) -> None:
        """Make the folder, or say in one line why it cannot be had."""
        try:
            if self.folder.is_dir() and not self._manifests.is_dir() and self._strangers():
                raise UsageError(
                    f"{self.folder} is not empty and is no archive: it holds {self._strangers()[0]}",
                    remedy="choose another folder",
                )
            for each in (self._manifests, self.data, self.staging):
                each.mkdir(parents=True, exist_ok=True)
            self._write(self._manifests / f".probe-{secrets.token_hex(4)}", "").unlink()
        except OSError as error:
            raise UsageError(
                f"the archive {self.folder} cannot be written: {error.strerror}",
                remedy="choose another folder",
            ) from error

    def require(self) -> Archive:
        """The state of an archive that is there; a clear error where there is none."""
        state = self.load() if self._manifests.is_dir() else Archive()
        if not state.number:
            raise UsageError(
                f"there is no archive in {self.folder}", remedy="`tallymark pipeline archive` makes one"
            )
        return state

    def load(self) -> Archive:
        """The state now: the last sum, and the changes after it."""
        for last in (False, False, True):
            state = self._added_up()
            # A run at work may have summed up, and deleted what we were about to read: then look again.
            if not self._hole_after(state, complain=last):
                break
        return state

    def _added_up(self) -> Archive:
        state = Archive()
        for path in sorted(self._manifests.glob("*.sum"), reverse=True):
            try:
                state = state_of(path.read_text())
                break
            except (OSError, ValueError, KeyError, TypeError):
                continue  # the changes that it sums up may still be there
        while True:
            path = self._path(state.number + 1)
            try:
                text = path.read_text()
            except FileNotFoundError:
                break
            except OSError as error:
                raise Problem(f"{path} cannot be read: {error.strerror}") from error
            try:
                state = state.after(change_of(text))
            except (ValueError, KeyError, TypeError) as error:
                raise _damaged(path) from error
        return state

    def commit(self, state: Archive, change: Change) -> Archive:
        """Take the change's number, or be refused: then another run has gone on, and nothing of this one counts."""
        after = state.after(change)
        scratch = self._manifests / f".{change.run}-{secrets.token_hex(4)}"
        try:
            self._write(scratch, change_text(change))
            os.link(scratch, self._path(change.number))
        except FileExistsError:
            raise self._overtaken(change.number) from None
        except OSError as error:
            raise Problem(f"manifest {change.number} could not be written: {error.strerror}") from error
        finally:
            scratch.unlink(missing_ok=True)
        if self._highest("sum") >= change.number:
            # Its number was free because it was summed up and deleted long ago.
            self._path(change.number).unlink(missing_ok=True)
            raise self._overtaken(change.number)
        try:
            _sync_folder(self._manifests)
            if change.number % self._sum_every == 0:
                self._sum_up(after)
        except OSError as error:
            raise Problem(
                f"manifest {change.number} is written, and the folder {self._manifests} fails: {error.strerror}",
                remedy="look at its disk, then start the run again: it goes on where it was",
            ) from error
        return after

    def refuse_overtaken(self, state: Archive) -> None:
        """Refuse to go on where another run has written a manifest since."""
        if max(self._highest("json"), self._highest("sum")) > state.number:
            raise self._overtaken(state.number + 1)

    def _overtaken(self, number: int) -> Stale:
        return Stale(
            f"another run has written manifest {number} of {self.folder}: this one changed nothing",
            remedy="let one run at a time archive into a folder",
        )

    def _sum_up(self, state: Archive) -> None:
        """Derived, and made anew if it is lost: a crash in here costs nothing."""
        scratch = self._manifests / f".{secrets.token_hex(4)}"
        try:
            os.replace(self._write(scratch, state_text(state)), self._path(state.number, "sum"))
        finally:
            scratch.unlink(missing_ok=True)
        _sync_folder(self._manifests)
        sums = sorted(self._manifests.glob("*.sum"))
        for old in sums[:-2]:
            old.unlink(missing_ok=True)
        if len(sums) > 1:
            floor = int(sums[-2].stem)
            for path in self._manifests.glob("*.json"):
                if int(path.stem) <= floor:
                    path.unlink(missing_ok=True)

    def _hole_after(self, state: Archive, *, complain: bool) -> bool:
        highest = self._highest("json")
        if highest <= state.number:
            return False
        if complain and not self._path(state.number + 1).exists():
            raise Inconsistent(
                f"manifest {state.number + 1} of {self.folder} is missing, and {highest} is there",
                remedy="restore the folder manifests/ from a copy",
            )
        return True

    def _highest(self, suffix: str) -> int:
        found = self._manifests.glob(f"*.{suffix}")
        return max((int(path.stem) for path in found if path.stem.isdigit()), default=0)

    def _strangers(self) -> list[str]:
        ours = {"manifests", "data", "staging", "archive.lock"}
        return sorted(path.name for path in self.folder.iterdir() if path.name not in ours)

    def _path(self, number: int, suffix: str = "json") -> Path:
        return self._manifests / f"{number:0{_DIGITS}}.{suffix}"

    def _write(self, path: Path, text: str) -> Path:
        with path.open("w") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        return path

    # Who is at work

    @contextmanager
    def held(self, run: str) -> Iterator[None]:
        """Be the one run that archives here, until the end or a kill: the kernel gives the lock back."""
        path = self.folder / "archive.lock"
        with path.open("a+") as file:
            if not _locked(file):
                raise Problem(
                    f"the archive {self.folder} is held by {holder(path)}",
                    remedy="stop that run first, or archive into another folder",
                )
            file.truncate(0)
            who = {"run": run, "host": socket.gethostname(), "pid": os.getpid(), "since": _now()}
            file.write(json.dumps(who) + "\n")
            file.flush()
            yield


def _locked(file: IO[str]) -> bool:
    """Whether we have it now. Tried for a moment: whoever only looks who holds it has it for an instant."""
    for attempt in range(_LOCK_TRIES):
        if attempt:
            time.sleep(_LOCK_AGAIN_S)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            continue
        return True
    return False


def holder(path: Path) -> str:
    """Who wrote the lock, for people."""
    try:
        who: dict[str, Any] = json.loads(path.read_text())
        return f"run {who['run']} (process {who['pid']} on {who['host']}, since {who['since']})"
    except (OSError, ValueError, KeyError, TypeError):
        return "another run"


def is_held(folder: Path) -> str | None:
    """Who archives into this folder now; None where nobody does."""
    path = folder / "archive.lock"
    try:
        with path.open() as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return holder(path)
    except OSError:
        return None
    return None


def now_ms() -> int:
    return int(time.time() * 1000)


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


def _damaged(path: Path) -> TallymarkError:
    return Inconsistent(f"{path} is damaged", remedy="restore it from a copy of the archive's manifests")


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
