"""The promises stand on the relay's ground."""

from __future__ import annotations

from tests.relay.conftest import ground, make_ground

__all__ = ["ground", "make_ground"]
