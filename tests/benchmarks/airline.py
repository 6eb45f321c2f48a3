"""The airline's queries over real daemons and real Spark: two with the same join, of which the first one ends.

    python -m tests.benchmarks.airline --hours 12 --speedup 240

Five sites: New York has the flights (a real month, 2013), Asheville the weather, Atlanta the check-ins, Chicago the
baggage, London the displays. Check-ins and baggage are made up for the real flights, from ``--seed``. The query of a
terminal (after Seshadri et al., ICWS'08, figure 1, Q1) joins all four; that of the baggage hall wants the same join,
filtered further, and reads the first one's, which crosses the sea once for both. The first is cancelled in the middle.
At the end the rows of the second are compared with what plain Spark gives for the whole files, from the start on that
``sbon explain`` tells.
"""

from __future__ import annotations

import argparse
import csv
import gzip
import json
import random
import sys
import tempfile
import time
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path

import trio

from daemon.control.messages import Explain, Explanation
from daemon.demo.asking import ask
from daemon.demo.check import compute_reference, read_rows
from daemon.demo.scenario import DATA, Scenario
from sbon.row_multiset import difference
from sbon.streams import SinkSpec, StreamSpec
from tests.end_to_end.cluster import Cluster, Role, make_cluster_scenario, running_cluster

FROM = """
FROM FLIGHTS FL [RANGE 40 MINUTES], CHECKINS CI [RANGE 20 MINUTES], BAGGAGE BG [RANGE 20 MINUTES],
     WEATHER WR [RANGE 60 MINUTES]
WHERE FL.FLIGHT = CI.FLIGHT AND FL.FLIGHT = BG.FLIGHT AND FL.ORIGIN = WR.ORIGIN AND FL.ORIGIN = 'JFK'"""
TERMINAL = f"""
INSERT INTO terminal
SELECT FL.ts, FL.FLIGHT, FL.DEP_DELAY, CI.STATUS, BG.AREA, WR.VISIB {FROM}"""
HALL_COLUMNS = "SELECT FL.ts, FL.FLIGHT, BG.AREA"
HALL = f"INSERT INTO hall {HALL_COLUMNS} {FROM} AND BG.AREA <> 'D'"
#: The same, as any Spark understands it: each row is in the windows of the others.
HALL_SPELLED_OUT = f"""
{HALL_COLUMNS} FROM FLIGHTS FL, CHECKINS CI, BAGGAGE BG, WEATHER WR
WHERE FL.FLIGHT = CI.FLIGHT AND FL.FLIGHT = BG.FLIGHT AND FL.ORIGIN = WR.ORIGIN AND FL.ORIGIN = 'JFK'
AND BG.AREA <> 'D'
AND greatest(FL.ts, CI.ts, BG.ts, WR.ts) - FL.ts <= INTERVAL 40 MINUTES
AND greatest(FL.ts, CI.ts, BG.ts, WR.ts) - CI.ts <= INTERVAL 20 MINUTES
AND greatest(FL.ts, CI.ts, BG.ts, WR.ts) - BG.ts <= INTERVAL 20 MINUTES
AND greatest(FL.ts, CI.ts, BG.ts, WR.ts) - WR.ts <= INTERVAL 60 MINUTES
"""
SCHEMAS = {
    "FLIGHTS": "ts TIMESTAMP, CARRIER STRING, FLIGHT INT, ORIGIN STRING, DEST STRING, DEP_DELAY INT",
    "WEATHER": "ts TIMESTAMP, ORIGIN STRING, TEMP DOUBLE, WIND_SPEED DOUBLE, PRECIP DOUBLE, VISIB DOUBLE",
    "CHECKINS": "ts TIMESTAMP, FLIGHT INT, STATUS STRING",
    "BAGGAGE": "ts TIMESTAMP, FLIGHT INT, AREA STRING",
}
RATES_BYTES_PER_S = {"FLIGHTS": 8_000.0, "WEATHER": 300.0, "CHECKINS": 16_000.0, "BAGGAGE": 20_000.0}
#: Round trips in ms of New York, Asheville, Atlanta, Chicago, London.
RTT_MS = (
    (0.0, 20.0, 22.0, 21.0, 72.0),
    (20.0, 0.0, 9.0, 24.0, 91.0),
    (22.0, 9.0, 0.0, 17.0, 93.0),
    (21.0, 24.0, 17.0, 0.0, 92.0),
    (72.0, 91.0, 93.0, 92.0, 0.0),
)
#: So long the second query reads through the first one before that is cancelled.
RELAYED_S = 15.0
PATIENCE_S = 60.0
FIRST_DAY = datetime.fromisoformat("2013-07-02T00:00:00+00:00")


@dataclass(frozen=True, slots=True)
class Options:
    hours: float
    speedup: float
    seed: int


def write_streams(folder: Path, options: Options) -> None:
    """One file for each stream, of the chosen hours; in each the first line names the columns."""
    rng = random.Random(options.seed)
    end = FIRST_DAY + timedelta(hours=options.hours)
    rows: dict[str, list[list[str]]] = {name: [] for name in SCHEMAS}
    for name in ("flights", "weather"):
        with gzip.open(DATA / f"{name}.csv.gz", "rt", newline="") as file:
            _, *read = csv.reader(file)
        rows[name.upper()] = [row for row in read if FIRST_DAY <= datetime.fromisoformat(row[0]) < end]
    for ts, _, flight, *_ in rows["FLIGHTS"]:
        at = datetime.fromisoformat(ts)
        for name, count, states in (
            ("CHECKINS", rng.randrange(4), ("OPEN", "LAST CALL", "CLOSED")),
            ("BAGGAGE", rng.randrange(5), ("A", "B", "C", "D")),
        ):
            for _ in range(count):
                moment = at + timedelta(minutes=rng.uniform(-30.0, 20.0))
                rows[name].append([moment.isoformat(timespec="milliseconds"), flight, rng.choice(states)])
    for name, schema in SCHEMAS.items():
        with (folder / f"{name}.csv").open("w", newline="") as file:
            csv.writer(file).writerows([[part.split()[0] for part in schema.split(", ")], *sorted(rows[name])])


def scenario_of(folder: Path, options: Options) -> Scenario:
    def stream(name: str) -> StreamSpec:
        timing = {"path": str(folder / f"{name}.csv"), "speedup": f"{options.speedup:g}"}
        return StreamSpec(name, "replay", SCHEMAS[name], "ts", timing, 0.0, RATES_BYTES_PER_S[name], 50.0)

    sinks = tuple(SinkSpec(name, "parquet", {"path": str(folder / name)}) for name in ("terminal", "hall"))
    owners = {"new-york": "FLIGHTS", "asheville": "WEATHER", "atlanta": "CHECKINS", "chicago": "BAGGAGE"}
    roles = [
        Role(site, accepts_operators=site in ("new-york", "chicago"), streams=(stream(name),))
        for site, name in owners.items()
    ]
    return make_cluster_scenario(folder, (*roles, Role("london", sinks=sinks)), RTT_MS)


async def run(options: Options, folder: Path) -> bool:
    """Whether the second query reads the first, and its rows are right."""
    write_streams(folder, options)
    scenario = scenario_of(folder, options)
    began_s = time.monotonic()

    def say(what: str) -> None:
        print(f"{time.monotonic() - began_s:6.1f} s  {what}", file=sys.stderr, flush=True)

    async with running_cluster(scenario) as cluster:
        say("five daemons know each other")
        first = await cluster.submit(TERMINAL)
        say(f"{first} runs: {await placement(cluster, first)}")
        while not read_rows(folder / "terminal"):
            await cluster.check_runs(first)
            await trio.sleep(0.5)
        say("its first rows are there")
        second = await cluster.submit(HALL)
        explanation = await ask(cluster.first.socket, Explain(second), Explanation)
        for reused in explanation.reused:
            say(f"{second} reads {reused.fragment_id} at {reused.node} from {reused.from_ms} on: {reused.computes}")
        through = await relay(cluster, second)
        say(f"{second} reads it through {through}")
        await trio.sleep(RELAYED_S)
        await cluster.cancel(first)
        say(f"{first} is cancelled; of it there is left: {await placement(cluster, first)}")
        await cluster.wait_until_finished(second)
        say(f"{second} has finished")
    from_ms = explanation.reused[0].from_ms if explanation.reused else None
    since = "" if from_ms is None else f" AND FL.ts >= timestamp_millis({from_ms})"
    expected_sql = HALL_SPELLED_OUT + since
    expected = read_rows(await compute_reference(expected_sql, scenario.streams, folder))
    found = read_rows(folder / "hall")
    wrong = difference(found, expected)
    told = {"reused": len(explanation.reused), "through": through, "from_ms": from_ms, "rows": len(found)}
    print(json.dumps({**told, "difference": wrong}))
    return bool(explanation.reused) and through is not None and wrong is None


async def relay(cluster: Cluster, query_id: str) -> str | None:
    """The node of another reader through which the query reads, None if there is none for long."""
    with trio.move_on_after(PATIENCE_S):
        while True:
            found = [reused.through for reused in (await cluster.explain(query_id)).reused if reused.through]
            if found:
                return found[0]
            await trio.sleep(0.5)
    return None


async def placement(cluster: Cluster, query_id: str) -> str:
    operators = (await cluster.operators(query_id)).values()
    return ", ".join(f"{operator.fragment_id.partition('-')[2]} at {operator.node}" for operator in operators)


def main() -> int:
    """0 if the second query read the first and gave the right rows."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hours", type=float, default=12.0, help="of the second of July 2013")
    parser.add_argument("--speedup", type=float, default=240.0, help="event seconds per second")
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="sbon-airline-") as folder:
        options = Options(arguments.hours, arguments.speedup, arguments.seed)
        return 0 if trio.run(run, options, Path(folder)) else 1


if __name__ == "__main__":
    sys.exit(main())
