"""How batches of different sizes are run, and what Spark has to carry in each of them. With real Spark."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import msgspec
import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from sbon.engine_messages import Instantiate
from sbon.fragment import FragmentKind, FragmentSpec, PortSpec, WatermarkSteps
from spark_bridge import fragment_input
from spark_bridge.fragment_runner import FragmentRunner, RunnerSettings
from spark_bridge.offset_log import planned_batch
from spark_bridge.port_inbox import Segment
from spark_bridge.segment import body_table, decode_segment, encode_segment
from spark_bridge.small_batches import SMALL_BYTES, BatchSizes

FACTORY_MODE = "spark.sql.codegen.factoryMode"
PARALLELISM = "spark.sql.leafNodeDefaultParallelism"
SQL = "SELECT window.start AS start, count(*) AS n, max(text) AS last FROM in0 GROUP BY window(ts, '1 second')"
SECOND_MS = 1000
SUM = FragmentSpec(
    "q-sum",
    "q",
    FragmentKind.AGGREGATE,
    SQL,
    (PortSpec("in0", ("q-a",)),),
    event_time="start",
    watermark_lag_ms=SECOND_MS,
    stateful=True,
)
PATIENCE_S = 120.0
FEW, MANY = 10, SMALL_BYTES // 20


def segment(batch_id: int, rows: int) -> Segment:
    """All of a second's rows, and the word that it is over and a bit more."""
    from_ms = batch_id * SECOND_MS
    first_us, over_ms = (from_ms + 10) * 1000, from_ms + SECOND_MS + 5
    table = pa.table(
        {
            "ts": pa.array([first_us + number for number in range(rows)]).cast(pa.timestamp("us", "UTC")),
            "text": pa.array([f"{number:010}" for number in range(rows)]),
        }
    )
    _, whole = encode_segment("q-a", 1, batch_id, table, event_time="ts", watermark_ms=over_ms, end_of_stream=False)
    header, body = decode_segment(whole)
    return Segment("q-a", 1, batch_id, rows, over_ms, body, header.newest_ms)


def test_a_small_batch_is_a_part_of_its_plan_and_interpreted_and_a_large_one_compiled(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[tuple[int, str, str]] = []
    jvm: Any = spark._jvm

    class Watched(BatchSizes):
        def stream(self, rows: pa.Table, schema: StructType) -> Any:
            made = super().stream(rows, schema)
            mode = jvm.org.apache.spark.sql.classic.SparkSession.active().conf().get(FACTORY_MODE)
            seen.append((rows.num_rows, mode, made.logicalPlan().nodeName()))
            return made

    monkeypatch.setattr(fragment_input, "BatchSizes", Watched)
    results = run(spark, tmp_path, [FEW, MANY, FEW])
    # The control row comes on top. Windows come out once what follows them is there.
    few = (FEW + 1, "NO_CODEGEN", "LocalRelation")
    assert seen == [few, (MANY + 1, "FALLBACK", "LogicalRDD"), few]
    assert results == [(0, FEW, f"{FEW - 1:010}"), (1, MANY, f"{MANY - 1:010}"), (2, FEW, f"{FEW - 1:010}")]


def test_what_the_user_has_set_stays_as_it_is() -> None:
    spark = MagicMock()
    spark.sparkContext.getConf().contains = {FACTORY_MODE}.__contains__
    sizes = BatchSizes(spark)
    session = sizes._session = MagicMock()
    for rows in (FEW, MANY):
        sizes.begins()
        sizes.stream(pa.table({"text": ["0123456789012345678901234567890"] * rows}), StructType())
    session.conf.set.assert_called_once_with(PARALLELISM, "1")
    session.conf.unset.assert_called_once_with(PARALLELISM)


@pytest.mark.parametrize("is_set", [False, True])
def test_who_has_set_when_rows_are_local_gets_none_in_the_plan(is_set: bool) -> None:
    spark = MagicMock()
    spark.sparkContext.getConf().contains = lambda name: is_set and name.endswith(".localRelationThreshold")
    sizes = BatchSizes(spark)
    session = sizes._session = MagicMock()
    sizes.stream(pa.table({"text": ["few"]}), StructType())
    assert session._jsparkSession.internalCreateDataFrame.called is is_set


def test_any_rows_may_be_in_the_plan(spark: SparkSession) -> None:
    frame = spark.sql("SELECT TIMESTAMP'2026-01-01' t, array(1, NULL) a, named_struct('x', 'y') s, X'00ff' b")
    rows = frame.toArrow()
    sizes = BatchSizes(spark)
    sizes._session = spark.newSession()  # what is set for small batches is not to be left to other tests
    for some in (rows, rows.slice(1), pa.concat_tables([rows, rows])):
        made = sizes.stream(some, frame.schema)
        assert made.isStreaming()
        assert made.logicalPlan().nodeName() == "LocalRelation"
        still = made.logicalPlan().copy(made.logicalPlan().output(), made.logicalPlan().data(), False, sizes._none)
        assert DataFrame(sizes._datasets.ofRows(spark._jsparkSession, still), spark).toArrow() == some.combine_chunks()


def test_tasks_are_not_told_where_settings_are_from(spark: SparkSession, tmp_path: Path) -> None:
    run(spark, tmp_path, [FEW])  # by then all that brings settings of its own has come
    settings: Any = spark._jsc.hadoopConfiguration()
    names = list(settings.getValByRegex(".*").keySet())
    assert not [name for name in names if name.startswith("yarn.")]
    assert "fs.defaultFS" in names, "all others are there"
    assert [name for name in names if settings.getPropertySources(name)] == ["hive.metastore.warehouse.dir"]


@pytest.mark.parametrize("steps", [None, WatermarkSteps(10 * SECOND_MS)])
def test_an_aggregate_has_no_batch_without_input_unless_windows_close(
    spark: SparkSession, tmp_path: Path, steps: WatermarkSteps | None
) -> None:
    seconds = 12
    spec = msgspec.structs.replace(SUM, sql=SQL.replace("1 second", "10 seconds"), watermark_lag_ms=10 * SECOND_MS)
    runner = started(spark, tmp_path, msgspec.structs.replace(spec, watermark_steps=steps))
    try:
        for batch_id in range(seconds):
            feed(runner, segment(batch_id, FEW))
            wait_until(runner, lambda so_far=batch_id: segments_read(runner) > so_far)  # type: ignore[misc]
            if steps is None:  # one without input follows, unless more has come
                wait_until(runner, lambda so_far=batch_id: runner.newest_batch > 2 * so_far)  # type: ignore[misc]
            elif (batch_id + 1) * SECOND_MS == steps.every_ms:  # a window has closed: here one follows, too
                wait_until(runner, lambda so_far=batch_id: runner.newest_batch > so_far)  # type: ignore[misc]
        closed = list(windows(runner))
        assert closed == [(0, 10 * FEW, f"{FEW - 1:010}")]
        if steps is None:
            wait_until(runner, lambda: runner.status().watermark_ms == (seconds - 10) * SECOND_MS + 5)
        else:
            assert runner.newest_batch == seconds, "one in which a window has closed"
            assert runner.status().watermark_ms == 10 * SECOND_MS
    finally:
        runner.stop()


def run(spark: SparkSession, folder: Path, batches: list[int]) -> list[tuple[int, int, str]]:
    """Feed so many rows a second to an aggregate, one batch after the other: what comes out."""
    runner = started(spark, folder, SUM)
    try:
        for batch_id, rows in enumerate(batches):
            feed(runner, segment(batch_id, rows))
            wait_until(runner, lambda so_far=batch_id: runner.status().output_rows > so_far)  # type: ignore[misc]
        return sorted(windows(runner))
    finally:
        runner.stop()


def started(spark: SparkSession, folder: Path, spec: FragmentSpec) -> FragmentRunner:
    schema = spark.sql("SELECT CAST(NULL AS TIMESTAMP) ts, CAST(NULL AS STRING) text").schema
    described = json.dumps({"schema": schema.jsonValue(), "event_time": "ts"})
    start = Instantiate(spec.fragment_id, 1, "test", spec, str(folder / "sum"), (described,), ("reader",))
    return FragmentRunner(spark, start, RunnerSettings(0), lambda *_: None, lambda _: None, lambda: None)


def segments_read(runner: FragmentRunner) -> int:
    """By the batches that are over."""
    newest = runner.newest_batch
    return planned_batch(runner._checkpoint, newest).port_ends()["in0"] if newest >= 0 else 0


def feed(runner: FragmentRunner, segment: Segment) -> None:
    runner._ports.inboxes["in0"].append(segment)
    runner._arrivals.tell(1)


def wait_until(runner: FragmentRunner, holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not holds():
        assert runner.runs(), runner.status().error
        assert time.monotonic() < deadline
        time.sleep(0.05)


def windows(runner: FragmentRunner) -> Iterator[tuple[int, int, str]]:
    """Start in s, count and last text of each that came out."""
    for data in runner._log.segments_from(0, 0.0, threading.Event()):
        header, body = decode_segment(data)
        if (table := body_table(body)) is not None:
            for row in table.to_pylist():
                yield int(row["start"].timestamp()), row["n"], row["last"]
        if header.batch_id == runner.newest_batch:
            break
