"""What a demo leaves when it is told to keep running, or was killed itself, and how that is ended:

    sh HOME/stop.sh         which is: python -m tallymark.lab.leaving HOME

Services are known by their environment, never by a number that may be another process's today.
"""

from __future__ import annotations

import shlex
import shutil
import sys
from pathlib import Path

import psutil

from tallymark.local.cluster import LocalCluster
from tallymark.local.home import write_private

# Carried by every service of a demo, and by nothing that a user starts.
MARK = "TALLYDEMO_HOME"
_GRACE_S = 10.0


def left(home: Path) -> list[psutil.Process]:
    """Services of this demo, and what they have started."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get(MARK) == str(home):
                found.append(process)
        except psutil.Error:
            continue  # gone, or somebody else's
    return found


def write_stop(home: Path) -> Path:
    """The script that ends it."""
    script = home / "stop.sh"
    command = shlex.join([sys.executable, "-m", __name__, str(home)])
    write_private(
        script, f"#!/bin/sh\n# Ends this demo's services and its cluster, and deletes its data.\n{command}\n"
    )
    return script


def stop(home: Path) -> None:
    """End all of it, and delete it."""
    services = left(home)
    for process in services:
        try:
            process.kill()  # none of them needs a warning: that is what they are for
        except psutil.NoSuchProcess:
            continue
    psutil.wait_procs(services, timeout=_GRACE_S)
    LocalCluster(home).down(wipe=True)
    shutil.rmtree(home, ignore_errors=True)


if __name__ == "__main__":
    stop(Path(sys.argv[1]))
