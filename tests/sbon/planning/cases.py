"""Random queries over random networks, with streams that run already."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Iterator

import numpy as np

from sbon.placement.optimum import Truth
from sbon.planning.cost import cost
from sbon.planning.planners import load
from sbon.planning.problem import Join, JoinQuery, Plan, Tree, joins, uses
from sbon.planning.running import Running
from sbon.planning.signature import Signature
from sbon.planning.situation import Situation, available


def random_network(rng: random.Random, hosts: int, *, loads: bool = False) -> Truth:
    """Latencies that obey no triangle inequality; some hosts take no operators."""
    upper = np.triu(np.array([[rng.uniform(0.0, 300.0) for _ in range(hosts)] for _ in range(hosts)]), 1)
    takes = np.array([rng.random() < 0.8 for _ in range(hosts)])
    takes[rng.randrange(hosts)] = True
    load_ms = np.array([rng.uniform(0.0, 40.0) if loads else 0.0 for _ in range(hosts)])
    return Truth.of([f"h{i}" for i in range(hosts)], upper + upper.T, takes=takes, load_ms=load_ms)


def metric_network(rng: random.Random, hosts: int) -> Truth:
    """Points in the plane: latencies that obey the triangle inequality."""
    points = np.array([(rng.uniform(0.0, 100.0), rng.uniform(0.0, 100.0)) for _ in range(hosts)])
    distances = np.linalg.norm(points[:, None] - points[None], axis=2)
    return Truth.of([f"h{i}" for i in range(hosts)], distances)


class World:
    """Streams with hosts, rates and pairwise selectivities; queries over some of them."""

    def __init__(self, rng: random.Random, streams: int, hosts: int, *, complete: bool = True) -> None:
        self.rng = rng
        self.hosts = [rng.randrange(hosts) for _ in range(streams)]
        self._network_hosts = hosts
        self._rates = [rng.uniform(1.0, 100.0) for _ in range(streams)]
        self._joined = {
            pair: rng.uniform(0.005, 0.1)
            for pair in itertools.combinations(range(streams), 2)
            if complete or pair[0] == 0 or rng.random() < 0.5  # so that something connected is always found
        }
        self._count = 0

    def query(self, streams: int) -> JoinQuery:
        """A query over so many streams whose join graph is connected, if there is one."""
        while True:
            chosen = sorted(self.rng.sample(range(len(self.hosts)), streams))
            rates = [self._rate([chosen[i] for i in range(streams) if mask >> i & 1]) for mask in range(1 << streams)]
            if math.isfinite(rates[-1]):
                break
        signatures = [
            Signature(",".join(str(chosen[i]) for i in range(streams) if mask >> i & 1)) for mask in range(1 << streams)
        ]
        self._count += 1
        filtered = self.rng.random() < 0.3
        return JoinQuery(
            name=f"q{self._count}",
            hosts=tuple(self.hosts[stream] for stream in chosen),
            rates=tuple(rates),
            signatures=tuple(signatures),
            sink=self.rng.randrange(self._network_hosts),
            result_rate=rates[-1] * (0.1 if filtered else 1.0),
            result=Signature(signatures[-1].body, frozenset({f"f{self.rng.randrange(3)}"} if filtered else ())),
        )

    def _rate(self, streams: list[int]) -> float:
        if not streams:
            return 0.0
        reached = {streams[0]}
        while more := {b for a in reached for b in streams if (min(a, b), max(a, b)) in self._joined} - reached:
            reached |= more
        if len(reached) < len(streams):
            return math.inf
        inside = [share for (a, b), share in self._joined.items() if a in streams and b in streams]
        return math.prod(self._rates[stream] for stream in streams) * math.prod(inside)


def situation_with(world: World, network: Truth, queries: int, most_streams: int) -> Situation:
    """A network on which some queries run."""
    situation = Situation(network, Running())
    for _ in range(queries):
        query = world.query(world.rng.randint(2, most_streams))
        situation.running.deploy(query, load("joint").plan(query, situation).tree)
    situation.running.validate()
    return situation


def all_trees(query: JoinQuery, situation: Situation, mask: int) -> Iterator[Tree]:
    """Every plan there is, by brute force: every tree, every stream that can be reused, every placement."""
    yield from (leaf.tree for leaf in available(query, situation) if leaf.tree.mask == mask)
    if query.joinable(mask):
        for part in range(1, mask):
            if part & mask == part and part > mask ^ part:
                for left in all_trees(query, situation, part):
                    for right in all_trees(query, situation, mask ^ part):
                        for host in situation.takers:
                            yield Join(mask, int(host), left, right)


def brute_force(query: JoinQuery, situation: Situation) -> float:
    return min(cost(query, tree, situation.network) for tree in all_trees(query, situation, query.everything))


def check(query: JoinQuery, plan: Plan, situation: Situation) -> None:
    """A plan covers each stream once, on hosts that take operators, and costs what it says."""
    covered = 0
    for use in uses(plan.tree):
        assert covered & use.mask == 0
        covered |= use.mask
    assert covered == query.everything
    for join in joins(plan.tree):
        assert situation.network.takes[join.host]
        assert query.joinable(join.mask)
        assert join.mask == join.left.mask | join.right.mask
    assert math.isclose(plan.cost, cost(query, plan.tree, situation.network), rel_tol=1e-9, abs_tol=1e-9)
