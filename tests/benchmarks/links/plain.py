"""The same queries in one plain Spark process: no fragments, no links, Spark's own file sink.

Started by the benchmark as ``python -m tests.benchmarks.links.plain JOB.json``; runs until it is ended.
"""

from __future__ import annotations

import sys
from pathlib import Path

import msgspec
from pyspark.sql import SparkSession

from sbon.streams import StreamSpec
from spark_bridge.replay_source import REPLAY_FORMAT, register_replay_source
from spark_bridge.session import start_session
from tests.benchmarks.links.workload import PlainJob


def read(spark: SparkSession, stream: StreamSpec, folder: Path) -> None:
    """Make ``stream`` a view."""
    options = dict(stream.options)
    if stream.format == REPLAY_FORMAT:
        options |= {"event_time": stream.event_time, "folder": str(folder / "replay" / stream.name)}
    reader = spark.readStream.format(stream.format).schema(stream.schema).options(**options)
    reader.load().withWatermark(stream.event_time, "0 seconds").createOrReplaceTempView(stream.name)


def main() -> None:
    job = msgspec.json.decode(Path(sys.argv[1]).read_bytes(), type=PlainJob)
    folder = Path(job.folder)
    # Spark's own pause between two looks at its sources.
    spark = start_session("plain", folder / "scratch", settings={"spark.sql.streaming.pollingDelay": "10ms"})
    register_replay_source(spark)
    for stream in job.streams:
        read(spark, stream, folder)
    for out, sql in job.queries.items():
        writer = spark.sql(sql).writeStream.format("parquet").outputMode("append")
        writer.option("path", out).option("checkpointLocation", str(folder / "checkpoints" / Path(out).name)).start()
    spark.streams.awaitAnyTermination()


if __name__ == "__main__":
    main()
