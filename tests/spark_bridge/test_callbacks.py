"""Queries that have ended leave no connection between Java and Python behind, with real Spark."""

from __future__ import annotations

import time
from contextlib import suppress
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession

from spark_bridge.callbacks import let_go_of_idle

ENDED = 6
COLLECTIONS = 15


def run_query(spark: SparkSession, folder: Path) -> None:
    batches: list[int] = []

    def take(rows: DataFrame, batch_id: int) -> None:
        batches.append(rows.count())

    rows = spark.readStream.format("rate").load()
    query = rows.writeStream.foreachBatch(take).option("checkpointLocation", str(folder)).start()
    query.processAllAvailable()
    query.stop()
    assert batches


def connections() -> int:
    """Of this process."""
    targets = []
    for file in Path("/proc/self/fd").iterdir():
        with suppress(OSError):
            targets.append(str(file.readlink()))
    return sum(target.startswith("socket:") for target in targets)


def left(spark: SparkSession) -> int:
    """Connections that are there once Java has collected its garbage, also that of tests before."""
    least = connections()
    for _ in range(COLLECTIONS):
        spark._jvm.System.gc()  # type: ignore[union-attr]
        time.sleep(0.1)
        least = min(least, connections())
    return least


def test_java_keeps_no_connection_of_a_query_that_has_ended(spark: SparkSession, tmp_path: Path) -> None:
    run_query(spark, tmp_path / "first")
    let_go_of_idle(spark)
    before = left(spark)
    for number in range(ENDED):
        run_query(spark, tmp_path / str(number))
    assert left(spark) >= before + ENDED, "Java closes them by itself by now: nothing need be done about it"
    let_go_of_idle(spark)
    assert left(spark) <= before
    run_query(spark, tmp_path / "next")
