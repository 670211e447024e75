"""The one way to a Spark session: safe settings, our jars, a Python; and a JVM that does not talk over us.

What the promises need cannot be set otherwise (speculative execution runs a task twice at once). The JVM's own
output goes to a file: a user reads our line, and `--verbose` shows all of it.
"""

from __future__ import annotations

import logging
import os
import shutil
import signal
import sys
import threading
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from tallymark.errors import Unreachable, UsageError
from tallymark.pipeline import failures
from tallymark.pipeline.scratch import scratch
from tallymark.pipeline.standstill import watched

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

log = logging.getLogger("tallymark.pipeline")

LOCAL = "local[*]"
_JVM_OPTIONS = "spark.driver.extraJavaOptions"

# rules.md 65-73 that belong to the session, and what makes runs alike: times in UTC, overflow is an error.
SAFE: Mapping[str, str] = {
    "spark.speculation": "false",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.ansi.enabled": "true",
    "spark.sql.streaming.stopTimeout": "30000",
    # A batch that was lost with its executor is read again from Kafka: offsets do not change.
    "spark.sql.streaming.kafka.useDeprecatedOffsetFetching": "false",
}
_QUIET: Mapping[str, str] = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.log.level": "WARN",
    # Rows between the JVM and Python: few at a time, and few bytes, because a value may be a megabyte.
    "spark.sql.execution.arrow.maxRecordsPerBatch": "2000",
    "spark.sql.execution.arrow.maxBytesPerBatch": str(8 << 20),
    "spark.sql.shuffle.partitions": "8",
    "spark.driver.memory": "1g",
    # A first look at a topic must not wait for the metastore that nobody uses.
    "spark.sql.catalogImplementation": "in-memory",
}
# What a user may not change, and why.
_REFUSED: Mapping[str, str] = {
    "spark.speculation": "speculative execution runs a task twice at once",
    "spark.sql.session.timeZone": "times are in UTC",
}


@dataclass(frozen=True, slots=True)
class SparkPlan:
    """Where a job runs, and what it takes along."""

    app: str
    master: str = LOCAL
    jars: tuple[Path, ...] = ()
    conf: Mapping[str, str] = field(default_factory=dict)
    java_home: Path | None = None
    # For the driver's JVM, beside what the user has set.
    jvm_options: tuple[str, ...] = ()
    # spark-submit has started the JVM: what its line says stays.
    submitted: bool = False

    @property
    def is_local(self) -> bool:
        return self.master.startswith("local")

    def settings(self) -> dict[str, str]:
        """All settings, the user's own among them."""
        refused = [
            f"{name}={value}: {why}"
            for name, why in _REFUSED.items()
            if (value := self.conf.get(name)) is not None and value.lower() != SAFE[name].lower()
        ]
        if refused:
            raise UsageError(f"Spark may not run with {refused[0]}", remedy="take it out of --conf")
        chosen = {**_QUIET, **self.conf, **SAFE, "spark.app.name": self.app, "spark.master": self.master}
        if self.jars:
            chosen["spark.jars"] = ",".join(str(jar) for jar in self.jars)
        if self.is_local:
            chosen |= {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}
        return chosen

    def python(self, environment: Mapping[str, str]) -> str:
        """The Python of executors: this one here; elsewhere what was asked for, by a setting or by spark-submit."""
        if self.is_local:
            return sys.executable
        return self.conf.get("spark.pyspark.python") or environment.get("PYSPARK_PYTHON") or sys.executable


@contextmanager
def started(plan: SparkPlan, *, verbose: bool = False) -> Iterator[SparkSession]:
    """A session for the length of a job. With `verbose` the JVM writes to stderr, else to a file beside the job.

    A process has one session: where one is there already, it is used, and left to whoever started it.
    """
    from pyspark import SparkContext

    settings = plan.settings()
    theirs = SparkContext._active_spark_context is not None
    folder = scratch("spark")
    # Spark 4.0 makes this in the current folder, and empties it at its end without removing it.
    litter = Path("artifacts").absolute()
    was_there = litter.exists()
    try:
        session = _session(plan, settings, folder, verbose=verbose)
        unwatched = plan.is_local or theirs
        with (
            nullcontext() if verbose else _quiet(session),
            nullcontext() if unwatched else watched(session, plan.master),
        ):
            try:
                yield session
            except Exception as error:
                if failures.is_from_nobody(error):
                    raise failures.explain(error) from error
                raise
            finally:
                if not theirs:
                    _stop(session)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        if not was_there:
            with suppress(OSError):
                litter.rmdir()


def _session(plan: SparkPlan, settings: Mapping[str, str], folder: Path, *, verbose: bool) -> SparkSession:
    from pyspark import SparkConf, SparkContext
    from pyspark.errors import PySparkException
    from pyspark.sql import SparkSession

    os.environ["PYSPARK_PYTHON"] = plan.python(os.environ)
    os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1" if plan.is_local else os.environ.get("HOSTNAME", ""))
    if not os.environ["SPARK_LOCAL_IP"]:
        del os.environ["SPARK_LOCAL_IP"]
    if plan.java_home is not None:
        os.environ["JAVA_HOME"] = str(plan.java_home)
    if plan.submitted:
        SparkContext._ensure_initialized()
        line = SparkConf()
        settings = {
            name: value for name, value in settings.items() if name not in _QUIET or not line.contains(name)
        }
    builder = SparkSession.builder
    for name, value in settings.items():
        builder = builder.config(name, value)
    builder = builder.config("spark.local.dir", os.environ.get("SPARK_LOCAL_DIRS") or str(folder))
    if plan.jvm_options:
        theirs = settings.get(_JVM_OPTIONS, "")
        builder = builder.config(_JVM_OPTIONS, " ".join([*plan.jvm_options, theirs]).strip())
    said = folder / "jvm.log"
    try:
        with _stderr_to(None if verbose else said), _our_interrupts():
            session: SparkSession = builder.getOrCreate()
    except (PySparkException, RuntimeError, ConnectionError) as error:
        raise _not_started(plan, said, error) from error
    except Exception as error:
        if type(error).__module__.startswith("py4j"):
            raise _not_started(plan, said, error) from error
        raise
    return session


def _not_started(plan: SparkPlan, said: Path, error: Exception) -> Unreachable:
    text = (said.read_text(errors="replace") if said.is_file() else "") + str(error)
    if not plan.is_local and ("All masters are unresponsive" in text or "Connection refused" in text):
        return Unreachable(
            f"the Spark master {plan.master} cannot be reached", remedy="check --master, and that it runs"
        )
    if "Master removed our application" in text:
        return Unreachable(
            f"the Spark master {plan.master} could not start executors", remedy="look at the workers' logs"
        )
    if "Could not parse Master URL" in text:
        return Unreachable(
            f"{plan.master!r} is not a Spark master", remedy="write local[*] or spark://host:port"
        )
    last = next(
        (line for line in reversed(text.splitlines()) if "Exception" in line or "Error" in line), str(error)
    )
    return Unreachable(
        f"Spark did not start: {last.strip()[:300]}", remedy="--verbose shows what the JVM said"
    )


@contextmanager
def _our_interrupts() -> Iterator[None]:
    """Whoever has Ctrl-C keeps it. PySpark takes it for itself as it starts: it would talk to the JVM within the handler,
    in the middle of what the main thread says to it, and raise whatever comes of that."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.getsignal(signal.SIGINT)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


@contextmanager
def _quiet(session: SparkSession) -> Iterator[None]:
    """Where the JVM goes away, those that talk to it write tracebacks, each its own. Whoever asked it is told as well."""
    root, py4j = logging.getLogger(), logging.getLogger("py4j")

    def not_theirs(record: logging.LogRecord) -> bool:
        return Path(record.pathname).parent.name != py4j.name

    counting = session.sparkContext._accumulatorServer
    counting.handle_error = lambda *_: None  # type: ignore[method-assign] # of this one
    before, py4j.propagate = py4j.propagate, False
    root.addFilter(not_theirs)
    try:
        yield
    finally:
        root.removeFilter(not_theirs)
        py4j.propagate = before


@contextmanager
def _stderr_to(path: Path | None) -> Iterator[None]:
    """Whatever is started inside inherits a file in place of our stderr."""
    if path is None:
        yield
        return
    sys.stderr.flush()
    before = os.dup(2)
    target = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    try:
        os.dup2(target, 2)
        yield
    finally:
        os.dup2(before, 2)
        os.close(before)
        os.close(target)


def _stop(session: SparkSession) -> None:
    """Spark and its JVM, if they are still there. Why the job ends is not for its end to say."""
    from pyspark import SparkContext
    from pyspark.sql import SparkSession as Sessions

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            session.stop()
    except Exception as error:  # noqa: BLE001 - it is no more
        log.debug("Spark could not be stopped: %s", error, extra={"action": "spark.stop"})
        SparkContext._active_spark_context = None
        Sessions._instantiatedSession = Sessions._activeSession = None
    try:
        _stop_gateway()
    except Exception as error:  # noqa: BLE001 - as above
        log.debug("the JVM could not be stopped: %s", error, extra={"action": "spark.stop"})


def _stop_gateway() -> None:
    """End the JVM: another session of this process may want other jars, and nothing of ours outlives us."""
    from pyspark import SparkContext

    gateway = SparkContext._gateway
    if gateway is None:
        return
    SparkContext._gateway = SparkContext._jvm = None
    process = getattr(gateway, "proc", None)
    try:
        gateway.shutdown()
    finally:
        if process is not None and process.stdin is not None:
            process.stdin.close()
            process.wait(30)
