"""The machine a run was made on: figures mean nothing without it.

`load_1m` is read before anything is started, so a busy machine shows in the report. No name of host or
user.
"""

from __future__ import annotations

import os
import platform
from importlib.metadata import version
from pathlib import Path
from typing import Any

import psutil


def machine() -> dict[str, Any]:
    """Facts on the machine and its load at this moment."""
    one, five, _ = os.getloadavg()
    return {
        "cpus": psutil.cpu_count() or 1,
        "cpu": _cpu_model(),
        "memory_gb": round(psutil.virtual_memory().total / 2**30, 1),
        "system": f"{platform.system()} {platform.release().split('-')[0]}",
        "python": platform.python_version(),
        "confluent_kafka": version("confluent-kafka"),
        "psycopg": version("psycopg"),
        "load_1m": round(one, 2),
        "load_5m": round(five, 2),
    }


def _cpu_model() -> str:
    """The processor's name; the kernel tells it on Linux, elsewhere the architecture must do."""
    info = Path("/proc/cpuinfo")
    if info.exists():
        for line in info.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.machine()
