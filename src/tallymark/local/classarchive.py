"""Java's archive of a program's classes: a JVM that starts with it comes up in a fraction of the CPU time.

Made once per program and Java, by starting and using the program aside. It is an improvement and nothing more: where
it cannot be made, or Java finds that it does not fit, the program starts without it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from filelock import FileLock

from tallymark.errors import TallymarkError
from tallymark.local.jars import Report
from tallymark.local.java import Java


@dataclass(frozen=True)
class ClassArchive:
    """Of one program. `train` runs it once, and makes Java write the archive to the path that it is given."""

    program: str
    path: Path
    # Whenever this has changed since, it is made anew.
    made_from: Path
    train: Callable[[Path], None]

    def options(self) -> tuple[str, ...]:
        """For the command line of every JVM that runs these classes; none where there is no archive."""
        if not self.path.exists() or self.path.stat().st_mtime < self._changed_at():
            return ()
        return (
            f"-XX:SharedArchiveFile={self.path}",
            "-Xshare:auto",
            "-Xlog:cds=off",
            "-Xlog:cds+dynamic=off",
        )

    def ensure(self, report: Report) -> None:
        """Make it if it is missing. Never fails: what went wrong is reported, and the program starts without it."""
        if self.options():
            return
        with FileLock(self.path.with_suffix(".lock")):
            if self.options():
                return
            report(f"preparing Java's archive of {self.program}'s classes (once)")
            try:
                self.train(self.path)
            except (TallymarkError, OSError) as error:
                report(f"{self.program} will start a little slower: {error}")

    def _changed_at(self) -> float:
        return self.made_from.stat().st_mtime if self.made_from.exists() else 0.0


def archive_path(folder: Path, name: str, java: Java, jars: Path) -> Path:
    """Java checks for itself that jars and Java are the same; a name for each pair avoids making it in vain."""
    tag = hashlib.sha256(f"{java.executable.resolve()} {jars}".encode()).hexdigest()[:8]
    return folder / f"{name}-java{java.major}-{tag}.jsa"
