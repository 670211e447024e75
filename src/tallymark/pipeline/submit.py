"""The spark-submit line of a job: our jars, our package, the settings, and the verb with its options.

What travels: the connector's jars, this package as a zip, the user's own modules and files that are named, and, where it
is given, a packed Python environment with the libraries that executors need (psycopg, pyarrow). The driver reads settings
where it runs: to one that runs in the cluster the file with them travels, too; what stands in the environment does not,
for it would stand in the line. It finds Java, jars and environment as the line says (`is_submitted`), and looks for none
of its own.
"""

from __future__ import annotations

import hashlib
import os
import sys
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from tallymark.errors import UsageError
from tallymark.settings.layers import FILE_NAME

VERBS = ("ingest", "archive", "snapshot", "replay")
# What the line itself says, or what is told by the machine that the driver runs on.
_OWN = frozenset({"spark.master", "spark.jars", "spark.submit.pyFiles", "spark.app.name"})
_MAIN = "import sys\n\nfrom tallymark.cli.main import main\n\nsys.exit(main(sys.argv[1:]))\n"


@dataclass(frozen=True, slots=True)
class Submission:
    """One job for spark-submit."""

    app: str
    master: str
    deploy_mode: str
    jars: tuple[Path, ...]
    package: Path
    main: Path
    settings: Mapping[str, str]
    arguments: tuple[str, ...]
    # A packed environment (venv-pack, conda-pack) that executors unpack and run.
    environment: Path | None = None
    # Modules of the user's own (.py, .zip), as APP:INBOX and --apply name them; files, as --apply-sql does.
    modules: tuple[Path, ...] = ()
    files: tuple[Path, ...] = ()
    # The settings' file, if there is one.
    settings_file: Path | None = None

    def command(self) -> list[str]:
        """The line, word by word."""
        words = [str(spark_submit()), "--master", self.master, "--deploy-mode", self.deploy_mode]
        words += ["--name", self.app]
        if self.jars:
            words += ["--jars", ",".join(str(jar) for jar in self.jars)]
        words += ["--py-files", ",".join(str(each) for each in (self.package, *self.modules))]
        if files := self._travelling():
            words += ["--files", ",".join(files)]
        settings = {name: value for name, value in self.settings.items() if name not in _OWN}
        if self.environment is not None:
            words += ["--archives", f"{self.environment}#environment"]
            settings["spark.pyspark.python"] = "./environment/bin/python"
            if self.deploy_mode == "client":
                # Else the driver would be looked for in it, too, and it is unpacked where executors run.
                settings.setdefault("spark.pyspark.driver.python", sys.executable)
        for name, value in sorted(settings.items()):
            words += ["--conf", f"{name}={value}"]
        return [*words, str(self.main), *self.arguments]

    def _travelling(self) -> list[str]:
        """Each is found by its name in the folder that the driver runs in; settings by the name that we look for."""
        files = [str(each) for each in self.files]
        if self.deploy_mode == "cluster" and self.settings_file is not None:
            alias = "" if self.settings_file.name == FILE_NAME else f"#{FILE_NAME}"
            files.append(f"{self.settings_file}{alias}")
        return files


def is_submitted(environment: Mapping[str, str]) -> bool:
    """Whether spark-submit started this process: its JVM runs already, with the jars that the line names."""
    return "PYSPARK_GATEWAY_PORT" in environment


def checked(arguments: Sequence[str]) -> tuple[str, ...]:
    """The verb and its options, as the driver will be given them."""
    if not arguments or arguments[0] not in VERBS:
        raise UsageError(
            f"what is to be submitted? {arguments[0] if arguments else 'nothing'} is no job",
            remedy=f"one of {', '.join(VERBS)} with its options, after --",
        )
    if any(each == "--master" or each.startswith("--master=") for each in arguments):
        raise UsageError("--master belongs to submit, before the job", remedy="write it before --")
    return ("pipeline", *arguments)


def packed(folder: Path) -> tuple[Path, Path]:
    """This package as a zip, and the script that runs it: named by their contents, made once."""
    root = _package()
    sources = [
        path
        for path in sorted(root.rglob("*"))
        if path.is_file() and "__pycache__" not in path.parts and path.suffix != ".pyc"
    ]
    digest = hashlib.sha256()
    for path in sources:
        digest.update(str(path.relative_to(root)).encode() + b"\0" + path.read_bytes())
    folder.mkdir(parents=True, exist_ok=True)
    target = folder / f"tallymark-{digest.hexdigest()[:16]}.zip"
    if not target.is_file():
        scratch = target.with_suffix(f".{os.getpid()}")
        with zipfile.ZipFile(scratch, "w", zipfile.ZIP_DEFLATED) as archive:
            for path in sources:
                archive.write(path, str(Path("tallymark") / path.relative_to(root)))
        os.replace(scratch, target)
    main = folder / "tallymark_main.py"
    if not main.is_file() or main.read_text() != _MAIN:
        main.write_text(_MAIN)
    return target, main


def spark_submit() -> Path:
    """The script of the Spark that pyspark brought, or of SPARK_HOME."""
    home = os.environ.get("SPARK_HOME")
    found = find_spec("pyspark")
    folders = (
        [Path(home)]
        if home
        else [Path(each) for each in (found.submodule_search_locations or ())]
        if found
        else []
    )
    for folder in folders:
        if (folder / "bin" / "spark-submit").is_file():
            return folder / "bin" / "spark-submit"
    if home:
        raise UsageError(
            f"SPARK_HOME is {home}, and there is no bin/spark-submit in it",
            remedy="unset it, and the Spark that Tallymark brings is used; or let it name a Spark 4.0",
        )
    raise UsageError(
        "spark-submit was not found", remedy="install Tallymark with its extra [pipeline], or set SPARK_HOME"
    )


def surroundings(java_home: Path | None) -> dict[str, str]:
    """The environment that the line runs in."""
    told = {"PYSPARK_PYTHON": sys.executable, "PYSPARK_DRIVER_PYTHON": sys.executable}
    if java_home is not None:
        told["JAVA_HOME"] = str(java_home)
    return told


def _package() -> Path:
    import tallymark

    return Path(tallymark.__file__).parent
