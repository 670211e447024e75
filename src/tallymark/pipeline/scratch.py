"""Folders that live as long as their process: a killed one's are swept away by the next that comes.

By the next one of the same machine: a folder may be shared with others, where a process's number means nothing. What was
left before this machine was last started stays.
"""

from __future__ import annotations

import re
import shutil
import tempfile
from pathlib import Path

from tallymark.pipeline.machine import has_ended, process_here


def scratch(kind: str, parent: Path | None = None) -> Path:
    """A new empty folder of ours, in the system's place for such or in `parent`."""
    place = parent or Path(tempfile.gettempdir())
    _sweep(kind, place)
    return Path(tempfile.mkdtemp(prefix=f"tallymark-{kind}-{process_here()}-", dir=place)).absolute()


def _sweep(kind: str, place: Path) -> None:
    for folder in place.glob(f"tallymark-{kind}-*"):
        named = re.fullmatch(rf"tallymark-{kind}-(\w+-\d+)-\w+", folder.name)
        if named and has_ended(named[1]):
            shutil.rmtree(folder, ignore_errors=True)
