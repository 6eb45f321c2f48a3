"""A running query of the airline gets another plan, over real daemons and real Spark, and its result is the same.

    python -m tests.benchmarks.plan_changes --hours 12 --speedup 120 [--kill engine|daemon [--at begun|decided|changed]]

New York has the flights, Atlanta check-ins and baggage, London the displays. The query of a terminal joins all three,
for the flights from JFK, and has two sinks. Then comes one that joins check-ins with the flights from everywhere:
London's daemon plans the first one anew, reads that join, and its own ends. ``--kill``: London's engine, or its daemon,
is killed with -9 as soon as the new plan's fragments are being started, or it is decided, or the old plan has ended. At
the end the rows of both sinks are compared with what plain Spark gives for the whole files.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import tempfile
import time
from pathlib import Path

import trio

from daemon.control.messages import Event
from daemon.demo.asking import events_after
from daemon.demo.check import compute_reference, read_rows
from daemon.demo.scenario import Scenario
from sbon.row_multiset import difference
from sbon.streams import SinkSpec, StreamSpec
from tests.benchmarks.airline import RATES_BYTES_PER_S, SCHEMAS, Options, placement, write_streams
from tests.end_to_end.cluster import Cluster, Role, make_cluster_scenario, running_cluster

COLUMNS = "SELECT FL.ts, FL.FLIGHT, FL.DEP_DELAY, CI.STATUS, BG.AREA"
WINDOWS = "FROM FLIGHTS FL [RANGE 40 MINUTES], CHECKINS CI [RANGE 20 MINUTES]"
TERMINAL = f"""
INSERT INTO terminal {COLUMNS} {WINDOWS}, BAGGAGE BG [RANGE 20 MINUTES]
WHERE FL.FLIGHT = CI.FLIGHT AND FL.FLIGHT = BG.FLIGHT AND FL.ORIGIN = 'JFK';
INSERT INTO belts {COLUMNS.replace(", CI.STATUS", "")} {WINDOWS}, BAGGAGE BG [RANGE 20 MINUTES]
WHERE FL.FLIGHT = CI.FLIGHT AND FL.FLIGHT = BG.FLIGHT AND FL.ORIGIN = 'JFK' AND BG.AREA <> 'A'"""
DESKS = f"""
INSERT INTO desks SELECT FL.ts, FL.FLIGHT, FL.ORIGIN, FL.DEP_DELAY, CI.STATUS, CI.ts AS seen {WINDOWS}
WHERE FL.FLIGHT = CI.FLIGHT"""
TERMINAL_SPELLED_OUT = f"""
{COLUMNS} FROM FLIGHTS FL, CHECKINS CI, BAGGAGE BG
WHERE FL.FLIGHT = CI.FLIGHT AND FL.FLIGHT = BG.FLIGHT AND FL.ORIGIN = 'JFK'
AND greatest(FL.ts, CI.ts, BG.ts) - FL.ts <= INTERVAL 40 MINUTES
AND greatest(FL.ts, CI.ts, BG.ts) - CI.ts <= INTERVAL 20 MINUTES
AND greatest(FL.ts, CI.ts, BG.ts) - BG.ts <= INTERVAL 20 MINUTES
"""
BELTS_SPELLED_OUT = f"{TERMINAL_SPELLED_OUT.replace(', CI.STATUS', '')} AND BG.AREA <> 'A'"
#: Round trips in ms of New York, Atlanta, London.
RTT_MS = ((0.0, 22.0, 72.0), (22.0, 0.0, 93.0), (72.0, 93.0, 0.0))
PLACEMENT = {"period_s": 3600.0, "rest_s": 5.0, "replan_period_s": 10.0}


def scenario_of(folder: Path, options: Options) -> Scenario:
    def stream(name: str) -> StreamSpec:
        timing = {"path": str(folder / f"{name}.csv"), "speedup": f"{options.speedup:g}"}
        return StreamSpec(name, "replay", SCHEMAS[name], "ts", timing, 0.0, RATES_BYTES_PER_S[name], 50.0)

    sinks = tuple(SinkSpec(name, "parquet", {"path": str(folder / name)}) for name in ("terminal", "belts", "desks"))
    roles = (
        Role("new-york", streams=(stream("FLIGHTS"),)),
        Role("atlanta", accepts_operators=False, streams=(stream("CHECKINS"), stream("BAGGAGE"))),
        Role("london", sinks=sinks),
    )
    return make_cluster_scenario(folder, roles, RTT_MS)


async def run(options: Options, kill: str | None, at: str, folder: Path) -> bool:
    """Whether the first query got another plan, and its rows are right."""
    write_streams(folder, options)
    scenario = scenario_of(folder, options)
    began_s = time.monotonic()

    def say(what: str) -> None:
        print(f"{time.monotonic() - began_s:6.1f} s  {what}", file=sys.stderr, flush=True)

    async with running_cluster(scenario, placement=PLACEMENT) as cluster:
        say("three daemons know each other")
        first = await cluster.submit(TERMINAL)
        say(f"{first} runs: {await placement(cluster, first)}")
        second = await cluster.submit(DESKS)
        say(f"{second} runs: {await placement(cluster, second)}")

        async def end_one() -> None:
            if kill == "engine":
                for pid in engine_pids(cluster):
                    os.kill(pid, signal.SIGKILL)
            if kill == "daemon":
                await cluster.kill("london")
                await cluster.start("london")
            if kill is not None:
                say(f"London's {kill} was killed")

        before = set(await cluster.operators(first))
        if at == "begun" and kill is not None:
            while not set(await cluster.operators(first)) - before:
                await cluster.check_runs(first)
                await trio.sleep(0.1)
            await end_one()
        replanned = await happened(cluster, "query-replanned", first)
        if replanned is None:
            say(f"{first} has finished before another plan was better")
            return False
        say(f"planned anew: {replanned.fields}")
        say(f"of {first} there is: {await placement(cluster, first)}")
        if at == "decided":
            await end_one()
        changed = await happened(cluster, "plan-changed", first)
        if at == "changed" and changed is not None:
            await end_one()
        if changed is not None:
            say(f"the old plan is not needed any more: {changed.fields}")
            say(f"of {first} there is: {await placement(cluster, first)}")
            await cluster.cancel(second)
            say(f"{second} is cancelled; of it there is left: {await placement(cluster, second)}")
        await cluster.wait_until_finished(first)
        say(f"{first} has finished")
    rows, wrong = 0, None
    for sink, spelled_out in (("terminal", TERMINAL_SPELLED_OUT), ("belts", BELTS_SPELLED_OUT)):
        scratch = folder / f"{sink}-reference"
        scratch.mkdir()
        expected = read_rows(await compute_reference(spelled_out, scenario.streams, scratch))
        found = read_rows(folder / sink)
        rows, wrong = rows + len(found), wrong or difference(found, expected)
    cost = {name: replanned.fields[name] for name in ("cost_now", "cost_then")}
    print(json.dumps({"changed": changed is not None, **cost, "rows": rows, "difference": wrong}))
    return changed is not None and wrong is None


async def happened(cluster: Cluster, kind: str, query_id: str) -> Event | None:
    """The first such event of a query at London, None if the query ends before."""
    while True:
        ended = await cluster.has_ended(query_id)
        for event in await events_after(cluster.scenario.site("london").socket, -1):
            if event.kind == kind and event.fields["query"] == query_id:
                return event
        if ended:
            return None
        await trio.sleep(0.3)


def engine_pids(cluster: Cluster) -> list[int]:
    """Of London's daemon: all that it has started."""
    daemon = cluster.daemons["london"].process.pid
    return [int(pid) for pid in Path(f"/proc/{daemon}/task/{daemon}/children").read_text().split()]


def main() -> int:
    """0 if the first query got another plan and gave the right rows."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hours", type=float, default=12.0, help="of the second of July 2013")
    parser.add_argument("--speedup", type=float, default=120.0, help="event seconds per second")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--kill", choices=("engine", "daemon"), help="with -9, at a step of the new plan")
    parser.add_argument("--at", choices=("begun", "decided", "changed"), default="decided", help="which step (decided)")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="sbon-plans-") as folder:
        options = Options(arguments.hours, arguments.speedup, arguments.seed)
        return 0 if trio.run(run, options, arguments.kill, arguments.at, Path(folder)) else 1


if __name__ == "__main__":
    sys.exit(main())
