"""Fragments on a Spark cluster beyond the daemon's host: a real standalone master and two workers.

    python -m tests.benchmarks.spark_cluster [--speedup 30000] [--json]

Three sites: the airport owns the demo's streams, the hub has room for operators, and its engine hands all tasks to a
standalone cluster whose workers have addresses of their own (127.0.0.2 and 127.0.0.3); the office owns the sink. The
demo's query starts at the hub, its join moves to the office's own Spark and back into the cluster. At the end the
result is compared with plain Spark, and the tasks that each worker ran are counted from Spark's log of events.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

import pyspark
import trio

from daemon.demo.check import compare_with_reference, read_rows
from daemon.demo.scenario import FLIGHTS_SCHEMA, HOLD_AT, QUERY, WEATHER_SCHEMA, Scenario, free_ports, replay
from sbon.errors import SbonError
from sbon.streams import SinkSpec
from spark_bridge.java_runtime import prepare_java
from tests.end_to_end.cluster import Cluster, Role, make_cluster_scenario, running_cluster

MASTER_HOST = "127.0.0.1"
WORKER_HOSTS = ("127.0.0.2", "127.0.0.3")
_UP_WITHIN_S = 60.0


@dataclass(frozen=True, slots=True)
class Report:
    """``difference`` is None if the result is right; ``tasks``: how many ended well, by host."""

    rows: int
    difference: str | None
    tasks: dict[str, int]


@contextmanager
def standalone_cluster(folder: Path) -> Iterator[str]:
    """A master and its workers, one core each, from the PySpark distribution; yields the master's address."""
    folder.mkdir()
    prepare_java(folder)
    spark_class = str(Path(str(pyspark.__file__)).parent / "bin" / "spark-class")
    (port,) = free_ports(1)
    master = f"spark://{MASTER_HOST}:{port}"
    deploy = "org.apache.spark.deploy"
    room = ("--cores", "1", "--memory", "768m")
    commands = [
        (f"{deploy}.master.Master", "--host", MASTER_HOST, "--port", str(port), "--webui-port", "0"),
        *(
            (f"{deploy}.worker.Worker", "--host", host, "--webui-port", "0", *room, "--work-dir", folder / host, master)
            for host in WORKER_HOSTS
        ),
    ]
    environment = {**os.environ, "PYSPARK_PYTHON": sys.executable, "SPARK_DAEMON_MEMORY": "256m"}
    log = folder / "log"
    with log.open("ab") as output:
        processes = [
            subprocess.Popen([spark_class, *command], stdout=output, stderr=output, env=environment)
            for command in commands
        ]
    try:
        deadline = time.monotonic() + _UP_WITHIN_S
        while log.read_text().count("Successfully registered with master") < len(WORKER_HOSTS):
            if time.monotonic() > deadline or any(process.poll() is not None for process in processes):
                raise SbonError(f"the standalone cluster did not come up:\n{log.read_text()[-2000:]}")
            time.sleep(0.2)
        yield master
    finally:
        for process in reversed(processes):
            process.terminate()
        for process in processes:
            process.wait()


def make_scenario(folder: Path, speedup: float) -> Scenario:
    # The last week waits for the moves.
    timing = {"speedup": f"{speedup:g}", "hold_at": HOLD_AT, "hold_until": str(folder / "gate")}
    streams = (
        replay("flights", FLIGHTS_SCHEMA, timing, rate_bytes_per_s=16_000, row_bytes=40),
        replay("weather", WEATHER_SCHEMA, timing, rate_bytes_per_s=1_500, row_bytes=48),
    )
    sink = SinkSpec("delays", "parquet", {"path": str(folder / "result")})
    roles = (Role("office", sinks=(sink,)), Role("hub"), Role("airport", accepts_operators=False, streams=streams))
    return make_cluster_scenario(folder, roles, ((0.0, 60.0, 60.0), (60.0, 0.0, 20.0), (60.0, 20.0, 0.0)))


def tasks_by_host(events: Path) -> Counter[str]:
    """How many tasks ended well at each host, as Spark's log of events says."""
    tasks: Counter[str] = Counter()
    for path in events.rglob("*"):
        if path.is_file() and not path.name.startswith((".", "appstatus")):
            for line in path.read_text().splitlines():
                event = json.loads(line)
                if event["Event"] == "SparkListenerTaskEnd" and event["Task End Reason"]["Reason"] == "Success":
                    tasks[event["Task Info"]["Host"]] += 1
    return tasks


async def run(folder: Path, speedup: float, master: str) -> Report:
    scenario = make_scenario(folder, speedup)
    events = folder / "events"
    events.mkdir()
    hub = {
        "master": master,
        "spark": {
            "spark.executor.memory": "512m",
            "spark.eventLog.enabled": "true",
            "spark.eventLog.compress": "false",
            "spark.eventLog.dir": events.as_uri(),
        },
    }
    started_s = time.monotonic()

    def say(what: str) -> None:
        print(f"{time.monotonic() - started_s:6.1f} s  {what}", file=sys.stderr, flush=True)

    async with running_cluster(scenario, {"hub": hub}) as cluster:
        query_id = await cluster.submit(QUERY)
        operators = (await cluster.operators(query_id)).values()
        say("runs: " + ", ".join(f"{operator.kind} at {operator.node}" for operator in operators))
        join = next(operator for operator in operators if operator.kind == "join")
        await move_to_and_fro(cluster, query_id, join.fragment_id, say)
        await cluster.wait_until_finished(query_id)
        say("finished")
    verdict = await compare_with_reference(scenario.result, QUERY, scenario.streams, folder)
    return Report(verdict.rows, verdict.difference, dict(tasks_by_host(events)))


async def move_to_and_fro(cluster: Cluster, query_id: str, fragment_id: str, say: Callable[[str], None]) -> None:
    """To the office when there are results, and back to the hub when there are more, or none come before the gate."""
    for target, patience_s in (("office", math.inf), ("hub", 20.0)):
        before = len(read_rows(cluster.scenario.result))
        with trio.move_on_after(patience_s):
            while len(read_rows(cluster.scenario.result)) == before:
                await cluster.check_runs(query_id)
                await trio.sleep(0.5)
        await cluster.migrate(fragment_id, target)
        say(f"{fragment_id} runs at {target}")
    cluster.scenario.gate.touch()


def main() -> int:
    """0 if the result is right, and every worker had its share."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--speedup", type=float, default=30_000.0, help="event seconds per second")
    parser.add_argument("--json", action="store_true", help="print one line")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="sbon-cluster-") as name:
        folder = Path(name)
        with standalone_cluster(folder / "cluster") as master:
            report = trio.run(run, folder, arguments.speedup, master)
    print(json.dumps(asdict(report), indent=None if arguments.json else 2))
    return 0 if report.difference is None and set(report.tasks) == set(WORKER_HOSTS) else 1


if __name__ == "__main__":
    sys.exit(main())
