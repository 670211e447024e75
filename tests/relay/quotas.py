"""A client that may send no more than so many bytes a second to each broker, by its client id."""

from __future__ import annotations

import os
import subprocess
import uuid
from collections.abc import Iterator
from contextlib import contextmanager

from tallymark.local.jars import KAFKA, JarStore
from tallymark.local.java import find_java


@contextmanager
def throttled(servers: str, bytes_a_second: int) -> Iterator[str]:
    """A client id of its own. The Python client cannot set quotas: Kafka's own tool does."""
    name = f"slow-{uuid.uuid4().hex[:8]}"
    _configure(servers, name, "--add-config", f"producer_byte_rate={bytes_a_second}")
    try:
        yield name
    finally:
        _configure(servers, name, "--delete-config", "producer_byte_rate")


def _configure(servers: str, client: str, *change: str) -> None:
    java = find_java()
    options = (
        "-Xmx128m",
        "-XX:+UseSerialGC",
        "-XX:TieredStopAtLevel=1",
        f"-Dlog4j2.configurationFile={os.devnull}",
    )
    entity = ("--alter", "--entity-type", "clients", "--entity-name", client)
    done = subprocess.run(
        [
            *(
                java.executable,
                *options,
                "-cp",
                JarStore(java).class_path(KAFKA),
                "kafka.admin.ConfigCommand",
            ),
            *("--bootstrap-server", servers, *entity, *change),
        ],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
