"""What placing a query takes, by the size of the overlay, the hosts measured for each operator, and the operators.

    python -m tests.benchmarks.placement_scale [--queries 20] [--hosts 100,1000,10000]

Hosts are points in the plane whose coordinates are somewhat off. Each knows its 16 nearest and 8 at random; searches
are the overlay's own (:mod:`overlay.search`), over these views. Prints JSON, one line for each case: `computing` is the
strategy's own processor time, the median, over that of the first case; searches and round trips are left out of it.
Everything else is counted, per query. The last line is of the optimum of plans of six operators, over the 1,550 hosts
of the founding paper and all paths between them: its processor time in seconds.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import time
from collections.abc import Sequence
from typing import Any

import numpy as np
from scipy.spatial import cKDTree

from daemon.simulation.placement.ground import Work, step
from daemon.simulation.placement.queries import draw
from overlay.records import NodeRecord
from overlay.search import Search
from sbon.coordinate import Coordinate
from sbon.placement import strategies
from sbon.placement.optimum import Truth, optimum
from sbon.placement.problem import CostView, PlacementProblem
from sbon.placement.questions import FindHosts, Known, KnownPath, MeasurePaths, Question, Task, TellKnownPaths

NEAREST, AT_RANDOM = 16, 8
SIDE_MS, OFF_MS = 150.0, 5.0
PATIENCE_S = 1.0
#: (probes, operators) of each size; the first is what the others are compared with.
CASES = ((10, 1), (5, 1), (20, 1), (10, 3), (10, 6))
EXACT_HOSTS, EXACT_OPERATORS = 1550, 6


class Hosts:
    """An overlay that stands still."""

    def __init__(self, count: int, rng: random.Random) -> None:
        self._points = np.array([(rng.uniform(0.0, SIDE_MS), rng.uniform(0.0, SIDE_MS)) for _ in range(count)])
        self.records = [
            NodeRecord(
                node_id=f"{index:040x}",
                name=f"n{index}",
                host="192.0.2.1",
                port=1,
                boot_id=1,
                coordinate=Coordinate((float(x) + rng.gauss(0.0, OFF_MS), float(y) + rng.gauss(0.0, OFF_MS)), 0.5, 0.1),
            )
            for index, (x, y) in enumerate(self._points)
        ]
        nearest = cKDTree(self._points).query(self._points, NEAREST + 1)[1]
        self._views = [[*nearest[i][1:].tolist(), *rng.sample(range(count), AT_RANDOM)] for i in range(count)]
        self.index = {record.node_id: index for index, record in enumerate(self.records)}
        self.searches = self.contacts = 0
        self._rng = rng

    def rtt_ms(self, a: str, b: str) -> float:
        return float(np.hypot(*(self._points[self.index[a]] - self._points[self.index[b]]))) + 1.0

    def view(self) -> CostView:
        return CostView(
            lambda node_id: self.records[self.index[node_id]].coordinate, lambda _a, _b: None, lambda _: 0.0
        )

    def answer(self, question: Question) -> Any:
        if isinstance(question, FindHosts):
            return self._search(question)
        if isinstance(question, MeasurePaths):
            return {pair: self.rtt_ms(*pair) for pair in question.pairs}
        assert isinstance(question, TellKnownPaths)
        return {node_id: self._known(node_id) for node_id in question.node_ids}

    def _known(self, node_id: str) -> Known:
        others = [self.records[other] for other in self._views[self.index[node_id]]]
        paths = (KnownPath(one.node_id, one.coordinate, self.rtt_ms(node_id, one.node_id)) for one in others)
        return Known(self.records[self.index[node_id]], tuple(paths))

    def _search(self, question: FindHosts) -> Sequence[NodeRecord]:
        search = Search(question.objective, question.k, PATIENCE_S)
        for other in self._views[self._rng.randrange(len(self.records))]:
            search.know(self.records[other])
        while not search.is_over:
            for record in search.to_ask(0.0):
                search.answered(record.node_id)
                for other in self._views[self.index[record.node_id]]:
                    search.know(self.records[other])
        self.searches += 1
        self.contacts += search.contacts
        return search.result()


def place(hosts: Hosts, problem: PlacementProblem, probes: int) -> tuple[Work, float]:
    """What it took, and the strategy's own processor time in s."""
    task = Task(problem, hosts.view(), random.Random(1), probes)
    course, work, answer, own_s = strategies.load("sbon").place(task), Work(), None, 0.0
    while True:
        began_s = time.process_time()
        question = step(course, answer, work)
        own_s += time.process_time() - began_s
        if question is None:
            return work, own_s
        answer = hosts.answer(question)


def problems(ids: Sequence[str], operators: int, count: int) -> list[PlacementProblem]:
    """Trees of exactly so many operators; of one, it is the aggregate of four streams."""
    rng = random.Random(2)
    found: list[PlacementProblem] = []
    while len(found) < count:
        problem = draw("tree" if operators > 1 else "aggregate-4", ids, operators, rng)
        if len(problem.unpinned) == operators:
            found.append(problem)
    return found


def exact(count: int) -> dict[str, float]:
    """The median and the longest processor time of an optimum, in s."""
    latency_ms = np.random.default_rng(1).uniform(1.0, 300.0, (EXACT_HOSTS, EXACT_HOSTS))
    latency_ms = np.triu(latency_ms, 1) + np.triu(latency_ms, 1).T
    truth = Truth.of([f"n{index}" for index in range(EXACT_HOSTS)], latency_ms)
    times_s = []
    for problem in problems(truth.node_ids, EXACT_OPERATORS, count):
        began_s = time.process_time()
        optimum(problem, truth)
        times_s.append(time.process_time() - began_s)
    return {"median_s": round(statistics.median(times_s), 3), "most_s": round(max(times_s), 3)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--queries", type=int, default=20)
    parser.add_argument("--hosts", default="100,1000,10000")
    arguments = parser.parse_args()
    first_s: float | None = None
    for count in map(int, arguments.hosts.split(",")):
        hosts = Hosts(count, random.Random(1))
        for probes, operators in CASES:
            drawn = problems(list(hosts.index), operators, arguments.queries)
            place(hosts, drawn[0], probes)  # what is imported and made once
            hosts.searches = hosts.contacts = 0
            works, times_s = zip(*(place(hosts, problem, probes) for problem in drawn), strict=True)
            own_s = statistics.median(times_s)
            first_s = first_s or own_s
            per_query = {
                "searches": hosts.searches,
                "hosts_asked": hosts.contacts,
                "candidates_measured": sum(len(work.measured) for work in works),
                "round_trips": sum(work.samples for work in works),
            }
            row = {"hosts": count, "probes": probes, "operators": operators, "computing": round(own_s / first_s, 2)}
            row |= {name: round(value / len(works), 1) for name, value in per_query.items()}
            print(json.dumps(row), flush=True)
    print(json.dumps({"optimum_over": EXACT_HOSTS, "operators": EXACT_OPERATORS} | exact(arguments.queries)))


if __name__ == "__main__":
    main()
