"""Verbs name who ran them, also where the system knows that person by a number only."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tallymark.cli.person import user


def test_the_audit_has_a_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOGNAME", "ann")
    assert user() == "ann"


@pytest.mark.skipif(os.getuid() != 0, reason="only root can become somebody whom nobody knows")
def test_a_user_without_a_name_has_a_number() -> None:
    """As in a container that is run under any number (OpenShift, --user 54321)."""
    environment = {k: v for k, v in os.environ.items() if k not in ("LOGNAME", "USER", "LNAME", "USERNAME")}
    told = subprocess.run(
        [
            sys.executable,
            "-c",
            "import os; from tallymark.cli.person import user; os.setuid(54321); print(user())",
        ],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    assert told.stdout.strip() == "uid 54321"
