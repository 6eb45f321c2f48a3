"""The same query in one plain Spark process, stopped and started again from its checkpoint, as one would do by hand.

The process stays: what is measured is the least that a stop and a start take. Started by the benchmark as
``python -m tests.benchmarks.migration.plain JOB.json``.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import msgspec
from pyspark.sql.streaming.query import StreamingQuery

from spark_bridge.replay_source import register_replay_source
from spark_bridge.session import start_session
from tests.benchmarks.links.plain import read
from tests.benchmarks.migration.workload import PlainJob

_POLL_S = 0.1


def main() -> None:
    job = msgspec.json.decode(Path(sys.argv[1]).read_bytes(), type=PlainJob)
    folder = Path(job.folder)
    out = folder / "out"
    spark = start_session("plain", folder / "scratch", settings=job.settings)
    register_replay_source(spark)
    for stream in job.streams:
        read(spark, stream, folder)
    writer = spark.sql(job.sql).writeStream.format("parquet").outputMode("append")
    writer = writer.option("path", str(out)).option("checkpointLocation", str(folder / "checkpoint"))

    def wait_for(query: StreamingQuery, more: int) -> None:
        """Until it has put out so many files."""
        before = len(list(out.glob("*.parquet")))
        while len(list(out.glob("*.parquet"))) < before + more:
            if not query.isActive:
                raise SystemExit(f"plain Spark has failed: {query.exception()}")
            time.sleep(_POLL_S)

    query = writer.start()
    times_s = []
    for _ in range(job.restarts):
        wait_for(query, 5)
        time.sleep(job.settle_s)
        stopped_s = time.time()
        query.stop()
        query = writer.start()
        wait_for(query, 1)
        times_s.append((stopped_s, time.time()))
    time.sleep(job.settle_s)
    query.stop()
    (folder / "restarts.json").write_text(json.dumps(times_s))


if __name__ == "__main__":
    main()
