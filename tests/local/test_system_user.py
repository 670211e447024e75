"""The system user that PostgreSQL runs as where we are root: one, however many clusters are started at once."""

from __future__ import annotations

import os
import pwd
import secrets
import subprocess
import sys

import pytest

_AT_ONCE = 6
_MAKE = """
import pwd, sys
from tallymark.local.postgres import _bundle, make_user
_bundle()  # its import takes longer than what is raced for
print("ready", flush=True)
sys.stdin.readline()
make_user(sys.argv[1])
print(pwd.getpwnam(sys.argv[1]).pw_uid)
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root makes users")
def test_clusters_that_start_at_once_on_a_new_machine_make_one_user() -> None:
    name = f"tallymark-{secrets.token_hex(4)}"
    command = [sys.executable, "-c", _MAKE, name]
    children = [
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        for _ in range(_AT_ONCE)
    ]
    try:
        for child in children:
            assert child.stdout is not None
            assert child.stdout.readline() == "ready\n"
        for child in children:
            assert child.stdin is not None
            child.stdin.write("\n")
            child.stdin.flush()
        seen = [child.communicate(timeout=60)[0].strip() for child in children]
        assert seen == [str(pwd.getpwnam(name).pw_uid)] * _AT_ONCE
    finally:
        for child in children:
            child.kill()
            child.wait()
        subprocess.run(["userdel", name], check=False, capture_output=True)
