"""Many small rows in a join's state: what a batch costs, and a start that replays what has changed.

    python -m tests.benchmarks.changelogs [--rows 5000] [--batches 85] [--starts 3] [--json]

One Spark process with an engine's settings joins two streams of ``--rows`` rows per batch, which stay for twenty
batches. After ``--batches`` it is stopped and started again: the last snapshot was made with the 50th, and what has
changed since is replayed. Once as engines do it (``uncounted``), and once with the rows of the state counted, which is
Spark's default: that looks each key up before it is written.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from spark_bridge.session import ROW_COUNTS, start_session

_JOIN = (
    "SELECT a.timestamp AS ts, a.value AS value FROM a JOIN b ON a.value = b.value "
    "AND a.timestamp BETWEEN b.timestamp - INTERVAL 20 SECONDS AND b.timestamp + INTERVAL 20 SECONDS"
)
_POLL_S = 0.02
#: Batches until the code is compiled.
_WARM = 10


def measure(folder: Path, rows: int, batches: int, starts: int, *, counted: bool) -> dict[str, float]:
    spark = start_session("changelogs", folder / "scratch", settings={ROW_COUNTS: str(counted).lower()})
    try:
        for name in ("a", "b"):
            _stream(spark, rows).createOrReplaceTempView(name)
        joined = spark.sql(_JOIN)
        query = _start(joined, folder)
        _wait_for(query, _WARM)
        began_s = time.monotonic()
        _wait_for(query, batches)
        batch_s = (time.monotonic() - began_s) / (batches - _WARM)
        query.stop()
        started_s = []
        for number in range(starts):
            began_s = time.monotonic()
            query = _start(joined, folder)
            _wait_for(query, batches + number + 1)
            started_s.append(time.monotonic() - began_s)
            query.stop()
    finally:
        spark.stop()
    return {"batch_s": round(batch_s, 2), "start_s": round(statistics.median(started_s), 2)}


def _stream(spark: SparkSession, rows: int) -> DataFrame:
    """A second of event time, and ``rows`` rows, in each batch."""
    reader = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", rows).option("numPartitions", 1)
    return reader.option("advanceMillisPerBatch", 1000).load().withWatermark("timestamp", "0 seconds")


def _start(joined: DataFrame, folder: Path) -> StreamingQuery:
    writer = joined.writeStream.format("noop").outputMode("append")
    return writer.option("checkpointLocation", str(folder / "checkpoint")).trigger(processingTime="0 seconds").start()


def _wait_for(query: StreamingQuery, batch_id: int) -> None:
    while (progress := query.lastProgress) is None or progress["batchId"] < batch_id:
        if not query.isActive:
            raise SystemExit(f"the query has failed: {query.exception()}")
        time.sleep(_POLL_S)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.changelogs", description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=5000, help="of each of the two streams in a batch")
    parser.add_argument("--batches", type=int, default=85)
    parser.add_argument("--starts", type=int, default=3)
    parser.add_argument("--json", action="store_true", help="print one line")
    arguments = parser.parse_args()
    report = {}
    for name, counted in (("uncounted", False), ("counted", True)):
        with tempfile.TemporaryDirectory(prefix="sbon-changelogs-") as folder:
            found = measure(Path(folder), arguments.rows, arguments.batches, arguments.starts, counted=counted)
        report[name] = found
    report["ratio"] = {key: round(report["counted"][key] / report["uncounted"][key], 1) for key in report["counted"]}
    print(json.dumps(report, indent=None if arguments.json else 2))
    return 0


if __name__ == "__main__":
    sys.exit(main())
