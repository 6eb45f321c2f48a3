"""The optimum is exact: against brute force on random cases, and against itself by other means."""

from __future__ import annotations

import itertools
import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sbon.errors import UnavailableError
from sbon.network_usage import Link, placement_cost
from sbon.placement.optimum import Tables, Truth, min_plus, optimum
from sbon.placement.problem import PlacementProblem


def cost_of(problem: PlacementProblem, truth: Truth, hosts: dict[str, str]) -> float:
    index = truth.index()
    return placement_cost(
        problem.links,
        hosts,
        problem.unpinned,
        lambda a, b: 2000.0 * float(truth.one_way_s[index[a], index[b]]),
        lambda node_id: 1000.0 * float(truth.load_s[index[node_id]]),
    )


def brute_force(problem: PlacementProblem, truth: Truth) -> float:
    takers = [node_id for node_id, takes in zip(truth.node_ids, truth.takes, strict=True) if takes]
    return min(
        cost_of(problem, truth, dict(problem.pinned) | dict(zip(problem.unpinned, choice, strict=True)))
        for choice in itertools.product(takers, repeat=len(problem.unpinned))
    )


def random_truth(rng: random.Random, hosts: int, *, loads: bool = True) -> Truth:
    """Round trips that obey no triangle inequality; some hosts take no operators."""
    upper = np.triu(np.array([[rng.uniform(0.0, 300.0) for _ in range(hosts)] for _ in range(hosts)]), 1)
    takes = np.array([rng.random() < 0.8 for _ in range(hosts)])
    takes[rng.randrange(hosts)] = True
    load_ms = np.array([rng.uniform(0.0, 40.0) if loads else 0.0 for _ in range(hosts)])
    return Truth.of([f"h{i}" for i in range(hosts)], upper + upper.T, takes=takes, load_ms=load_ms)


def random_problem(rng: random.Random, truth: Truth, operators: int, *, tree: bool) -> PlacementProblem:
    links = []
    for k in range(operators):
        if k:
            earlier = rng.sample(range(k), 1 if tree else min(k, rng.randint(1, 2)))
            links += [Link(f"op{j}", f"op{k}", rng.choice((0.0, rng.uniform(1.0, 1e4)))) for j in earlier]
        links += [Link(f"p{k}.{n}", f"op{k}", rng.uniform(1.0, 1e4)) for n in range(rng.randint(0, 2))]
    links.append(Link(f"op{operators - 1}", "sink", rng.uniform(1.0, 1e4)))
    ends = {end for link in links for end in (link.source, link.target)}
    pinned = {end: rng.choice(truth.node_ids) for end in sorted(ends) if not end.startswith("op")}
    return PlacementProblem(tuple(links), pinned)


@settings(max_examples=1000, deadline=None)
@given(st.integers(0, 2**32), st.integers(1, 4), st.integers(1, 5), st.booleans())
def test_the_optimum_is_that_of_brute_force(seed: int, operators: int, hosts: int, tree: bool) -> None:
    rng = random.Random(seed)
    truth = random_truth(rng, hosts)
    problem = random_problem(rng, truth, operators, tree=tree)
    found = optimum(problem, truth)
    assert found.cost == pytest.approx(brute_force(problem, truth))
    assert found.cost == pytest.approx(cost_of(problem, truth, found.hosts))
    takers = {node_id for node_id, takes in zip(truth.node_ids, truth.takes, strict=True) if takes}
    assert {found.hosts[operator] for operator in problem.unpinned} <= takers


@settings(max_examples=100, deadline=None)
@given(st.integers(0, 2**32), st.integers(1, 4))
def test_with_an_operator_somewhere_the_rest_is_at_its_best(seed: int, operators: int) -> None:
    rng = random.Random(seed)
    truth = random_truth(rng, 4)
    problem = random_problem(rng, truth, operators, tree=True)
    tables = Tables.of(problem, truth)
    for operator, costs in tables.minimum_with().items():
        for position, host in enumerate(tables.candidates):
            fixed = PlacementProblem(problem.links, {**problem.pinned, operator: truth.node_ids[int(host)]})
            load = problem.input_rate_bytes_per_s(operator) * float(truth.load_s[host])
            assert costs[position] == pytest.approx(optimum(fixed, truth).cost + load)


def test_min_plus_over_more_hosts_than_a_block() -> None:
    rng = np.random.default_rng(1)
    latency_s, costs = rng.random((300, 300)), rng.random(300)
    latency_s = latency_s + latency_s.T
    expected = (costs[:, None] + 7.0 * latency_s).min(axis=0)
    np.testing.assert_allclose(min_plus(costs, latency_s, 7.0), expected)


def test_over_1550_hosts_no_operator_is_better_off_elsewhere() -> None:
    """How long that takes is told by tests.benchmarks.placement_scale."""
    latencies = np.random.default_rng(5).uniform(1.0, 300.0, (1550, 1550))
    truth = Truth.of([f"h{i}" for i in range(1550)], latencies + latencies.T - np.diag(2 * np.diag(latencies)))
    problem = random_problem(random.Random(5), truth, 6, tree=True)
    found = optimum(problem, truth)
    assert found.cost == pytest.approx(cost_of(problem, truth, found.hosts))
    for operator in problem.unpinned:
        elsewhere = min(cost_of(problem, truth, {**found.hosts, operator: node_id}) for node_id in truth.node_ids)
        assert elsewhere == pytest.approx(found.cost)


def test_without_a_host_there_is_no_optimum() -> None:
    truth = Truth.of(["a", "b"], np.array([[0.0, 1.0], [1.0, 0.0]]), takes=np.array([False, False]))
    problem = PlacementProblem((Link("p", "op", 1.0), Link("op", "c", 1.0)), {"p": "a", "c": "b"})
    with pytest.raises(UnavailableError):
        optimum(problem, truth)


def test_a_matrix_that_is_none_of_latencies_is_refused() -> None:
    with pytest.raises(ValueError, match="shape"):
        Truth.of(["a"], np.zeros((2, 2)))
    with pytest.raises(ValueError, match="both directions"):
        Truth.of(["a", "b"], np.array([[0.0, 1.0], [2.0, 0.0]]))
    with pytest.raises(ValueError, match="finite"):
        Truth.of(["a", "b"], np.array([[0.0, np.nan], [np.nan, 0.0]]))
