"""How runs of the pipeline are called."""

from __future__ import annotations

import secrets


def new_run() -> str:
    """A run's name: an ingest's staging tables go by it, an archive's manifests say it."""
    return secrets.token_hex(6)
