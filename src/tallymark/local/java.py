"""Find a Java that Kafka 4 and Spark 4.0 both run on: 17 to 21.

Kafka needs 17 or newer; Spark 4.0's Hadoop fails on 23 and later. JAVA_HOME wins, then the PATH, then the
usual folders; the first that fits is taken, so that an old default does not stand in the way of a fit one.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from tallymark.errors import Unreachable

OLDEST, NEWEST = 17, 21
_REMEDY = (
    f"Install Java {OLDEST} to {NEWEST} (Debian: apt install openjdk-17-jre-headless; "
    "macOS: brew install openjdk@21), or set JAVA_HOME to one."
)


@dataclass(frozen=True)
class Java:
    executable: Path
    major: int


def find_java(candidates: Iterable[Path] | None = None) -> Java:
    seen: list[str] = []
    for executable in _candidates() if candidates is None else candidates:
        major = _major(executable)
        if major is not None and OLDEST <= major <= NEWEST:
            return Java(executable, major)
        seen.append(f"{executable} is {f'Java {major}' if major else 'not a working Java'}")
    found = "; ".join(seen) or "none was found"
    raise Unreachable(f"Java {OLDEST} to {NEWEST} is needed: {found}", remedy=_REMEDY)


def _candidates() -> Iterator[Path]:
    home = os.environ.get("JAVA_HOME")
    if home:
        yield Path(home) / "bin" / "java"
    on_path = shutil.which("java")
    if on_path:
        yield Path(on_path)
    for folder in ("/usr/lib/jvm", "/Library/Java/JavaVirtualMachines"):
        yield from sorted(Path(folder).glob("*/bin/java"))
        yield from sorted(Path(folder).glob("*/Contents/Home/bin/java"))


def _major(executable: Path) -> int | None:
    try:
        result = subprocess.run(
            [executable, "-version"], capture_output=True, text=True, timeout=30, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    found = re.search(r'version "(\d+)(?:\.(\d+))?', result.stderr + result.stdout)
    if found is None or result.returncode != 0:
        return None
    major = int(found.group(1))
    return int(found.group(2) or 0) if major == 1 else major  # Java 8 calls itself 1.8
