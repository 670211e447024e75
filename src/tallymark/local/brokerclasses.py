"""Kafka's classes, archived by one broker that is started, used and stopped aside: two thirds of the CPU of a start."""

from __future__ import annotations

import shutil
import time
from pathlib import Path

from tallymark.broker.probe import Probe
from tallymark.local.broker import Broker
from tallymark.local.classarchive import ClassArchive, archive_path
from tallymark.local.jars import KAFKA, JarStore
from tallymark.local.java import Java
from tallymark.local.plan import Wish, new_record
from tallymark.local.ports import HOST
from tallymark.local.readiness import PATIENCE_S, wait_broker

_DUMP_GRACE_S = 120.0


def broker_classes(java: Java, store: JarStore) -> ClassArchive:
    jars = store.folder(KAFKA)

    def train(path: Path) -> None:
        # A fixed place: a broker that a killed attempt left behind is found there, and stopped.
        folder = path.with_suffix(".training")
        scratch = folder / "classes.jsa"
        record = new_record(Wish(brokers=1, postgres=0))
        broker = Broker(
            1,
            folder / "broker-1",
            java=lambda: java,
            class_path=lambda: store.class_path(KAFKA),
            record=lambda: record,
            wait_ready=wait_broker,
            jvm_options=lambda: (f"-XX:ArchiveClassesAtExit={scratch}",),
        )
        broker.kill()
        shutil.rmtree(folder, ignore_errors=True)
        try:
            broker.start()
            Probe(f"{HOST}:{broker.port}").use(copies=1, deadline=time.monotonic() + PATIENCE_S)
            broker.stop(grace_s=_DUMP_GRACE_S)
            scratch.replace(path)
        finally:
            broker.kill()
            shutil.rmtree(folder, ignore_errors=True)

    return ClassArchive(
        "Kafka", archive_path(jars.parent, jars.name, java, jars), jars / "manifest.json", train
    )
