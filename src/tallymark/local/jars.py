"""Sets of jars from Maven Central in a user cache, fetched once and checked before each use.

Fetching goes through the Ivy jar that pyspark carries: nothing else to install. A set appears in the cache
complete or not at all (fetched aside, checksums written, then renamed), also when two processes fetch at
once or one is killed. A set with a missing, altered or surplus jar is fetched again.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from xml.sax.saxutils import quoteattr

import platformdirs
from filelock import FileLock

from tallymark.crashpoint import reached
from tallymark.errors import Problem, Unreachable, UsageError
from tallymark.local.java import Java

VARIABLE = "TALLYMARK_CACHE"
KAFKA_VERSION = "4.3.1"
# Kafka 4.3 logs through slf4j 1.7: without this binding its logs are lost.
_LOG_BINDING = "org.apache.logging.log4j:log4j-slf4j-impl:2.25.4"

Report = Callable[[str], None]
"""Called with one short line for each step that a user may want to see."""


@dataclass(frozen=True)
class JarSet:
    """Modules by group:name:version and all that they need, save the groups in `without`."""

    name: str
    modules: tuple[str, ...]
    without: tuple[str, ...] = ()


KAFKA = JarSet(f"kafka-{KAFKA_VERSION}", (f"org.apache.kafka:kafka_2.13:{KAFKA_VERSION}", _LOG_BINDING))


def spark_connector() -> JarSet:
    """Kafka and JDBC for the pyspark that is installed; what Spark itself carries is left out."""
    try:
        spark = version("pyspark")
    except PackageNotFoundError as error:
        raise UsageError(
            "the local cluster needs pyspark", remedy="install Tallymark with its extra [local]"
        ) from error
    return JarSet(
        f"spark-{spark}",
        (f"org.apache.spark:spark-sql-kafka-0-10_2.13:{spark}", "org.postgresql:postgresql:42.7.8"),
        without=("org.apache.hadoop", "org.scala-lang", "org.slf4j", "com.google.code.findbugs"),
    )


def cache_folder() -> Path:
    return Path(os.environ.get(VARIABLE) or platformdirs.user_cache_path("tallymark")).absolute()


class JarStore:
    def __init__(self, java: Java, cache: Path | None = None) -> None:
        self._java = java
        self._folder = (cache or cache_folder()) / "jars"

    def folder(self, jars: JarSet) -> Path:
        return self._folder / jars.name

    def class_path(self, jars: JarSet) -> str:
        return str(self.folder(jars) / "*")

    def ensure(self, wanted: Sequence[JarSet], report: Report = lambda _: None) -> None:
        """Every set is there and whole when this returns."""
        if not any(self.fault(jars) for jars in wanted):
            return
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            with FileLock(self._folder / "lock"):
                faults = {jars: fault for jars in wanted if (fault := self.fault(jars))}
                if faults:
                    self._fetch(faults, report)
        except OSError as error:
            raise Problem(
                f"the jars could not be kept in {self._folder}: {error.strerror}",
                remedy=f"Free about 150 MB there, or choose another folder with {VARIABLE}.",
            ) from error

    def fault(self, jars: JarSet) -> str:
        """What is wrong with a set, in words; empty when it is whole. Reads every byte: about 0.2 s."""
        folder = self.folder(jars)
        try:
            manifest = json.loads((folder / "manifest.json").read_text())
            if manifest["modules"] != list(jars.modules):
                return "was fetched for other versions"
            expected: dict[str, str] = manifest["sha256"]
            present = {path.name for path in folder.glob("*.jar")}
            if lost := sorted(expected.keys() - present):
                return f"lacks {lost[0]}"
            if surplus := sorted(present - expected.keys()):
                return f"holds {surplus[0]}, which does not belong to it"
            altered = [name for name, digest in expected.items() if _sha256(folder / name) != digest]
            return f"holds a damaged {altered[0]}" if altered else ""
        except FileNotFoundError:
            return "is missing"
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return "is damaged"

    def _fetch(self, faults: dict[JarSet, str], report: Report) -> None:
        for leftover in self._folder.glob(".fetch-*"):
            shutil.rmtree(leftover, ignore_errors=True)  # of a fetch that was killed; we hold the lock
        for jars, fault in faults.items():
            if fault != "is missing":
                report(f"the jar set {jars.name} {fault}: fetching it again")
        scratch = Path(tempfile.mkdtemp(prefix=".fetch-", dir=self._folder))
        try:
            names = {f"set{number}": jars for number, jars in enumerate(faults)}
            (scratch / "ivy.xml").write_text(_ivy_module(names))
            self._run_ivy(scratch, ", ".join(jars.name for jars in faults), report)
            for conf, jars in names.items():
                fetched = scratch / conf
                digests = {path.name: _sha256(path) for path in sorted(fetched.glob("*.jar"))}
                manifest = {"modules": list(jars.modules), "sha256": digests}
                (fetched / "manifest.json").write_text(json.dumps(manifest, indent=1) + "\n")
                reached("local.jars_fetched")
                if self.folder(jars).exists():
                    self.folder(jars).rename(scratch / f"old-{conf}")
                fetched.rename(self.folder(jars))
        finally:
            shutil.rmtree(scratch, ignore_errors=True)

    def _run_ivy(self, scratch: Path, what: str, report: Report) -> None:
        command = [str(self._java.executable), "-jar", str(_ivy_jar()), "-ivy", str(scratch / "ivy.xml")]
        command += ["-cache", str(scratch / "cache")]
        command += ["-retrieve", str(scratch / "[conf]" / "[artifact]-[revision](-[classifier]).[ext]")]
        report(f"fetching {what} from Maven Central (once)")
        lines: list[str] = []
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as ivy:
            assert ivy.stdout is not None  # noqa: S101 - for the type checker: we asked for a pipe
            try:
                for line in ivy.stdout:
                    lines.append(line.rstrip())
                    if jar := re.match(r"downloading \S*/(\S+\.jar)", line):
                        report(f"fetching {jar.group(1)}")
            except BaseException:
                ivy.kill()
                raise
        if ivy.returncode != 0:
            raise _failure(what, lines)


def _failure(what: str, lines: list[str]) -> Unreachable | Problem:
    text = "\n".join(lines)
    if "No space left on device" in text:
        return Problem(
            f"the disk is full: {what} could not be fetched",
            remedy=f"Free about 150 MB, or choose another folder with {VARIABLE}.",
        )
    telling = re.search(
        r"(UnknownHostException|ConnectException|Connect\w* refused|timed out|not found)[^\n]*", text
    )
    return Unreachable(
        f"{what} could not be fetched from Maven Central: {telling.group(0) if telling else 'Ivy failed'}",
        remedy="Check the network (JAVA_TOOL_OPTIONS takes -Dhttps.proxyHost and proxyPort), "
        f"or copy the cache of a machine that has it and name it in {VARIABLE}.",
    )


def _ivy_jar() -> Path:
    spec = find_spec("pyspark")  # found, not imported: importing Spark takes a second and a half
    folders = list(spec.submodule_search_locations or []) if spec else []
    found = [jar for folder in folders for jar in Path(folder).glob("jars/ivy-*.jar")]
    if not found:
        raise UsageError(
            "the Ivy jar of pyspark was not found", remedy="install Tallymark with its extra [local]"
        )
    return found[0]


def _ivy_module(names: dict[str, JarSet]) -> str:
    """One resolution for all sets; each has a configuration of its own, so that versions do not mix."""
    confs = "".join(f"<conf name={quoteattr(conf)}/>" for conf in names)
    dependencies = ""
    for conf, jars in names.items():
        for module in jars.modules:
            group, name, revision = (quoteattr(part) for part in module.split(":"))
            dependencies += f'<dependency org={group} name={name} rev={revision} conf="{conf}->default"/>'
    for conf, jars in names.items():
        for group in jars.without:
            dependencies += f"<exclude org={quoteattr(group)} conf={quoteattr(conf)}/>"
    return (
        '<ivy-module version="2.0"><info organisation="tallymark" module="local" revision="1"/>'
        f"<configurations>{confs}</configurations><dependencies>{dependencies}</dependencies></ivy-module>\n"
    )


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
