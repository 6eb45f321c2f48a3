"""Time without output when a stateful fragment moves between two real daemons with real engines.

    python -m tests.benchmarks.migration [--moves 20] [--state-rows 10000] [--json]

A join has ``--state-rows`` rows of 100 bytes in its state, and puts out a row for each of a trickle, five a second. It
moves to and fro. *Gap* is the longest time between two files of the sink around a move, less the median of such times
while nothing moves; *downtime* what the daemons say, from the stop until the first batch elsewhere.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import pyarrow as pa
import trio
from pyarrow import parquet

from daemon.control.client import ControlClient
from daemon.demo.scenario import Scenario
from sbon.streams import SinkSpec, StreamSpec
from tests.benchmarks.links.workload import SCHEMA, START, rows
from tests.end_to_end.cluster import Cluster, Role, make_cluster_scenario, running_cluster

SQL = (
    "INSERT INTO out SELECT l.ts AS ts, l.v AS v, r.text AS text FROM lefts l JOIN rights r "
    "ON l.v = r.v AND r.ts BETWEEN l.ts - INTERVAL 1 DAY AND l.ts"
)
TRICKLE = timedelta(milliseconds=200)
_HOUR_S = 3600
_SETTLE_S = 10.0


def make_scenario(folder: Path, state_rows: int) -> Scenario:
    """The trickle lasts for an hour; the rows that make the state come at once, and no more follow."""
    state = rows(state_rows, timedelta(0))
    times = [int((START.timestamp() + number * TRICKLE.total_seconds()) * 1e6) for number in range(_HOUR_S * 5)]
    trickle = pa.table(
        {
            "ts": pa.array(times).cast(pa.timestamp("us", "UTC")),
            "v": pa.array([number % state_rows for number in range(len(times))], pa.int64()),
            "text": pa.array([""] * len(times)),
        }
    )
    parquet.write_table(trickle, folder / "lefts.parquet")
    end = rows(1, timedelta(0)).set_column(0, "ts", pa.array([times[-1]]).cast(pa.timestamp("us", "UTC")))
    parquet.write_table(pa.concat_tables([state, end]), folder / "rights.parquet")
    streams = tuple(
        StreamSpec(name, "replay", SCHEMA, "ts", {"path": str(folder / f"{name}.parquet")})
        for name in ("lefts", "rights")
    )
    sink = SinkSpec("out", "parquet", {"path": str(folder / "out")})
    roles = (Role("office", sinks=(sink,)), Role("field", accepts_operators=False, streams=streams), Role("hub"))
    return make_cluster_scenario(folder, roles, ((0.0, 20.0, 20.0), (20.0, 0.0, 20.0), (20.0, 20.0, 0.0)))


def file_times_s(out: Path) -> list[float]:
    return sorted(path.stat().st_mtime for path in out.glob("*.parquet"))


def longest_gap_s(times_s: Sequence[float], began_s: float, ended_s: float) -> float:
    """Between two files, of which the later came after the begin and the earlier before the end."""
    pairs = itertools.pairwise(times_s)
    return max(later - earlier for earlier, later in pairs if later > began_s and earlier < ended_s)


@dataclass(frozen=True, slots=True)
class Move:
    began_s: float
    ended_s: float
    fields: dict[str, object]


async def move(cluster: Cluster, fragment_id: str, source: str, target: str) -> Move:
    began_s = time.time()
    await cluster.migrate(fragment_id, target)
    ended_s = time.time()
    fields: dict[str, object] = {}
    async with ControlClient.open(cluster.scenario.site(source).socket) as client:
        async for event in client.watch(follow=False):
            if event.kind == "migrated":
                fields = dict(event.fields)
    return Move(began_s, ended_s, fields)


async def run(folder: Path, moves: int, state_rows: int) -> dict[str, object]:
    done: list[Move] = []
    async with running_cluster(make_scenario(folder, state_rows)) as cluster:
        query_id = await cluster.submit(SQL)
        while len(file_times_s(folder / "out")) < 10:
            await trio.sleep(0.5)
        join = next(operator for operator in (await cluster.operators(query_id)).values() if operator.kind == "join")
        at, other = join.node, "office" if join.node == "hub" else "hub"
        for _ in range(moves):
            await trio.sleep(_SETTLE_S)
            done.append(await move(cluster, join.fragment_id, at, other))
            at, other = other, at
            print(json.dumps(done[-1].fields), file=sys.stderr, flush=True)
        await trio.sleep(_SETTLE_S)
        times_s = file_times_s(folder / "out")
        await cluster.cancel(query_id)
    rest_s = statistics.median(
        later - earlier
        for earlier, later in itertools.pairwise(times_s)
        if not any(later > one.began_s and earlier < one.ended_s for one in done)
    )
    gaps_ms = [(longest_gap_s(times_s, one.began_s, one.ended_s) - rest_s) * 1000.0 for one in done]
    downtimes_ms = [float(str(one.fields["downtime_ms"])) for one in done]
    return {
        "moves": moves,
        "state_bytes": done[-1].fields["state_bytes"],
        "files_apart_ms": round(rest_s * 1000.0),
        "gap_ms": summary(gaps_ms),
        "downtime_ms": summary(downtimes_ms),
        "steps_s": done[-1].fields["steps_s"],
    }


def summary(values: Sequence[float]) -> dict[str, int]:
    ordered = sorted(values)
    return {
        "first": round(values[0]),
        "median": round(statistics.median(ordered)),
        "p95": round(ordered[min(len(ordered) - 1, int(0.95 * len(ordered)))]),
    }


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.migration", description=__doc__.splitlines()[0])
    parser.add_argument("--moves", type=int, default=20)
    parser.add_argument("--state-rows", type=int, default=10_000)
    parser.add_argument("--json", action="store_true", help="print one line")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="sbon-moves-") as folder:
        report = trio.run(run, Path(folder), arguments.moves, arguments.state_rows)
    print(json.dumps(report, indent=None if arguments.json else 2))
    return 0


if __name__ == "__main__":
    sys.exit(main())
