"""Clusters of hosts, and the planners that plan in them: bounds of the theorems of Seshadri et al. (TPDS'09)."""

from __future__ import annotations

import random

import numpy as np
import pytest

from sbon.planning import planners
from sbon.planning.cost import cost
from sbon.planning.hierarchy import Hierarchy, build
from sbon.planning.problem import Join, JoinQuery, Use
from sbon.planning.running import Running
from sbon.planning.search_space import exhaustive, hierarchical_bound
from sbon.planning.situation import Situation
from tests.sbon.planning.cases import World, check, metric_network, random_network

HIERARCHICAL = ("top-down", "npc", "bottom-up")


def situation(seed: int, hosts: int, max_cs: int) -> tuple[Situation, World]:
    rng = random.Random(seed)
    network = metric_network(rng, hosts)
    hierarchy = build(network.one_way_s, max_cs, rng)
    return Situation(network, Running(), hierarchy), World(rng, 8, hosts)


def hierarchy_of(there: Situation) -> Hierarchy:
    return there.clusters()


def representative(hierarchy: Hierarchy, host: int, level: int) -> int:
    """The member of a level's clusters that stands for the host there: itself at level 1."""
    return host if level == 1 else hierarchy.cluster_of(host, level - 1).coordinator


@pytest.mark.parametrize(("hosts", "max_cs"), [(1, 4), (5, 8), (60, 8), (100, 3), (50, 2)])
def test_every_host_is_in_one_cluster_of_each_level(hosts: int, max_cs: int) -> None:
    there, _ = situation(1, hosts, max_cs)
    hierarchy = hierarchy_of(there)
    members = list(range(hosts))
    for clusters in hierarchy.levels:
        assert sorted(member for cluster in clusters for member in cluster.members) == sorted(members)
        assert all(cluster.coordinator in cluster.members for cluster in clusters)
        assert all(len(cluster.members) <= max_cs for cluster in clusters)
        members = [cluster.coordinator for cluster in clusters]
    assert len(hierarchy.levels[-1]) == 1
    for host in range(hosts):
        for level in range(1, hierarchy.height + 1):
            cluster = hierarchy.cluster_of(host, level)
            assert representative(hierarchy, host, level) in cluster.members
            assert hierarchy.is_in(host, cluster)
    assert hierarchy.size(hierarchy.top) == hosts


def test_hosts_at_one_place_are_clustered_too() -> None:
    hierarchy = build(np.zeros((9, 9)), 2, random.Random(1))
    assert all(len(cluster.members) <= 2 for clusters in hierarchy.levels for cluster in clusters)
    with pytest.raises(ValueError, match="at least 2"):
        build(np.zeros((3, 3)), 1, random.Random(1))


@pytest.mark.parametrize("seed", range(3))
def test_distances_between_representatives_are_off_by_no_more_than_theorem_1_says(seed: int) -> None:
    there, _ = situation(seed, 60, 6)
    hierarchy, one_way_s = hierarchy_of(there), there.network.one_way_s
    diameters = hierarchy.diameters(one_way_s)
    for level in range(1, hierarchy.height + 1):
        slack = 2.0 * sum(diameters[: level - 1])
        heads = np.array([representative(hierarchy, host, level) for host in range(60)])
        estimated = one_way_s[np.ix_(heads, heads)]
        assert (one_way_s <= estimated + slack + 1e-12).all()


@pytest.mark.parametrize("name", ["top-down", "bottom-up"])
@pytest.mark.parametrize("max_cs", [4, 8, 32])
def test_search_spaces_keep_to_theorems_2_and_4(name: str, max_cs: int) -> None:
    there, world = situation(4, 64, max_cs)
    height = hierarchy_of(there).height
    for _ in range(10):
        query = world.query(world.rng.randint(2, 5))
        plan = planners.load(name).plan(query, there)
        check(query, plan, there)
        streams = len(query.hosts)
        assert 0 < plan.work.plans <= hierarchical_bound(streams, max_cs, height)


def test_the_exhaustive_search_is_as_large_as_lemma_1_says() -> None:
    # Orders of joins: K! (K-1)! / 2^(K-1); the paper's example, five streams on 64 nodes, has 3.02e9 plans.
    assert [exhaustive(streams, 1) for streams in (2, 3, 4, 5)] == [1, 3, 18, 180]
    assert exhaustive(5, 64) == pytest.approx(3.02e9, rel=0.001)
    assert exhaustive(5, 128) == pytest.approx(4.83e10, rel=0.001)


@pytest.mark.parametrize("seed", range(3))
def test_top_down_is_within_the_bound_of_theorem_3(seed: int) -> None:
    there, world = situation(seed, 60, 8)
    hierarchy = hierarchy_of(there)
    slack_s = 2.0 * sum(hierarchy.diameters(there.network.one_way_s)[:-1])
    for _ in range(15):
        query = world.query(world.rng.randint(2, 5))
        plan, best = (planners.load(name).plan(query, there) for name in ("top-down", "joint"))
        assert best.cost - 1e-9 <= plan.cost
        assert plan.cost <= best.cost + slack_s * edge_rates(query, best.tree)


def edge_rates(query: JoinQuery, tree: Join | Use) -> float:
    """Sum of the rates of all links of a plan."""
    below = edge_rates_below(query, tree)
    return below + query.result_rate


def edge_rates_below(query: JoinQuery, tree: Join | Use) -> float:
    if isinstance(tree, Use):
        return 0.0
    parts = (tree.left, tree.right)
    return sum(query.rates[part.mask] + edge_rates_below(query, part) for part in parts)


@pytest.mark.parametrize("name", [*HIERARCHICAL, "in-network", "plan-then-place"])
def test_plans_hold_with_what_runs_and_where_some_hosts_take_nothing(name: str) -> None:
    rng = random.Random(7)
    network = random_network(rng, 40, loads=True)
    there = Situation(network, Running(), build(network.one_way_s, 6, rng))
    world = World(rng, 7, 40, complete=False)
    for _ in range(30):
        query = world.query(rng.randint(1, 5))
        plan = planners.load(name).plan(query, there)
        check(query, plan, there)
        assert plan.cost >= planners.load("joint").plan(query, there).cost - 1e-9
        there.running.deploy(query, plan.tree)
        there.running.validate()


def test_one_cluster_of_all_hosts_plans_as_well_as_joint() -> None:
    there, world = situation(3, 20, 20)
    for _ in range(10):
        query = world.query(4)
        plan, best = (planners.load(name).plan(query, there) for name in ("top-down", "joint"))
        assert plan.cost == pytest.approx(best.cost)
        assert cost(query, plan.tree, there.network) == pytest.approx(plan.cost)
