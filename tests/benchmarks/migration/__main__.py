"""Time without output when a stateful fragment moves between two real daemons with real engines.

    python -m tests.benchmarks.migration [--kinds join aggregate] [--state-mb 1 100] [--moves 20] [--plain 5] [--json]

A join, or a windowed aggregate, keeps ``--state-mb`` of rows of 1,000 bytes, and puts out a row for each of a trickle,
five a second. It moves to and fro; a *twin* with streams and state of its own stays. It runs on the same engines once
the moves are over, since two queries would take all of two cores; or beside them (``--twin beside``). *Gap* is the
longest time between two files of the sink around a move, less the median of such times at the twin; *downtime* what the
daemons say, from the stop until the first batch elsewhere. *Plain*: the same gap where one plain Spark process stops
the query and starts it again from its checkpoint, in the same session, ``--plain`` times; it is measured on its own.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec
import trio

from daemon.control.client import ControlClient
from daemon.control.messages import OperatorInfo
from daemon.demo.scenario import Scenario
from sbon.streams import SinkSpec
from tests.benchmarks.migration.workload import HEAP_STORE, QUERIES, STATE_ROW_BYTES, PlainJob, streams
from tests.end_to_end.cluster import Cluster, Role, make_cluster_scenario, running_cluster

#: It has settled after so long, and so many results.
_SETTLE_S = 6.0
_SETTLE_FILES = 4
#: A twin that runs on its own is looked at for so long.
_TWIN_S = 40.0
#: Beyond that there is more on its way than a trickle.
_TRICKLE_ROWS_PER_S = 20.0
#: A new state is at its replica within so long; a move before would have to take all of it along.
_REPLICA_MB_PER_S = 25.0
MB = 1_000_000
#: Of plain Spark, which keeps its state there: two versions of it, and what a checkpoint takes.
_HEAP_FOR_STATE = 8.0
_RTT_MS = ((0.0, 20.0, 20.0), (20.0, 0.0, 20.0), (20.0, 20.0, 0.0))


@dataclass(frozen=True, slots=True)
class Settings:
    kind: str
    state_mb: float
    moves: int
    plain: int
    twin_beside: bool
    memory_mb: int
    spark: dict[str, str]


def file_times_s(out: Path) -> list[float]:
    return sorted(path.stat().st_mtime for path in out.glob("*.parquet"))


def longest_gap_s(times_s: Sequence[float], began_s: float, ended_s: float) -> float:
    """Between two files, of which the later came after the begin and the earlier before the end."""
    pairs = itertools.pairwise(times_s)
    return max(later - earlier for earlier, later in pairs if later > began_s and earlier < ended_s)


def usual_gap_s(times_s: Sequence[float]) -> float:
    return statistics.median(later - earlier for earlier, later in itertools.pairwise(times_s))


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
    print(json.dumps(fields), file=sys.stderr, flush=True)
    return Move(began_s, ended_s, fields)


#: Prefixes of the streams and sinks of each query: the one that moves, and its twin.
_MOVING, _TWIN = "", "twin_"


def make_scenario(folder: Path, settings: Settings) -> Scenario:
    names = (_MOVING, _TWIN)
    found = [streams(folder, settings.kind, int(settings.state_mb * MB), name) for name in names]
    sinks = tuple(SinkSpec(f"{name}out", "parquet", {"path": str(folder / f"{name}out")}) for name in names)
    field = Role("field", accepts_operators=False, streams=tuple(itertools.chain.from_iterable(found)))
    return make_cluster_scenario(folder, (Role("office", sinks=sinks), field, Role("hub")), _RTT_MS)


async def submit(cluster: Cluster, name: str, settings: Settings) -> str:
    text = QUERIES[settings.kind].format(lefts=f"{name}lefts", rights=f"{name}rights")
    return await cluster.submit(f"INSERT INTO {name}out {text}")


async def until_it_has(cluster: Cluster, out: Path, query_id: str, settings: Settings) -> OperatorInfo:
    """Until all of the state is there, nothing but the trickle comes, and results do; what moves."""
    while True:
        operators = await cluster.operators(query_id)
        found = next(operator for operator in operators.values() if operator.kind == settings.kind)
        sent_rows = sum(operator.output_rows for operator in operators.values() if operator.kind == "source")
        is_sent = sent_rows >= settings.state_mb * MB / STATE_ROW_BYTES
        has_it = is_sent and found.state_bytes >= settings.state_mb * MB * 0.5 and len(file_times_s(out)) >= 10
        if has_it and found.input_rate_rows_per_s < _TRICKLE_ROWS_PER_S:
            await trio.sleep(settings.state_mb / _REPLICA_MB_PER_S)
            return found
        await trio.sleep(0.5)


async def until_it_has_settled(out: Path) -> None:
    from_s = time.time()
    await trio.sleep(_SETTLE_S)
    while sum(at_s > from_s for at_s in file_times_s(out)) < _SETTLE_FILES:
        await trio.sleep(0.1)


async def run_moves(folder: Path, settings: Settings) -> dict[str, object]:
    done: list[Move] = []
    engine = {"trigger_ms": 500, "memory_mb": settings.memory_mb, "spark": settings.spark}
    scenario = make_scenario(folder, settings)
    out, twin_out = folder / f"{_MOVING}out", folder / f"{_TWIN}out"
    async with running_cluster(scenario, {site.name: engine for site in scenario.sites}) as cluster:
        query_id = await submit(cluster, _MOVING, settings)
        twin_id = await submit(cluster, _TWIN, settings) if settings.twin_beside else None
        if twin_id is not None:
            await until_it_has(cluster, twin_out, twin_id, settings)
        fragment = await until_it_has(cluster, out, query_id, settings)
        at = fragment.node
        other = "office" if at == "hub" else "hub"
        for _ in range(settings.moves):
            await until_it_has_settled(out)
            done.append(await move(cluster, fragment.fragment_id, at, other))
            at, other = other, at
        await trio.sleep(_SETTLE_S)
        await cluster.cancel(query_id)
        twin_from_s = done[0].began_s
        if twin_id is None:
            twin_id = await submit(cluster, _TWIN, settings)
            await until_it_has(cluster, twin_out, twin_id, settings)
            twin_from_s = time.time()
            await trio.sleep(_TWIN_S)
        await cluster.cancel(twin_id)
    times_s = file_times_s(out)
    usual_s = usual_gap_s([at_s for at_s in file_times_s(twin_out) if at_s > twin_from_s])
    gaps_ms = [(longest_gap_s(times_s, one.began_s, one.ended_s) - usual_s) * 1000.0 for one in done]
    downtimes_ms = [float(str(one.fields["downtime_ms"])) for one in done]
    return {
        "moves": settings.moves,
        "state_bytes": done[-1].fields["state_bytes"],
        "twin_files_apart_ms": round(usual_s * 1000.0),
        "gap_ms": summary(gaps_ms),
        "gaps_ms": [round(gap_ms) for gap_ms in gaps_ms],
        "downtime_ms": summary(downtimes_ms),
        "steps_s": steps([one.fields for one in done]),
    }


def steps(moves: Sequence[dict[str, object]]) -> dict[str, float]:
    """Median of each step."""
    known = [dict(one["steps_s"]) for one in moves]  # type: ignore[call-overload]
    return {step: round(statistics.median(each[step] for each in known), 2) for step in known[0]}


def run_plain(folder: Path, settings: Settings) -> dict[str, object]:
    folder.mkdir()
    found = streams(folder, settings.kind, int(settings.state_mb * MB))
    sql = QUERIES[settings.kind].format(lefts="lefts", rights="rights")
    memory_mb = settings.memory_mb + round(_HEAP_FOR_STATE * settings.state_mb)
    spark = {"spark.driver.memory": f"{memory_mb}m", **HEAP_STORE, **settings.spark}
    job = PlainJob(str(folder), found, sql, settings.plain, _SETTLE_S, spark)
    (folder / "job.json").write_bytes(msgspec.json.encode(job))
    command = [sys.executable, "-m", "tests.benchmarks.migration.plain", str(folder / "job.json")]
    with (folder / "log").open("wb") as log:
        subprocess.run(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, check=True)
    times_s = file_times_s(folder / "out")
    restarts: list[list[float]] = json.loads((folder / "restarts.json").read_text())
    usual_s = usual_gap_s(times_s)
    gaps_ms = [(longest_gap_s(times_s, began_s, ended_s) - usual_s) * 1000.0 for began_s, ended_s in restarts]
    return {"restarts": settings.plain, "files_apart_ms": round(usual_s * 1000.0), "gap_ms": summary(gaps_ms)}


def summary(values: Sequence[float]) -> dict[str, int]:
    """The percentile is the least value that 95 of 100 do not pass."""
    ordered = sorted(values)
    return {
        "first": round(values[0]),
        "median": round(statistics.median(ordered)),
        "p95": round(ordered[math.ceil(0.95 * len(ordered)) - 1]),
    }


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.migration", description=__doc__.splitlines()[0])
    parser.add_argument("--kinds", nargs="+", choices=QUERIES, default=list(QUERIES))
    parser.add_argument("--state-mb", nargs="+", type=float, default=[1.0, 100.0])
    parser.add_argument("--moves", type=int, default=20)
    parser.add_argument("--plain", type=int, default=5, help="restarts of plain Spark; 0: none")
    parser.add_argument("--twin", choices=("after", "beside"), default="after", help="when it runs (default: after)")
    parser.add_argument("--memory-mb", type=int, default=512, help="heap of each engine")
    parser.add_argument("--conf", action="append", default=[], metavar="KEY=VALUE", help="of the engines")
    parser.add_argument("--json", action="store_true", help="print one line for each")
    arguments = parser.parse_args()
    for kind, state_mb in itertools.product(arguments.kinds, arguments.state_mb):
        settings = Settings(
            kind,
            state_mb,
            arguments.moves,
            arguments.plain,
            arguments.twin == "beside",
            arguments.memory_mb,
            dict(setting.split("=", 1) for setting in arguments.conf),
        )
        report: dict[str, object] = {"kind": kind, "state_mb": state_mb}
        with tempfile.TemporaryDirectory(prefix="sbon-moves-") as folder:
            if settings.moves:
                report |= trio.run(run_moves, Path(folder), settings)
                print(json.dumps(report), file=sys.stderr, flush=True)
            if settings.plain:
                report["plain"] = run_plain(Path(folder) / "plain", settings)
        print(json.dumps(report, indent=None if arguments.json else 2), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
