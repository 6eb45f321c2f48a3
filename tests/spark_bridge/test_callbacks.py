"""Queries that have ended leave no connection between Java and Python behind, with real Spark."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession

from spark_bridge.callbacks import close_idle

ENDED = 6
WITHIN_S = 30.0


def run_query(spark: SparkSession, folder: Path, then: Callable[[], None] = lambda: None) -> set[threading.Thread]:
    """A query of a batch or more, and the threads on which Java called for them; ``then`` runs in a batch."""
    threads: set[threading.Thread] = set()

    def take(rows: DataFrame, batch_id: int) -> None:
        assert rows.count() >= 0
        then()
        threads.add(threading.current_thread())

    rows = spark.readStream.format("rate").load()
    query = rows.writeStream.foreachBatch(take).option("checkpointLocation", str(folder)).start()
    query.processAllAvailable()
    query.stop()
    assert threads
    return threads


def wait_for_end(threads: set[threading.Thread]) -> None:
    deadline = time.monotonic() + WITHIN_S
    for thread in threads:
        thread.join(max(0.0, deadline - time.monotonic()))


def test_java_keeps_no_connection_of_a_query_that_has_ended(spark: SparkSession, tmp_path: Path) -> None:
    threads: set[threading.Thread] = set()
    for number in range(ENDED):
        threads |= run_query(spark, tmp_path / str(number))
    assert sum(thread.is_alive() for thread in threads) == ENDED, "Java closes them by itself by now: let it"
    close_idle(spark)
    wait_for_end(threads)
    assert not any(thread.is_alive() for thread in threads)


def test_what_a_running_query_calls_over_stays(spark: SparkSession, tmp_path: Path) -> None:
    threads = run_query(spark, tmp_path / "during", then=lambda: close_idle(spark))
    close_idle(spark)
    wait_for_end(threads)
    assert not any(thread.is_alive() for thread in threads)


def test_a_query_calls_again_once_its_connection_was_closed(spark: SparkSession, tmp_path: Path) -> None:
    threads: set[threading.Thread] = set()

    def take(rows: DataFrame, batch_id: int) -> None:
        threads.add(threading.current_thread())

    rows = spark.readStream.format("rate").option("rowsPerSecond", 20).load()
    query = rows.writeStream.foreachBatch(take).option("checkpointLocation", str(tmp_path / "closed")).start()
    try:
        deadline = time.monotonic() + WITHIN_S
        while len(threads) < 2:  # each connection has its own
            close_idle(spark)
            time.sleep(0.1)
            assert time.monotonic() < deadline
            assert query.isActive, query.exception()
    finally:
        query.stop()
        close_idle(spark)
