"""How a person's shell finds this very Tallymark: a command that is suggested must run as it stands."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
from pathlib import Path


def put_on_path() -> str | None:
    """The line that puts `tallymark` on the shell's path; None where it is there, and is this one."""
    here = Path(sys.executable).parent
    found = shutil.which("tallymark")
    if found is not None and Path(found).parent.samefile(here):
        return None
    activate = here / "activate"
    if not activate.exists():
        return f"export PATH={shlex.quote(str(here))}:$PATH"
    inside = activate.is_relative_to(Path.cwd())
    return f". {shlex.quote(os.path.relpath(activate) if inside else str(activate))}"
