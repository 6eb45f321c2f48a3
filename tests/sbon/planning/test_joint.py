"""The joint planner is exact: against brute force on small cases, against an independent search on larger ones."""

from __future__ import annotations

import math
import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sbon.errors import UnavailableError
from sbon.placement.optimum import Truth
from sbon.planning import planners
from sbon.planning.problem import JoinQuery, Use
from sbon.planning.running import Running
from sbon.planning.signature import Signature
from sbon.planning.situation import Situation
from tests.sbon.planning.cases import World, brute_force, check, metric_network, random_network, situation_with


@given(seed=st.integers(0, 10_000), hosts=st.integers(1, 4), streams=st.integers(1, 4), queries=st.integers(0, 4))
@settings(max_examples=60, deadline=None)
def test_it_equals_brute_force(seed: int, hosts: int, streams: int, queries: int) -> None:
    rng = random.Random(seed)
    network = random_network(rng, hosts, loads=rng.random() < 0.5)
    world = World(rng, 5, hosts, complete=rng.random() < 0.7)
    situation = situation_with(world, network, queries, 3)
    query = world.query(streams if hosts < 4 else min(streams, 3))
    least = brute_force(query, situation)
    for name in ("joint", "optimal"):
        plan = planners.load(name).plan(query, situation)
        check(query, plan, situation)
        assert math.isclose(plan.cost, least, rel_tol=1e-9, abs_tol=1e-9)


@pytest.mark.parametrize("seed", range(4))
def test_it_equals_the_enumeration_of_trees_on_more_hosts(seed: int) -> None:
    rng = random.Random(seed)
    network = metric_network(rng, 250 if seed % 2 else 60)  # with and without a bound looked for first
    world = World(rng, 7, len(network.node_ids), complete=seed < 2)
    situation = situation_with(world, network, 12, 5)
    for streams in (2, 3, 4, 5):
        query = world.query(streams)
        joint, optimal = (planners.load(name).plan(query, situation) for name in ("joint", "optimal"))
        check(query, joint, situation)
        assert joint.cost == pytest.approx(optimal.cost, rel=1e-9)


def test_a_stream_that_runs_is_used_where_that_is_cheaper() -> None:
    # Two sites 100 ms apart; the streams are at the one, both sinks at the other.
    network = Truth.of(["here", "there"], np.array([[0.0, 100.0], [100.0, 0.0]]))
    situation = Situation(network, Running())
    planner = planners.load("joint")
    first = _pair("first", sink=1)
    plan = planner.plan(first, situation)
    assert plan.cost == pytest.approx(10.0 * 0.05)  # joined here, the result sent
    situation.running.deploy(first, plan.tree)
    again = planner.plan(_pair("second", sink=1), situation)
    assert isinstance(again.tree, Use)
    assert again.cost == 0.0


def test_a_stream_with_fewer_filters_stands_in_and_one_with_more_does_not() -> None:
    network = Truth.of(["here", "there"], np.array([[0.0, 100.0], [100.0, 0.0]]))
    situation = Situation(network, Running())
    planner = planners.load("joint")
    narrow = _pair("narrow", sink=1, filters=frozenset({"a", "b"}))
    situation.running.deploy(narrow, planner.plan(narrow, situation).tree)
    assert not any(use.running and use.host == 1 for use in situation.running.usable(_pair("wide", sink=1)))
    assert [use.host for use in situation.running.usable(_pair("other", sink=1, filters=frozenset({"a"})))] == [0]
    assert [use.host for use in situation.running.usable(narrow)] == [0, 1]


def test_what_cannot_be_joined_is_refused() -> None:
    network = metric_network(random.Random(1), 3)
    split = JoinQuery(
        "split", (0, 1), (0.0, 1.0, 1.0, 1.0), (Signature(""), *map(Signature, "ABC")), 2, 1.0, Signature("C")
    )
    nobody = Truth(network.node_ids, network.one_way_s, np.zeros(3, dtype=np.bool_), network.load_s)
    for name in ("joint", "optimal", "plan-then-place"):
        with pytest.raises(UnavailableError, match="split cannot be p"):
            planners.load(name).plan(split, Situation(nobody, Running()))
    with pytest.raises(ValueError, match="finite"):
        JoinQuery(
            "split", (0, 1), (0.0, 1.0, 1.0, math.inf), (Signature(""), *map(Signature, "ABC")), 2, 1.0, Signature("C")
        )


def _pair(name: str, sink: int, filters: frozenset[str] = frozenset()) -> JoinQuery:
    signatures = (Signature(""), Signature("A"), Signature("B"), Signature("A,B"))
    return JoinQuery(name, (0, 0), (0.0, 50.0, 50.0, 10.0), signatures, sink, 10.0, Signature("A,B", filters))
