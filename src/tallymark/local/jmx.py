"""Brokers that tell their own numbers: the Prometheus JMX agent inside each, on a loopback port of its own.

By option (`tallymark local up --jmx`): an agent costs each broker some of its start-up time and memory. Once asked for,
a home keeps it until it is wiped. What is told are a few dozen series: connections, threads, memory, request times,
under-replicated partitions, log sizes.
"""

from __future__ import annotations

import json
from pathlib import Path

from tallymark.errors import Problem
from tallymark.local.home import Home, write_private
from tallymark.local.jars import JarSet
from tallymark.local.ports import HOST, free_ports, is_free

VERSION = "1.0.1"
JMX = JarSet(f"jmx-{VERSION}", (f"io.prometheus.jmx:jmx_prometheus_javaagent:{VERSION}",))

# What dashboard and alerts use of what an agent tells; a test holds a real one to it.
SERIES = (
    "kafka_server_replicamanager_underreplicatedpartitions",
    "kafka_server_connections",
    "kafka_request_time_ms",
    "kafka_log_size_bytes",
    "kafka_server_brokertopicmetrics_bytesin_total",
    "kafka_server_brokertopicmetrics_bytesout_total",
    "jvm_threads_current",
    "jvm_memory_used_bytes",
)

# Only these are asked for: all that a broker has are thousands. Names as in the exporter's own examples for Kafka.
RULES = """\
startDelaySeconds: 0
lowercaseOutputName: true
includeObjectNames:
  - "kafka.server:type=ReplicaManager,name=UnderReplicatedPartitions"
  - "kafka.server:type=ReplicaManager,name=UnderMinIsrPartitionCount"
  - "kafka.server:type=ReplicaManager,name=PartitionCount"
  - "kafka.server:type=ReplicaManager,name=LeaderCount"
  - "kafka.controller:type=KafkaController,name=OfflinePartitionsCount"
  - "kafka.controller:type=KafkaController,name=ActiveControllerCount"
  - "kafka.server:type=BrokerTopicMetrics,name=MessagesInPerSec"
  - "kafka.server:type=BrokerTopicMetrics,name=BytesInPerSec"
  - "kafka.server:type=BrokerTopicMetrics,name=BytesOutPerSec"
  - "kafka.server:type=KafkaRequestHandlerPool,name=RequestHandlerAvgIdlePercent"
  - "kafka.server:type=socket-server-metrics,listener=*,networkProcessor=*"
  - "kafka.network:type=RequestMetrics,name=TotalTimeMs,request=Produce"
  - "kafka.network:type=RequestMetrics,name=TotalTimeMs,request=FetchConsumer"
  - "kafka.log:type=Log,name=Size,topic=*,partition=*"
rules:
  - pattern: kafka.log<type=Log, name=Size, topic=(.+), partition=(.+)><>Value
    name: kafka_log_size_bytes
    type: GAUGE
    labels: {topic: "$1", partition: "$2"}
  - pattern: kafka.server<type=socket-server-metrics, listener=(.+), networkProcessor=(.+)><>connection-count
    name: kafka_server_connections
    type: GAUGE
    labels: {listener: "$1", processor: "$2"}
  - pattern: kafka.network<type=RequestMetrics, name=TotalTimeMs, request=(.+)><>(50|95|99)thPercentile
    name: kafka_request_time_ms
    type: GAUGE
    labels: {request: "$1", quantile: "0.$2"}
  - pattern: kafka.(server|controller)<type=(.+), name=(.+)PerSec><>Count
    name: kafka_$1_$2_$3_total
    type: COUNTER
  - pattern: kafka.(server|controller)<type=(.+), name=(.+)><>(Value|OneMinuteRate)
    name: kafka_$1_$2_$3
    type: GAUGE
"""


class Agents:
    """The agents of one home's brokers."""

    def __init__(self, home: Home, *, wanted: bool) -> None:
        self._home = home
        self._wanted = wanted

    @property
    def file(self) -> Path:
        return self._home.path / "jmx.json"

    @property
    def wanted(self) -> bool:
        """Whether brokers of this home carry an agent: asked for now, or before."""
        return self._wanted or self.file.exists()

    def prepare(self, brokers: int, running: set[int]) -> None:
        """A port for each broker, kept from one start to the next; one that was taken moves."""
        if not self.wanted:
            return
        before = self.ports()
        if not before and running:
            raise Problem(
                "brokers that run already carry no agent",
                remedy="stop them with `tallymark local down`, then `tallymark local up --jmx`",
            )
        ports = dict(before)
        for number in range(1, brokers + 1):
            if number not in ports or (number not in running and not is_free(ports[number])):
                ports[number] = free_ports(1, besides=set(ports.values()))[0]
        if ports != before:
            write_private(self.file, json.dumps(ports) + "\n")

    def ports(self) -> dict[int, int]:
        """Where each broker's agent listens; nothing where there are none."""
        try:
            return {int(number): int(port) for number, port in json.loads(self.file.read_text()).items()}
        except FileNotFoundError:
            return {}
        except (ValueError, AttributeError, OSError) as error:
            raise Problem(f"{self.file} is damaged", remedy="delete it, and use --jmx again") from error

    def addresses(self) -> list[str]:
        """For Prometheus: host:port of each agent."""
        return [f"{HOST}:{port}" for _, port in sorted(self.ports().items())]

    def options(self, number: int, folder: Path, jars: Path) -> list[str]:
        """What the JVM of this broker is told; writes the rules beside its other files."""
        port = self.ports().get(number)
        if port is None:
            return []
        rules = folder / "jmx.yml"
        write_private(rules, RULES)
        return [f"-javaagent:{jars / f'jmx_prometheus_javaagent-{VERSION}.jar'}={HOST}:{port}:{rules}"]
