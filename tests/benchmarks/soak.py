"""Four daemons with their engines for an hour, a join and an aggregate moved to and fro: does anything grow?

    python -m tests.benchmarks.soak [--minutes 60] [--rows-per-s 2000] [--move-every-s 120] [--json]

The query tells by itself whether a pair was lost, doubled or out of order (counted_pairs.py). Memory (proportional),
open files, threads and disk of all processes are looked at every ten seconds; ``growth`` is the median of the last
third over that of the middle third.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import statistics
import sys
import tempfile
import time
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

import trio

from daemon.demo.scenario import Scenario
from sbon.errors import SbonError
from spark_bridge.changing_folder import folder_bytes
from tests.benchmarks.counted_pairs import PairsReader, counted_pairs, counting_stream, pairs_sink, read_pairs
from tests.benchmarks.links.processes import proportional_bytes, tree
from tests.end_to_end.cluster import Cluster, Role, make_cluster_scenario, running_cluster

_LOOK_EVERY_S = 10.0
_FIRST_ROWS_WITHIN_S = 300.0


@dataclass(frozen=True, slots=True)
class Look:
    """Of all daemons and engines together, at one moment."""

    memory_bytes: int
    open_files: int
    threads: int
    disk_bytes: int


def look(scenario: Scenario, pids: list[int]) -> Look:
    processes = [process for pid in pids for process in tree(pid)]
    return Look(
        sum(proportional_bytes(process) for process in processes),
        sum(entries(process, "fd") for process in processes),
        sum(entries(process, "task") for process in processes),
        sum(folder_bytes(site.folder) for site in scenario.sites),
    )


def entries(pid: int, folder: str) -> int:
    with suppress(OSError):
        return len(os.listdir(f"/proc/{pid}/{folder}"))  # noqa: PTH208
    return 0


def make_scenario(folder: Path, rows_per_s: int) -> Scenario:
    roles = (
        Role("office", sinks=(pairs_sink(folder / "pairs"),)),
        Role("hub"),
        Role("field", accepts_operators=False, streams=(counting_stream("ticks", rows_per_s),)),
        Role("harbour", accepts_operators=False, streams=(counting_stream("tocks", rows_per_s),)),
    )
    rtt_ms = ((0.0, 30.0, 40.0, 40.0), (30.0, 0.0, 20.0, 20.0), (40.0, 20.0, 0.0, 20.0), (40.0, 20.0, 20.0, 0.0))
    return make_cluster_scenario(folder, roles, rtt_ms)


async def move_to_and_fro(
    cluster: Cluster, query_id: str, every_s: float, moves: list[float], refused: list[str]
) -> None:
    """The join and the aggregate in turn, each time to the other of the two hosts; takes down how long each took, and
    why one was refused: daemons move them, too."""
    for number in itertools.count():
        await trio.sleep(every_s)
        operators = (await cluster.operators(query_id)).values()
        kind = ("join", "aggregate")[number % 2]
        moved = next(operator for operator in operators if operator.kind == kind)
        began_s = time.monotonic()
        try:
            await cluster.migrate(moved.fragment_id, "office" if moved.node == "hub" else "hub")
        except SbonError as error:
            refused.append(str(error))
        else:
            moves.append(time.monotonic() - began_s)


async def run(folder: Path, minutes: float, rows_per_s: int, move_every_s: float) -> dict[str, object]:
    scenario = make_scenario(folder, rows_per_s)
    looks: list[Look] = []
    moves: list[float] = []
    refused: list[str] = []
    reader = PairsReader(folder / "pairs")
    async with running_cluster(scenario) as cluster, trio.open_nursery() as nursery:
        query_id = await cluster.submit(counted_pairs())
        with trio.fail_after(_FIRST_ROWS_WITHIN_S):
            while not reader.read().pairs:
                await trio.sleep(1.0)
        pids = [daemon.process.pid for daemon in cluster.daemons.values()]
        nursery.start_soon(move_to_and_fro, cluster, query_id, move_every_s, moves, refused)
        deadline_s = time.monotonic() + minutes * 60.0
        while time.monotonic() < deadline_s:
            await trio.sleep(_LOOK_EVERY_S)
            await cluster.check_runs(query_id)
            looks.append(await trio.to_thread.run_sync(look, scenario, pids))
            found = reader.read()
            print(f"{len(moves):4} moves  {found.pairs:9} pairs  {looks[-1]}", file=sys.stderr, flush=True)
            if found.wrong is not None:
                break
        nursery.cancel_scope.cancel()
    found = read_pairs(folder / "pairs")
    moved = {"moves": len(moves), "refused": refused, "pairs": found.pairs, "wrong": found.wrong}
    return {**moved, "growth": growth(looks), "last": asdict(looks[-1])}


def growth(looks: list[Look]) -> dict[str, float]:
    third = max(1, len(looks) // 3)
    return {
        name: round(middle_of(looks[-third:], name) / middle_of(looks[-2 * third : -third] or looks, name), 3)
        for name in asdict(looks[0])
    }


def middle_of(looks: list[Look], name: str) -> float:
    return float(statistics.median(getattr(one, name) for one in looks))


def main() -> int:
    """0 if no pair was lost or doubled."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--rows-per-s", type=int, default=2000, help="of each of the two streams")
    parser.add_argument("--move-every-s", type=float, default=120.0)
    parser.add_argument("--json", action="store_true", help="print one line")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="sbon-soak-") as folder:
        report = trio.run(run, Path(folder), arguments.minutes, arguments.rows_per_s, arguments.move_every_s)
    print(json.dumps(report, indent=None if arguments.json else 2))
    return 0 if report["wrong"] is None else 1


if __name__ == "__main__":
    sys.exit(main())
