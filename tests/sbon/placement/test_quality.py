"""How far from the optimum placements over real round trips are (DESIGN: Cost space, for large networks)."""

from __future__ import annotations

import random
import statistics

from sbon.coordinate_estimator import CoordinateEstimator
from sbon.network_usage import Link
from sbon.placement.candidates import candidate_objective, virtual_places
from sbon.placement.full_optimizer import choose
from sbon.placement.problem import CostView, PlacementProblem
from tests import truth
from tests.sbon.placement.fake_view import FakeHost

MATRIX = truth.cloud_regions()
NODES = len(MATRIX)


def settled_hosts(seed: int) -> list[FakeHost]:
    rng = random.Random(seed)
    states = [CoordinateEstimator() for _ in MATRIX]
    for _ in range(300):
        for i, state in enumerate(states):
            j = rng.choice([j for j in range(NODES) if j != i])
            state.update(MATRIX[i][j], states[j].coordinate, rng)
    return [FakeHost(str(i), state.coordinate) for i, state in enumerate(states)]


def test_few_measured_candidates_come_near_the_optimum() -> None:
    hosts = settled_hosts(1)
    view = CostView(
        coordinate_of=lambda node_id: hosts[int(node_id)].coordinate,
        measured_rtt_ms=lambda a, b: MATRIX[int(a)][int(b)],
        load_of=lambda node_id: 0.0,
    )
    rng = random.Random(2)
    above_optimum, nearest_above_optimum = [], []
    for _ in range(60):
        ends = rng.sample(range(NODES), 4)
        rates = [rng.uniform(1, 10) for _ in ends]
        links = (*(Link(f"p{k}", "op", rates[k]) for k in range(3)), Link("op", "c", rates[3]))
        pinned = {name: str(end) for name, end in zip(("p0", "p1", "p2", "c"), ends, strict=True)}
        problem = PlacementProblem(links, pinned)
        virtual = virtual_places(problem, view)
        ranked = sorted(hosts, key=candidate_objective(problem, "op", virtual, view).cost)
        usage = [sum(rate * MATRIX[i][end] / 2000 for rate, end in zip(rates, ends, strict=True)) for i in range(NODES)]
        found = choose(problem, {"op": ranked[:3]}, view, virtual).network_usage
        above_optimum.append(found / min(usage) - 1)
        nearest = min(range(NODES), key=lambda i: hosts[i].coordinate.distance_ms(virtual["op"]))
        nearest_above_optimum.append(usage[nearest] / min(usage) - 1)
    assert statistics.mean(above_optimum) < 0.03
    assert statistics.mean(above_optimum) < statistics.mean(nearest_above_optimum) / 2
