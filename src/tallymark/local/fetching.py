"""Everything that comes from elsewhere or is prepared once: so that later starts are quick, and need no network."""

from __future__ import annotations

from pathlib import Path

from tallymark.local.brokerclasses import broker_classes
from tallymark.local.jars import KAFKA, JarStore, Report, spark_connector
from tallymark.local.java import find_java
from tallymark.local.jmx import JMX
from tallymark.local.sparkclasses import spark_classes


def fetch(report: Report) -> list[Path]:
    """Jars of Kafka, of Spark's connectors and of the JMX agent, and Java's archives; where they all are."""
    java = find_java()
    store = JarStore(java)
    wanted = [KAFKA, spark_connector(), JMX]
    store.ensure(wanted, report)
    archives = [broker_classes(java, store), spark_classes(java, store)]
    for each in archives:
        each.ensure(report)
    return [*(store.folder(jars) for jars in wanted), *(each.path for each in archives if each.options())]
