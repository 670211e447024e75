"""Java's archive of Kafka's classes: a broker that starts with it takes two thirds of the CPU time to come up.

Made once per jar set and Java, by one broker that is started, used and stopped aside. It is an improvement and
nothing more: where it cannot be made, or Java finds that it does not fit, brokers start without it.
"""

from __future__ import annotations

import hashlib
import shutil
import time
from pathlib import Path

from filelock import FileLock

from tallymark.broker.probe import Probe
from tallymark.errors import TallymarkError
from tallymark.local.broker import Broker
from tallymark.local.jars import KAFKA, JarStore, Report
from tallymark.local.java import Java
from tallymark.local.plan import Wish, new_record
from tallymark.local.ports import HOST
from tallymark.local.readiness import PATIENCE_S, wait_broker

_DUMP_GRACE_S = 120.0


class ClassArchive:
    def __init__(self, java: Java, store: JarStore) -> None:
        self._java, self._store = java, store
        jars = store.folder(KAFKA)
        # Java checks for itself that jars and Java are the same; a name for each pair avoids making it in vain.
        pair = f"{java.executable.resolve()} {jars}"
        tag = hashlib.sha256(pair.encode()).hexdigest()[:8]
        self._path = jars.with_name(f"{jars.name}-java{java.major}-{tag}.jsa")

    def options(self) -> tuple[str, ...]:
        """For the command line of every JVM that runs Kafka's classes."""
        if not self._path.exists() or self._path.stat().st_mtime < self._manifest_time():
            return ()
        return (
            f"-XX:SharedArchiveFile={self._path}",
            "-Xshare:auto",
            "-Xlog:cds=off",
            "-Xlog:cds+dynamic=off",
        )

    def ensure(self, report: Report) -> None:
        """Make it if it is missing. Never fails: what went wrong is reported, and brokers start without it."""
        if self.options():
            return
        with FileLock(self._path.with_suffix(".lock")):
            if self.options():
                return
            report("preparing Java's archive of Kafka's classes (once)")
            try:
                self._make()
            except (TallymarkError, OSError) as error:
                report(f"brokers will start a little slower: {error}")

    def _make(self) -> None:
        # A fixed place: a broker that a killed attempt left behind is found there, and stopped.
        folder = self._path.with_suffix(".training")
        scratch = folder / "classes.jsa"
        record = new_record(Wish(brokers=1, postgres=0))
        broker = Broker(
            1,
            folder / "broker-1",
            java=lambda: self._java,
            class_path=lambda: self._store.class_path(KAFKA),
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
            scratch.replace(self._path)
        finally:
            broker.kill()
            shutil.rmtree(folder, ignore_errors=True)

    def _manifest_time(self) -> float:
        manifest: Path = self._store.folder(KAFKA) / "manifest.json"
        return manifest.stat().st_mtime if manifest.exists() else 0.0
