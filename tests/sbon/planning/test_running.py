"""What runs: alive while somebody reads it."""

from __future__ import annotations

import random

import pytest

from sbon.planning import planners
from sbon.planning.problem import uses
from sbon.planning.replanning import replan
from sbon.planning.running import Running
from sbon.planning.situation import Situation
from tests.sbon.planning.cases import World, metric_network


def world_of(seed: int) -> tuple[Situation, World, random.Random]:
    rng = random.Random(seed)
    return Situation(metric_network(rng, 30), Running()), World(rng, 6, 30), rng


def test_what_others_read_outlives_the_query_that_started_it() -> None:
    there, world, rng = world_of(1)
    planner, planned = planners.load("joint"), {}
    for _ in range(40):
        query = world.query(rng.randint(2, 4))
        planned[query.name] = planner.plan(query, there).tree
        there.running.deploy(query, planned[query.name])
        there.running.validate()
    assert sum(use.running is not None for tree in planned.values() for use in uses(tree)) > 20
    names = list(there.running.queries)
    rng.shuffle(names)
    for name in names:
        before = there.running.network_usage(there.network)
        there.running.withdraw(name)
        there.running.validate()
        assert there.running.network_usage(there.network) <= before
    assert not list(there.running.streams)


def test_a_query_runs_once() -> None:
    there, world, _ = world_of(2)
    query = world.query(2)
    tree = planners.load("joint").plan(query, there).tree
    there.running.deploy(query, tree)
    with pytest.raises(ValueError, match="runs already"):
        there.running.deploy(query, tree)


def test_planning_anew_saves_and_keeps_all_queries() -> None:
    there, world, rng = world_of(3)
    queries = [world.query(rng.randint(2, 4)) for _ in range(40)]
    for query in queries:
        there.running.deploy(query, planners.load("joint").plan(query, there).tree)
    before = there.running.network_usage(there.network)
    assert replan(queries, there, moves=0) == 0
    assert there.running.network_usage(there.network) == before
    assert 0 < replan(queries, there, moves=len(queries)) <= len(queries)
    there.running.validate()
    assert set(there.running.queries) == {query.name for query in queries}
    assert there.running.network_usage(there.network) < before
