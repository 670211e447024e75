"""The promises stand on the relay's ground, on the inbox's, and on the pipeline's Spark."""

from __future__ import annotations

from tests.inbox.conftest import inbox_ground, make_inbox_ground
from tests.pipeline.conftest import spark
from tests.relay.conftest import ground, make_ground

__all__ = ["ground", "inbox_ground", "make_ground", "make_inbox_ground", "spark"]
