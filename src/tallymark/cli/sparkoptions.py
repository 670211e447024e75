"""The options that every Spark job takes."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

MasterOption = Annotated[
    str,
    typer.Option(
        "--master",
        metavar="URL",
        envvar="TALLYMARK_SPARK_MASTER",
        help="Where Spark runs: local[*], spark://host:port, yarn, k8s://…",
    ),
]
ConfOption = Annotated[
    list[str], typer.Option("--conf", metavar="NAME=VALUE", help="A setting of Spark's; several times.")
]
SparkVerbose = Annotated[bool, typer.Option("--verbose", help="Show what Spark's JVM says.")]
ArchiveOption = Annotated[
    Path | None,
    typer.Option("--archive", metavar="DIR", envvar="TALLYMARK_ARCHIVE", help="The archive's folder."),
]
# A job that ends by itself, and one that goes on until it is told to stop.
AvailableNow = Annotated[
    bool, typer.Option("--available-now", help="Take what is there now, then end: for a scheduler.")
]
PatienceOption = Annotated[
    float, typer.Option("--patience", min=0.0, help="Seconds to wait for Kafka or a database that is away.")
]
MetricsPort = Annotated[
    int | None, typer.Option("--metrics-port", help="Serve /metrics, /healthz and /readyz on loopback.")
]
