"""Placing where hosts are full: passed over, looked past, and never given more than they have left."""

from __future__ import annotations

import random

import numpy as np
import pytest

from daemon.simulation.placement.ground import Ground, GroundHost
from daemon.simulation.placement.queries import draw
from sbon.coordinate import Coordinate
from sbon.errors import UnavailableError
from sbon.network_usage import network_usage
from sbon.placement import strategies
from sbon.placement.capacitated import capacitated_optimum
from sbon.placement.capacity import Demand, Resources, fits
from sbon.placement.choice import Placement
from sbon.placement.problem import PlacementProblem
from sbon.placement.questions import Task

HOSTS = 150
ONE_CORE = Demand(cpu_cores=1.0)


@pytest.fixture
def ground() -> Ground:
    rng = random.Random(5)
    points = np.array([(rng.uniform(0.0, 150.0), rng.uniform(0.0, 150.0)) for _ in range(HOSTS)])
    rtt_ms = np.hypot(*(points[:, None, :] - points).transpose(2, 0, 1)) + 1.0
    np.fill_diagonal(rtt_ms, 0.0)
    hosts = [GroundHost(f"n{i}", Coordinate((float(x), float(y)), 0.5, 0.05)) for i, (x, y) in enumerate(points)]
    return Ground(hosts, rtt_ms, [rng.sample(range(HOSTS), 16) for _ in hosts])


def placed(ground: Ground, problem: PlacementProblem, name: str = "sbon") -> Placement:
    task = Task(problem, ground.view, random.Random(1), demand=dict.fromkeys(problem.unpinned, ONE_CORE))
    placement = ground.place_all([strategies.load(name).place(task)])[0].placement
    assert placement is not None
    return placement


def queries(ground: Ground, shape: str, count: int) -> list[PlacementProblem]:
    rng = random.Random(7)
    return [draw(shape, ground.node_ids, 4, rng) for _ in range(count)]


def test_full_hosts_are_passed_over_for_the_next_best(ground: Ground) -> None:
    for problem in queries(ground, "aggregate-4", 5):
        first = placed(ground, problem).hosts["aggregate"]
        ground.room = {first: Resources(cpu_cores=0.5)}
        placement = placed(ground, problem)
        demand = dict.fromkeys(problem.unpinned, ONE_CORE)
        assert placement.hosts["aggregate"] != first
        best = capacitated_optimum(problem, ground.truth, demand, ground.room).hosts
        usage = [network_usage(problem.links, hosts, ground.true_rtt_ms) for hosts in (placement.hosts, best)]
        assert usage[0] <= 1.05 * usage[1]


def test_where_all_that_were_found_are_full_others_are_looked_for(ground: Ground) -> None:
    problem = queries(ground, "aggregate-4", 1)[0]
    centre = ground.index[placed(ground, problem).hosts["aggregate"]]
    nearest = np.argsort(ground.rtt_ms[centre], kind="stable")
    ground.room = {ground.node_ids[index]: Resources(cpu_cores=0.5) for index in nearest[:110]}
    assert placed(ground, problem).hosts["aggregate"] not in ground.room


def test_operators_that_fit_one_by_one_and_not_together_part(ground: Ground) -> None:
    ground.room = {node_id: Resources(cpu_cores=1.0) for node_id in ground.node_ids}
    for shape in ("chain", "tree"):
        for problem in queries(ground, shape, 6):
            demand = dict.fromkeys(problem.unpinned, ONE_CORE)
            for name in ("sbon", "optimal"):
                placement = placed(ground, problem, name)
                assert fits(problem, placement.hosts, demand, ground.room), name
                for choice in placement.choices:
                    assert choice.chosen == placement.hosts[choice.operator]


def test_bandwidth_counts_too(ground: Ground) -> None:
    problem = queries(ground, "aggregate-4", 1)[0]
    near = placed(ground, problem).hosts["aggregate"]
    into = problem.input_rate_bytes_per_s("aggregate")
    ground.room = {node_id: Resources(in_bytes_per_s=0.9 * into) for node_id in ground.node_ids[: HOSTS // 2]}
    ground.room[near] = Resources(in_bytes_per_s=0.9 * into)
    chosen = placed(ground, problem).hosts["aggregate"]
    # A producer's own host takes in one stream less.
    assert chosen not in ground.room or chosen in problem.pinned.values()


def test_where_nothing_fits_that_is_said(ground: Ground) -> None:
    ground.room = {node_id: Resources(cpu_cores=0.5) for node_id in ground.node_ids}
    for name in ("sbon", "optimal"):
        with pytest.raises(UnavailableError, match="cancel a query"):
            placed(ground, queries(ground, "aggregate-4", 1)[0], name)
