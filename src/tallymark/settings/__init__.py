"""Settings: flags over environment over tallymark.toml over defaults, each value with where it came from.

loaded = load(flags={("kafka", "bootstrap_servers"): "kafka:9092"})
loaded.settings.relay.mode
loaded.origin("relay.mode")          # default
"""

from __future__ import annotations

from tallymark.settings.layers import Entry, Origin, Source
from tallymark.settings.loading import Loaded, load
from tallymark.settings.model import DatabaseSettings, InboxSettings, KafkaSettings, RelaySettings, Settings

__all__ = [
    "DatabaseSettings",
    "Entry",
    "InboxSettings",
    "KafkaSettings",
    "Loaded",
    "Origin",
    "RelaySettings",
    "Settings",
    "Source",
    "load",
]
