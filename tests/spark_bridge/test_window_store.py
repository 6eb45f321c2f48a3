"""Windows that are found by their end, with real Spark."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import parquet
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

from spark_bridge.session import STATE_STORE_PROVIDER

SPARKS_OWN = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
FAR_S = 10**6


class Counting:
    """Rows per key in windows of ten seconds, of files of (event time in s, key)."""

    def __init__(self, spark: SparkSession, folder: Path, by: Sequence[str] = ("window", "key")) -> None:
        self._folder = folder
        self._files = 0
        (folder / "in").mkdir(parents=True)
        rows = spark.readStream.schema("ts TIMESTAMP, key BIGINT").parquet(str(folder / "in"))
        windows = rows.withWatermark("ts", "0 seconds").withColumn("window", sf.window("ts", "10 seconds"))
        self._stream = (
            windows.groupBy(*by).count().select(sf.col("window.end").cast("long").alias("end"), "key", "count")
        )
        self.closed: list[tuple[int, int, int]] = []
        self.start()

    def start(self) -> None:
        writer = self._stream.writeStream.foreachBatch(self._take).outputMode("append")
        self.query = writer.option("checkpointLocation", str(self._folder / "checkpoint")).start()

    def _take(self, rows: DataFrame, batch_id: int) -> None:
        self.closed += [(row["end"], row["key"], row["count"]) for row in rows.collect()]

    def feed(self, rows: Sequence[tuple[int, int]]) -> dict[str, Any]:
        """What Spark says of the state after the last of the batches with these rows."""
        times = [datetime.fromtimestamp(at_s, UTC) for at_s, _ in rows]
        table = pa.table({"ts": pa.array(times, pa.timestamp("us", "UTC")), "key": [key for _, key in rows]})
        parquet.write_table(table, self._folder / "in" / f"{self._files}.parquet")
        self._files += 1
        self.query.processAllAvailable()
        progress = self.query.lastProgress
        assert progress is not None
        return dict(json.loads(progress.json)["stateOperators"][0])


@pytest.fixture(params=[("window", "key"), ("key", "window")])
def counting(spark: SparkSession, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Counting]:
    """``window`` may be any of the columns that rows are grouped by."""
    counting = Counting(spark, tmp_path, request.param)
    yield counting
    counting.query.stop()


def test_windows_close_in_order_and_those_that_stay_are_not_looked_at(counting: Counting) -> None:
    state = counting.feed([(at_s, key) for at_s in (25, 5, 15) for key in range(10)])
    ends = [end for end, _, _ in counting.closed]
    assert ends == [10] * 10 + [20] * 10
    assert sorted(counting.closed) == [(end, key, 1) for end in (10, 20) for key in range(10)]
    assert state["numRowsRemoved"] == 20
    assert state["customMetrics"]["rocksdbGetCount"] == 20 + 1, "one was looked at, and stayed"


def test_a_window_has_all_of_its_rows_whenever_they_came_and_closes_once(counting: Counting) -> None:
    for at_s in (1, 3, 2, 9):
        counting.feed([(at_s, 1), (at_s + 10, 2)])
    assert counting.closed == [(10, 1, 1)], "what came after the watermark was late"
    counting.feed([(35, 3)])
    assert counting.closed == [(10, 1, 1), (20, 2, 4)]
    counting.feed([(55, 4)])
    assert counting.closed == [(10, 1, 1), (20, 2, 4), (40, 3, 1)]


def test_windows_are_found_after_a_restart(counting: Counting) -> None:
    counting.feed([(at_s, at_s) for at_s in (35, 5, 25)])
    assert counting.closed == [(10, 5, 1), (30, 25, 1)]
    counting.query.stop()
    counting.start()
    counting.feed([(35, 35), (36, 36)])
    counting.query.stop()
    counting.start()
    state = counting.feed([(45, 45)])
    assert sorted(counting.closed[2:]) == [(40, 35, 2), (40, 36, 1)]
    assert state["customMetrics"]["rocksdbGetCount"] == 2 + 1


def test_a_query_that_has_begun_with_sparks_own_store_keeps_it(spark: SparkSession, tmp_path: Path) -> None:
    ours = spark.conf.get(STATE_STORE_PROVIDER)
    assert ours is not None
    spark.conf.set(STATE_STORE_PROVIDER, SPARKS_OWN)
    try:
        counting = Counting(spark, tmp_path)
        counting.feed([(5, 1), (25, 2)])
        counting.query.stop()
    finally:
        spark.conf.set(STATE_STORE_PROVIDER, ours)
    counting.start()
    counting.feed([(26, 2), (35, 3)])
    counting.query.stop()
    assert counting.closed == [(10, 1, 1), (30, 2, 2)]
