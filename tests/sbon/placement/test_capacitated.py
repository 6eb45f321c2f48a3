"""The optimum where hosts can be full, against brute force; hundreds of hosts are ruled out before it is solved."""

from __future__ import annotations

import itertools
import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sbon.errors import UnavailableError
from sbon.network_usage import Link
from sbon.placement.capacitated import capacitated_optimum
from sbon.placement.capacity import Demand, Resources, fits
from sbon.placement.optimum import Truth, optimum
from sbon.placement.problem import PlacementProblem
from tests.sbon.placement.test_optimum import cost_of, random_problem, random_truth


def random_room(rng: random.Random, truth: Truth) -> dict[str, Resources]:
    return {
        node_id: Resources(
            cpu_cores=rng.choice((0.5, 1.0, 2.0, float("inf"))),
            memory_bytes=rng.choice((1e8, 1e9, float("inf"))),
            in_bytes_per_s=rng.choice((5e3, 2e4, float("inf"))),
            out_bytes_per_s=rng.choice((5e3, 2e4, float("inf"))),
        )
        for node_id in truth.node_ids
        if rng.random() < 0.9
    }


def random_demand(rng: random.Random, problem: PlacementProblem) -> dict[str, Demand]:
    return {operator: Demand(rng.choice((0.2, 0.5, 1.0)), rng.choice((1e7, 5e8))) for operator in problem.unpinned}


@settings(max_examples=250, deadline=None)
@given(st.integers(0, 2**32), st.integers(1, 4), st.integers(1, 4), st.booleans())
def test_it_is_that_of_brute_force(seed: int, operators: int, hosts: int, tree: bool) -> None:
    rng = random.Random(seed)
    truth = random_truth(rng, hosts)
    problem = random_problem(rng, truth, operators, tree=tree)
    demand, room = random_demand(rng, problem), random_room(rng, truth)
    takers = [node_id for node_id, takes in zip(truth.node_ids, truth.takes, strict=True) if takes]
    placements = (
        dict(problem.pinned) | dict(zip(problem.unpinned, choice, strict=True))
        for choice in itertools.product(takers, repeat=len(problem.unpinned))
    )
    costs = [cost_of(problem, truth, hosts) for hosts in placements if fits(problem, hosts, demand, room)]
    if not costs:
        with pytest.raises(UnavailableError):
            capacitated_optimum(problem, truth, demand, room)
        return
    found = capacitated_optimum(problem, truth, demand, room)
    assert fits(problem, found.hosts, demand, room)
    assert found.cost == pytest.approx(min(costs), rel=1e-6)
    assert found.cost == pytest.approx(cost_of(problem, truth, found.hosts))


def test_where_nothing_binds_it_is_the_optimum() -> None:
    rng = random.Random(1)
    truth = random_truth(rng, 30)
    problem = random_problem(rng, truth, 4, tree=True)
    assert capacitated_optimum(problem, truth, {}, {}).cost == optimum(problem, truth).cost


def test_operators_that_would_share_a_full_host_part() -> None:
    truth = Truth.of(["a", "b", "c"], np.array([[0.0, 10.0, 90.0], [10.0, 0.0, 90.0], [90.0, 90.0, 0.0]]))
    links = (Link("p", "x", 1000.0), Link("x", "y", 500.0), Link("y", "s", 10.0))
    problem = PlacementProblem(links, {"p": "a", "s": "c"})
    assert optimum(problem, truth).hosts == {"p": "a", "x": "a", "y": "a", "s": "c"}
    one_each = {"a": Resources(cpu_cores=1.0)}
    found = capacitated_optimum(problem, truth, {"x": Demand(1.0), "y": Demand(1.0)}, one_each)
    assert (found.hosts["x"], found.hosts["y"]) == ("a", "b")


def test_a_network_that_is_full_is_gone_round() -> None:
    truth = Truth.of(["a", "b", "c"], np.array([[0.0, 10.0, 90.0], [10.0, 0.0, 90.0], [90.0, 90.0, 0.0]]))
    problem = PlacementProblem((Link("p", "x", 1000.0), Link("q", "x", 10.0), Link("x", "s", 10.0)),
                               {"p": "a", "q": "b", "s": "c"})  # fmt: skip
    assert optimum(problem, truth).hosts["x"] == "a"
    found = capacitated_optimum(problem, truth, {}, {"a": Resources(in_bytes_per_s=5.0)})
    assert found.hosts["x"] == "b"


def test_hundreds_of_hosts_are_no_matter() -> None:
    rng = random.Random(3)
    truth = random_truth(rng, 300, loads=False)
    problem = random_problem(rng, truth, 5, tree=True)
    best = optimum(problem, truth)
    full = {best.hosts[operator]: Resources(cpu_cores=0.5) for operator in problem.unpinned}
    found = capacitated_optimum(problem, truth, dict.fromkeys(problem.unpinned, Demand(1.0)), full)
    assert found.cost > best.cost
    assert not {found.hosts[operator] for operator in problem.unpinned} & set(full)
