"""The files that one broker reads: its settings and its logging. Pure: values in, text out.

The settings are the safe ones: three copies, two of them in sync before an acknowledgement, no unclean
election, no topic by typo, the internal topics as safe as the rest. With fewer than three brokers they are as
safe as that number allows.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from xml.sax.saxutils import escape

from tallymark.local.home import ClusterRecord
from tallymark.local.ports import HOST

# A leader that was alone in sync and is lost is not replaced by a replica that knows less (KIP-966).
FEATURES = ("eligible.leader.replicas.version=1",)


def replication(brokers: int) -> int:
    return min(3, brokers)


def min_in_sync(brokers: int) -> int:
    return max(1, replication(brokers) - 1)


def properties(
    record: ClusterRecord, number: int, data: Path, overrides: Mapping[str, str]
) -> dict[str, str]:
    ports = record.brokers[number - 1]
    count = len(record.brokers)
    copies, in_sync = str(replication(count)), str(min_in_sync(count))
    listeners = {"PLAINTEXT": ports.client, **ports.extra}
    protocols = {"PLAINTEXT": "PLAINTEXT", "CONTROLLER": "PLAINTEXT"}
    protocols |= {listener.name: listener.protocol for listener in record.listeners}
    settings = {
        "process.roles": "broker,controller",
        "node.id": str(number),
        "controller.quorum.voters": ",".join(
            f"{voter}@{HOST}:{peer.controller}" for voter, peer in enumerate(record.brokers, 1)
        ),
        "listeners": _addresses({**listeners, "CONTROLLER": ports.controller}),
        "advertised.listeners": _addresses(listeners),
        "listener.security.protocol.map": ",".join(f"{name}:{kind}" for name, kind in protocols.items()),
        "inter.broker.listener.name": "PLAINTEXT",
        "controller.listener.names": "CONTROLLER",
        "log.dirs": str(data),
        # No message is lost
        "default.replication.factor": copies,
        "min.insync.replicas": in_sync,
        "unclean.leader.election.enable": "false",
        "auto.create.topics.enable": "false",
        "offsets.topic.replication.factor": copies,
        "transaction.state.log.replication.factor": copies,
        "transaction.state.log.min.isr": in_sync,
        "share.coordinator.state.topic.replication.factor": copies,
        "share.coordinator.state.topic.min.isr": in_sync,
        # Small: three of them share one machine with all the rest
        "offsets.topic.num.partitions": "6",
        "transaction.state.log.num.partitions": "6",
        "share.coordinator.state.topic.num.partitions": "3",
        "num.network.threads": "2",
        "num.io.threads": "4",
        "log.cleaner.dedupe.buffer.size": str(16 << 20),
        # Quick to notice: on one machine, silence is death
        "group.initial.rebalance.delay.ms": "0",
        "broker.heartbeat.interval.ms": "1000",
        "broker.session.timeout.ms": "6000",
        # Patient at the start: on a busy machine it takes minutes, and whoever waits for it gives up by himself
        "initial.broker.registration.timeout.ms": "300000",
    }
    for listener in record.listeners:
        settings |= {
            f"listener.name.{listener.name.lower()}.{key}": v for key, v in listener.settings.items()
        }
    return {**settings, **record.broker_settings, **overrides}


def _addresses(listeners: Mapping[str, int]) -> str:
    return ",".join(f"{name}://{HOST}:{port}" for name, port in listeners.items())


def render_properties(settings: Mapping[str, str]) -> str:
    """Java's properties format: backslashes and line breaks inside a value are escaped."""
    lines = []
    for key, value in settings.items():
        escaped = value.replace("\\", "\\\\").replace("\n", "\\n")
        lines.append(f"{key}={escaped}\n")
    return "".join(lines)


def render_logging(log_file: Path) -> str:
    """log4j2: one file per broker, 10 MB, three older ones kept."""
    path = escape(str(log_file), {'"': "&quot;"})
    return f"""<?xml version="1.0" encoding="UTF-8"?>
<Configuration status="error" shutdownHook="disable">
  <Appenders>
    <RollingFile name="file" fileName="{path}" filePattern="{path}.%i">
      <PatternLayout pattern="%d{{ISO8601}} %-5p %m (%c{{1}})%n"/>
      <SizeBasedTriggeringPolicy size="10 MB"/>
      <DefaultRolloverStrategy max="3"/>
    </RollingFile>
  </Appenders>
  <Loggers>
    <Root level="info"><AppenderRef ref="file"/></Root>
    <Logger name="org.apache.kafka.controller" level="warn"/>
  </Loggers>
</Configuration>
"""
