"""Who runs a verb, as the audit names them."""

from __future__ import annotations

import getpass
import os


def user() -> str:
    """The user's name; in a container whose user has none, its number."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # which of the two goes by the version of Python
        return f"uid {os.getuid()}"
