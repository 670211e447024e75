"""Folders that live as long as their process: a killed one's are swept away by the next that comes."""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from pathlib import Path


def scratch(kind: str, parent: Path | None = None) -> Path:
    """A new empty folder of ours, in the system's place for such or in `parent`."""
    place = parent or Path(tempfile.gettempdir())
    _sweep(kind, place)
    return Path(tempfile.mkdtemp(prefix=f"tallymark-{kind}-{os.getpid()}-", dir=place)).absolute()


def _sweep(kind: str, place: Path) -> None:
    for folder in place.glob(f"tallymark-{kind}-*"):
        named = re.fullmatch(rf"tallymark-{kind}-(\d+)-\w+", folder.name)
        if named and _is_over(int(named[1])):
            shutil.rmtree(folder, ignore_errors=True)


def _is_over(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    except PermissionError:
        return False
    return False
