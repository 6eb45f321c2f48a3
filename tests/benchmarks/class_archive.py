"""What an engine's start and its first work cost without the archive of Java's classes, and with it.

    python -m tests.benchmarks.class_archive [--rounds 3] [--java-options=-XX:TieredStopAtLevel=1] [--json]

Each time a new process starts Spark, then a join of two streams, and runs nine batches. The two are measured in turn;
the ratio is that of the medians. `sbon prepare` makes the archive.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

from spark_bridge.class_archive import archive_file
from spark_bridge.java_runtime import find_java
from spark_bridge.session import EXTRA_JAVA_OPTIONS, start_session

FIRST_BATCHES, BATCHES = 2, 9
_JOIN = "value = other AND later BETWEEN timestamp - INTERVAL 1 MINUTE AND timestamp"


def measure(java_options: str) -> dict[str, float]:
    """In a process of its own: seconds until there is a session, until two batches are done, and until nine are."""
    with tempfile.TemporaryDirectory(prefix="sbon-start-") as folder:
        times_s = [time.monotonic()]
        spark = start_session("start", Path(folder), settings={EXTRA_JAVA_OPTIONS: java_options})
        times_s.append(time.monotonic())
        query = (
            _rows(spark)
            .join(_rows(spark).withColumnsRenamed({"timestamp": "later", "value": "other"}), sf.expr(_JOIN))
            .writeStream.foreachBatch(_compute)
            .option("checkpointLocation", f"{folder}/checkpoint")
            .start()
        )
        for batches in (FIRST_BATCHES, BATCHES):
            while (progress := query.lastProgress) is None or progress["batchId"] < batches - 1:
                time.sleep(0.01)
            times_s.append(time.monotonic())
        gateway = spark.sparkContext._gateway
        assert gateway is not None
        java_s = _processor_s(gateway.proc.pid)
        query.stop()
        spark.stop()
    steps = zip(("session_s", "first_batches_s", "more_batches_s"), times_s, times_s[1:], strict=False)
    return {**{step: after_s - before_s for step, before_s, after_s in steps}, "processor_s": java_s}


def _rows(spark: SparkSession) -> DataFrame:
    source = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 10)
    return source.load().withWatermark("timestamp", "1 second")


def _compute(rows: DataFrame, _batch_id: int) -> None:
    rows.toArrow()


def _processor_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def in_a_process(java_options: str, *, archived: bool) -> dict[str, float]:
    # Archives are looked for in the environment's folder: elsewhere there is none.
    hide = "" if archived else "import sys; sys.prefix = '/nowhere'; "
    code = f"{hide}import json; from {__spec__.name} import measure; print(json.dumps(measure({java_options!r})))"
    done = subprocess.run([sys.executable, "-c", code], check=True, stdout=subprocess.PIPE, text=True)
    figures: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return figures


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.benchmarks.class_archive", description=__doc__.splitlines()[0]
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--java-options", default="", help="of both")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    java = find_java()
    if not archive_file(java).exists():
        sys.exit("there is no archive: run `sbon prepare`")
    runs: dict[bool, list[dict[str, float]]] = {False: [], True: []}
    for _ in range(arguments.rounds):
        for with_archive, found in runs.items():
            found.append(in_a_process(arguments.java_options, archived=with_archive))
    without, archived = (_medians(found) for found in runs.values())
    report = {
        "java": java.major_version,
        **{
            step: {"without": without[step], "with": archived[step], "ratio": archived[step] / without[step]}
            for step in without
        },
    }
    print(json.dumps(_rounded(report), indent=None if arguments.json else 2))
    return 0


def _medians(runs: list[dict[str, float]]) -> dict[str, float]:
    return {step: statistics.median(run[step] for run in runs) for step in runs[0]}


def _rounded(report: Mapping[str, object]) -> dict[str, object]:
    return {
        key: {name: round(value, 2) for name, value in found.items()} if isinstance(found, dict) else found
        for key, found in report.items()
    }


if __name__ == "__main__":
    sys.exit(main())
