"""What searches find if all hosts know exactly whom they should: the bound that the size of tables and the order of
questions set, whatever nodes hear of each other, and how it falls with the size of the overlay.

    python -m tests.benchmarks.ideal_tables --rtt rtt.npz [--nodes 1000 10000] [--searches 200]
                                            [--near 14 --uncovered 20 --far 4]

The sites of the matrix find their places from each other; further hosts are copies of them, two ms apart. A host knows
its nearest, the nearest of those that nobody nearer covers, and some random ones. The searches are the overlay's own
(:mod:`overlay.search`), answered at once. Prints, by number of nodes, recall@10 and the hosts asked.
"""

from __future__ import annotations

import argparse
import heapq
import random
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from daemon.simulation.latency import Network, load
from overlay.identity import NodeId
from overlay.records import NodeRecord
from overlay.search import Search
from sbon.coordinate import FACTOR_SIGNS, MIN_HEIGHT_MS, Coordinate
from sbon.coordinate_estimator import CoordinateEstimator
from sbon.objectives import Endpoint, LeastUsage, NearestTo, Objective

Array = NDArray[np.float64]
PROBES = 300
COPY_NOISE_MS = 2.0
COPY_NOISE_FACTOR = 0.1
K = 10
#: Records that fit an answer.
NAMED = 12


class World:
    """Hosts at their places, and what each of them knows."""

    def __init__(self, network: Network, sites: int, nodes: int, seed: int) -> None:
        places = _embed(network, sites, random.Random(seed))
        rng = np.random.default_rng(seed)
        self.records: list[NodeRecord] = []
        for index in range(nodes):
            place = places[index % sites]
            self.records.append(_record(index, place if index < sites else _copy(place, rng)))
        self.index_of = {record.node_id: index for index, record in enumerate(self.records)}
        self._rng = random.Random(seed)
        self._known: dict[int, list[NodeRecord]] = {}

    @cached_property
    def _arrays(self) -> tuple[Array, Array, Array]:
        places = [record.coordinate for record in self.records]
        vectors = np.array([place.vector_ms for place in places])
        heights = np.array([place.height_ms for place in places])
        return vectors, heights, np.array([place.factors for place in places])

    def rtt_ms(self, host: int) -> Array:
        """To all hosts; infinite to itself. Shape (nodes,)."""
        vectors, heights, factors = self._arrays
        apart = np.sqrt(((vectors - vectors[host]) ** 2).sum(axis=1)) + heights + heights[host]
        rtt_ms = np.maximum(apart + factors @ (np.array(FACTOR_SIGNS) * factors[host]), MIN_HEIGHT_MS)
        rtt_ms[host] = np.inf
        return np.asarray(rtt_ms)

    def known(self, host: int, near: int, uncovered: int, far: int) -> list[NodeRecord]:
        if host not in self._known:
            rtt_ms = self.rtt_ms(host)
            nearest = np.argsort(rtt_ms)[:near]
            others = [self._rng.randrange(len(self.records)) for _ in range(far)]
            indices = dict.fromkeys([*map(int, nearest), *self._uncovered(rtt_ms, uncovered), *others])
            self._known[host] = [self.records[index] for index in indices if index != host]
        return self._known[host]

    def _uncovered(self, rtt_ms: Array, at_most: int) -> list[int]:
        """Of those that no nearer one of them is nearer to than the host is, the nearest."""
        left = rtt_ms.copy()
        kept: list[int] = []
        while len(kept) < at_most and np.isfinite(left).any():
            kept.append(int(np.argmin(left)))
            left[(self.rtt_ms(kept[-1]) < rtt_ms) | (left == left[kept[-1]])] = np.inf
        return kept


def _embed(network: Network, sites: int, rng: random.Random) -> list[Coordinate]:
    """Places that the sites find by probing each other at random."""
    estimators = [CoordinateEstimator() for _ in range(sites)]
    for _ in range(PROBES):
        for site, estimator in enumerate(estimators):
            other = rng.randrange(sites)
            rtt_ms = network.truth_ms(site, other)
            if other != site and rtt_ms == rtt_ms:
                estimator.update(rtt_ms, estimators[other].coordinate, rng)
    return [estimator.coordinate for estimator in estimators]


def _copy(place: Coordinate, rng: np.random.Generator) -> Coordinate:
    vector = np.array(place.vector_ms) + rng.normal(0.0, COPY_NOISE_MS, place.dimensions)
    factors = np.array(place.factors) + rng.normal(0.0, COPY_NOISE_FACTOR, len(place.factors))
    height_ms = max(
        MIN_HEIGHT_MS, place.height_ms + rng.exponential(COPY_NOISE_MS) + rng.normal(0.0, COPY_NOISE_MS / 2)
    )
    return Coordinate(tuple(vector.tolist()), float(height_ms), place.error, tuple(factors.tolist()))


def _record(index: int, place: Coordinate) -> NodeRecord:
    return NodeRecord(
        node_id=f"{index + 1:032x}", name=f"n{index}", host="10.0.0.1", port=7400, boot_id=1, coordinate=place
    )


def search(world: World, asker: int, objective: Objective, ends: Sequence[int], table: tuple[int, int, int]) -> Search:
    """One search, each question answered at once by the best that the host asked knows and the asker does not."""
    run = Search(objective, K, 1.0)
    run.know(world.records[asker], asked=True)
    for record in [*world.known(asker, *table), *(world.records[end] for end in ends)]:
        run.know(record)
    told: set[NodeId] = set()
    guide = objective.guide()
    while to_ask := run.to_ask(0.0):
        for host in to_ask:
            run.answered(host.node_id)
            news = [
                record for record in world.known(world.index_of[host.node_id], *table) if record.node_id not in told
            ]
            by_cost, by_guide = (heapq.nsmallest(NAMED, news, key=cost) for cost in (objective.cost, guide.cost))
            named = dict.fromkeys(record.node_id for pair in zip(by_cost, by_guide, strict=True) for record in pair)
            for node_id in list(named)[:NAMED]:
                told.add(node_id)
                run.know(world.records[world.index_of[node_id]])
    return run


def measure(world: World, searches: int, table: tuple[int, int, int], seed: int) -> dict[str, tuple[float, float]]:
    """Recall@10 and mean hosts asked, for the nearest to a host and for least usage, as the simulator asks for them."""
    figures = {}
    for kind in ("nearest", "usage"):
        rng, hits, contacts = random.Random(seed), 0, 0
        for _ in range(searches):
            hosts = range(len(world.records))
            asker, ends = rng.choice(hosts), rng.sample(hosts, 1 if kind == "nearest" else rng.randint(3, 5))
            places = [(world.records[end].coordinate, world.records[end].node_id) for end in ends]
            objective: Objective = NearestTo(*places[0])
            if kind == "usage":
                objective = LeastUsage(
                    tuple(Endpoint(place, 10.0 ** rng.uniform(3.0, 6.0), end) for place, end in places)
                )
            run = search(world, asker, objective, ends if kind == "usage" else (), table)
            costs = heapq.nsmallest(K, map(objective.cost, world.records))
            hits += sum(objective.cost(record) <= costs[-1] for record in run.result())
            contacts += run.contacts
        figures[kind] = (hits / (K * searches), contacts / searches)
    return figures


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="What searches find if all hosts know exactly whom they should.")
    parser.add_argument("--rtt", type=Path, action="append", required=True)
    parser.add_argument("--nodes", type=int, nargs="+", default=[1000, 10000])
    parser.add_argument("--searches", type=int, default=200)
    parser.add_argument("--near", type=int, default=14)
    parser.add_argument("--uncovered", type=int, default=20)
    parser.add_argument("--far", type=int, default=4)
    parser.add_argument("--seed", type=int, default=1)
    parsed = parser.parse_args(arguments)
    network = Network(load(parsed.rtt), parsed.seed, play=False)
    sites = len(network.sites)
    for _ in range(sites):
        network.add_host()
    for nodes in parsed.nodes:
        world = World(network, sites, nodes, parsed.seed)
        table = (parsed.near, parsed.uncovered, parsed.far)
        for kind, (recall, contacts) in measure(world, parsed.searches, table, parsed.seed).items():
            print(f"{nodes} nodes, {kind}: recall@10 {recall:.4f}, {contacts:.1f} hosts asked", flush=True)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
