"""A source of Spark's own is read as soon as there is something, and then not before the next multiple of its pause."""

from __future__ import annotations

import os
import threading
import time
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pytest
from pyarrow import parquet
from pyspark.sql import SparkSession

from sbon.engine_messages import Instantiate
from sbon.fragment import FragmentKind, FragmentSpec
from sbon.streams import StreamSpec
from spark_bridge.fragment_runner import FragmentRunner, RunnerSettings
from spark_bridge.segment import body_table, decode_segment

pytestmark = pytest.mark.spark

#: The next multiple of that, by the wall clock, is far away.
CENTURY_MS = 100 * 365 * 24 * 3_600_000
TIME = pa.array([datetime(2013, 7, 1, tzinfo=UTC)], pa.timestamp("us", "UTC"))
LONG_ENOUGH_S = 1.0


def write_events(folder: Path) -> StreamSpec:
    """Two files of a row each, to be read one after the other."""
    for number in range(2):
        path = folder / f"{number}.parquet"
        parquet.write_table(pa.table({"ts": TIME, "v": pa.array([number])}), path)
        os.utime(path, (number, number))  # Spark takes the oldest first
    options = {"path": str(folder), "maxFilesPerTrigger": "1"}
    return StreamSpec("events", "parquet", "ts TIMESTAMP, v BIGINT", "ts", options)


def start(spark: SparkSession, spec: FragmentSpec, folder: Path, trigger_ms: int) -> FragmentRunner:
    command = Instantiate(spec.fragment_id, 1, "n", spec, str(folder), consumers=("c",))
    settings = RunnerSettings(trigger_ms)
    return FragmentRunner(spark, command, settings, lambda *_: None, lambda _: None, lambda: None)


def read(runner: FragmentRunner, batches: int) -> list[int]:
    """The values in the first ones."""
    found: list[bytes] = []
    while len(found) < batches:
        assert runner.runs(), runner.status().error
        found += list(runner.served().log.segments_from(len(found), 0.1, threading.Event()))
    tables = [body_table(decode_segment(segment)[1]) for segment in found[:batches]]
    return [value for table in tables if table is not None for value in table["v"].to_pylist()]


def test_after_a_batch_it_rests_and_what_is_stopped_then_goes_on_there(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "events").mkdir()
    spec = FragmentSpec(
        "q-events",
        "q",
        FragmentKind.SOURCE,
        "SELECT * FROM source",
        event_time="ts",
        stream=write_events(tmp_path / "events"),
    )
    resting = start(spark, spec, tmp_path / "fragment", CENTURY_MS)
    try:
        assert read(resting, 1) == [0]
        time.sleep(LONG_ENOUGH_S)
        assert resting.newest_batch == 0
    finally:
        resting.stop()
    going_on = start(spark, spec, tmp_path / "fragment", 0)
    try:
        assert read(going_on, 2) == [0, 1]
    finally:
        going_on.stop()
