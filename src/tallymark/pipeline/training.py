"""A session that uses what our jobs use of Spark, so that Java can archive the classes: local/sparkclasses.py.

    python -m tallymark.pipeline.training PATH

Java writes the archive when the session's JVM ends. Classes of the connectors are not in it: Spark loads those itself.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from tallymark.pipeline.session import SparkPlan, started


def train(archive: Path) -> None:
    from pyspark.sql import DataFrame, Window
    from pyspark.sql import functions as F

    plan = SparkPlan(
        "training", "local[2]", jvm_options=(f"-XX:ArchiveClassesAtExit={archive}", "-Xlog:cds*=off")
    )
    with tempfile.TemporaryDirectory() as folder, started(plan) as spark:
        rows = spark.range(1000).select(
            (F.col("id") % 7).alias("key"), F.sha2(F.col("id").cast("string"), 256).alias("digest"), "id"
        )
        rows.repartition(2).write.parquet(f"{folder}/rows")
        read = spark.read.parquet(f"{folder}/rows")
        before = Window.partitionBy("key").orderBy("id").rowsBetween(Window.unboundedPreceding, -1)
        ranked = read.withColumn("highest", F.max("id").over(before)).union(
            rows.withColumn("highest", F.lit(None))
        )
        ranked.groupBy("key").agg(F.count("*"), F.collect_set("digest"), F.sum("id")).persist().collect()

        def take(batch: DataFrame, _number: int) -> None:
            batch.foreachPartition(lambda _rows: None)

        query = (
            spark.readStream.schema(read.schema)
            .parquet(f"{folder}/rows")
            .writeStream.trigger(availableNow=True)
            .option("checkpointLocation", f"{folder}/checkpoint")
            .foreachBatch(take)
            .start()
        )
        query.awaitTermination()


if __name__ == "__main__":
    train(Path(sys.argv[1]))
