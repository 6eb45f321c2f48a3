from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from spark_bridge.source_batch import read_source

pytestmark = pytest.mark.spark


def at(second: int) -> datetime:
    return datetime(2026, 1, 1, 0, 0, second, tzinfo=UTC)


def ms(second: int) -> int:
    return int(at(second).timestamp() * 1000)


def batch(spark: SparkSession, *rows: tuple[datetime | None, int]) -> DataFrame:
    return spark.createDataFrame(list(rows), "ts timestamp, v int")


def test_late_rows_are_counted_and_left_out_and_the_newest_time_is_told(spark: SparkSession) -> None:
    rows = batch(spark, (at(3), 1), (at(5), 2), (at(9), 3), (None, 4), (at(4), 5))
    read = read_source(rows, "ts", ms(4), "SELECT v FROM source WHERE v <> 3")
    assert read.table.to_pydict() == {"v": [2, 5]}, "a row at the watermark is in time"
    assert (read.rows, read.late_rows, read.newest_us) == (5, 2, ms(9) * 1000)
    first = read_source(rows, "ts", None, "SELECT v FROM source")
    assert first.table.to_pydict() == {"v": [1, 2, 3, 5]}
    assert first.late_rows == 1


def test_rows_are_counted_even_if_the_query_reads_none(spark: SparkSession) -> None:
    rows = batch(spark, (at(3), 1), (at(5), 2))
    read = read_source(rows, "ts", ms(4), "SELECT v FROM source WHERE 1 = 0")
    assert read.table.to_pydict() == {"v": []}
    assert (read.rows, read.late_rows, read.newest_us) == (2, 1, ms(5) * 1000)
    none = read_source(batch(spark), "ts", ms(4), "SELECT v FROM source")
    assert (none.table.num_rows, none.rows, none.late_rows, none.newest_us) == (0, 0, 0, None)


def test_another_watermark_needs_no_other_code(spark: SparkSession) -> None:
    jvm: Any = spark._jvm
    compiled = jvm.org.apache.spark.metrics.source.CodegenMetrics.METRIC_COMPILATION_TIME()

    def read(second: int) -> int:
        rows = spark.range(10).selectExpr("timestamp_seconds(id) AS ts", "id AS v")
        read_source(rows, "ts", second * 1000, "SELECT ts, v FROM source WHERE v > 1")
        return int(compiled.getCount())

    assert read(1) > 0
    known = read(2)
    assert [read(second) for second in range(3, 6)] == [known] * 3
