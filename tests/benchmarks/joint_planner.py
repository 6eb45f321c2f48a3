"""How long the joint planner takes for one query over five streams, by the number of hosts.

    python -m tests.benchmarks.joint_planner [--hosts 128 1000] [--queries 50] [--seed 1]

Hosts are those of a transit-stub network. The queries come one after the other and are deployed, so later ones find
running streams to read. Prints JSON: milliseconds of processor time, median and most, of the first ten queries and of
the others.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import sys
import time
from collections.abc import Sequence

from daemon.simulation import transit_stub
from daemon.simulation.planning.workloads import STREAMS as ALL_STREAMS
from daemon.simulation.planning.workloads import synthetic
from sbon.placement.optimum import Truth
from sbon.planning.planners.joint import Planner
from sbon.planning.running import Running
from sbon.planning.situation import Situation

STREAMS = 5
#: Queries that find little to read.
EARLY = 10


def milliseconds(hosts: int, queries: int, seed: int) -> tuple[int, list[float]]:
    """How many hosts there are, and the time for each query."""
    rtt_ms = transit_stub.generate(seed, transit_stub.Shape.of(hosts)).rtt_ms
    network = Truth.of([f"n{index}" for index in range(len(rtt_ms))], rtt_ms)
    situation, planner, taken = Situation(network, Running()), Planner(), []
    for query in synthetic(queries, len(rtt_ms), random.Random(seed), ALL_STREAMS, (STREAMS, STREAMS)):
        began = time.process_time()
        plan = planner.plan(query, situation)
        taken.append(1000.0 * (time.process_time() - began))
        situation.running.deploy(query, plan.tree)
    return len(rtt_ms), taken


def summary(taken: Sequence[float]) -> dict[str, float]:
    return {"median_ms": round(statistics.median(taken), 2), "most_ms": round(max(taken), 2)}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hosts", type=int, nargs="+", default=[128, 1000])
    parser.add_argument("--queries", type=int, default=50, help="more than ten")
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    for hosts in arguments.hosts:
        count, taken = milliseconds(hosts, arguments.queries, arguments.seed)
        print(json.dumps({"hosts": count, "first": summary(taken[:EARLY]), "others": summary(taken[EARLY:])}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
