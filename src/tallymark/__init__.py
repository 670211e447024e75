"""Tallymark: messages on Kafka: none lost, none applied twice, and the tally to prove it."""

from __future__ import annotations

__version__ = "0.1.0"

__all__ = ["__version__"]
