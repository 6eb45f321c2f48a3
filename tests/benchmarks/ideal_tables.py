"""What searches find if all hosts know exactly whom they should: the bound that the size of tables and the order of
questions set, whatever nodes hear of each other, and how it falls with the size of the overlay.

    python -m tests.benchmarks.ideal_tables --rtt rtt.npz [--nodes 1000 10000] [--searches 200]
                                            [--links 14 --pointers 28 --far 4] [--missing 0.3]

The sites of the matrix find their places from each other; further hosts are copies of them, two ms apart. A host knows
whom :mod:`overlay.links` and :mod:`overlay.pointers` would choose if they had heard of everybody: the most alike and
those that nobody more alike covers, the nearest, the best hubs, and some random ones. The searches are the overlay's
own (:mod:`overlay.search`), answered at once: for the nearest to a node, for those to a point between two nodes where
nobody is, and for least usage. Loads are drawn as in simulations. ``--missing``: this share of what a host should know
it has not heard of, as in an overlay that is young, or that is replaced. Prints, by number of nodes, recall@10, the
hosts asked, and of how many searches less than half was found.
"""

from __future__ import annotations

import argparse
import heapq
import random
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from daemon.simulation.latency import Network, load
from overlay.config import MAX_POINTERS
from overlay.identity import NodeId
from overlay.pointers import COVERS, LOAD_MS, NEAREST
from overlay.records import NodeRecord
from overlay.search import Search
from sbon.coordinate import FACTOR_SIGNS, MIN_HEIGHT_MS, TYPICAL_FACTOR, Coordinate
from sbon.coordinate_estimator import CoordinateEstimator
from sbon.objectives import Endpoint, LeastUsage, NearestTo, Objective

Array = NDArray[np.float64]
PROBES = 300
COPY_NOISE_MS = 2.0
COPY_NOISE_FACTOR = 0.1
K = 10
#: So many of the most alike are known whether anybody covers them or not; hubs are chosen among so many.
MOST_ALIKE = 4
HUBS = 600
#: Records that fit an answer.
NAMED = 12


class Table(NamedTuple):
    """Of how many others a host knows: by links to those alike, by pointers, and by chance."""

    links: int
    pointers: int
    far: int


class World:
    """Hosts at their places, and what each of them knows."""

    def __init__(self, network: Network, sites: int, nodes: int, seed: int, missing: float) -> None:
        places = _embed(network, sites, random.Random(seed))
        rng = np.random.default_rng(seed)
        self.records: list[NodeRecord] = []
        for index in range(nodes):
            place = places[index % sites]
            load = float(rng.random()) ** 2
            self.records.append(_record(index, place if index < sites else _copy(place, rng), load))
        self._missing = missing
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

    def unlike_ms(self, host: int) -> Array:
        """To all hosts, as :meth:`sbon.coordinate.Coordinate.unlike_ms`; infinite to itself. Shape (nodes,)."""
        vectors, heights, factors = self._arrays
        unlike_ms = np.sqrt(((vectors - vectors[host]) ** 2).sum(axis=1)) + np.abs(heights - heights[host])
        unlike_ms += TYPICAL_FACTOR * np.abs(factors - factors[host]).sum(axis=1)
        unlike_ms[host] = np.inf
        return np.asarray(unlike_ms)

    def known(self, host: int, table: Table) -> list[NodeRecord]:
        if host not in self._known:
            indices = self._links(host, table.links) + [
                self._rng.randrange(len(self.records)) for _ in range(table.far)
            ]
            indices += self._pointers(host, {host, *indices}, table.pointers)
            known = [self.records[index] for index in dict.fromkeys(indices) if index != host]
            self._known[host] = [record for record in known if self._rng.random() >= self._missing]
        return self._known[host]

    def _links(self, host: int, count: int) -> list[int]:
        """The most alike, then those that none of these who is more alike covers, filled up with the next alike."""
        unlike_ms = self.unlike_ms(host)
        alike = list(map(int, np.argsort(unlike_ms)[: len(unlike_ms) - 1]))
        uncovered = self._uncovered(alike, unlike_ms, count, 1.0)
        return list(dict.fromkeys([*alike[:MOST_ALIKE], *uncovered, *alike[:count]]))[:count]

    def _pointers(self, host: int, others: set[int], count: int) -> list[int]:
        """The nearest, then the best hubs: first those that no better one covers."""
        rtt_ms = self.rtt_ms(host)
        nearest = [index for index in map(int, np.argsort(rtt_ms)[: NEAREST + len(others)]) if index not in others]
        loads = np.array([record.load for record in self.records])
        hubs = list(map(int, np.argsort(rtt_ms + self._arrays[1] + LOAD_MS * loads)[:HUBS]))
        uncovered = self._uncovered(hubs, self.unlike_ms(host), count, COVERS)
        ordered = dict.fromkeys([*nearest[:NEAREST], *uncovered, *hubs])
        return [index for index in ordered if index not in others][:count]

    def _uncovered(self, ordered: list[int], unlike_ms: Array, at_most: int, times: float) -> list[int]:
        """Of these, those to whom none of those kept before them is so many times more alike than the host is."""
        kept: list[int] = []
        left = np.array(ordered)
        while len(kept) < at_most and left.size:
            kept.append(int(left[0]))
            left = left[1:][times * self.unlike_ms(kept[-1])[left[1:]] >= unlike_ms[left[1:]]]
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


def _between(a: Coordinate, b: Coordinate) -> Coordinate:
    """A point, where no node need be."""
    return Coordinate(tuple((x + y) / 2.0 for x, y in zip(a.vector_ms, b.vector_ms, strict=True)), 0.0, 0.0)


def _record(index: int, place: Coordinate, load: float) -> NodeRecord:
    return NodeRecord(
        node_id=f"{index + 1:032x}",
        name=f"n{index}",
        host="10.0.0.1",
        port=7400,
        boot_id=1,
        coordinate=place,
        load=load,
    )


def search(world: World, asker: int, objective: Objective, ends: Sequence[int], table: Table) -> Search:
    """One search, each question answered at once by the best that the host asked knows and the asker does not."""
    run = Search(objective, K, 1.0)
    run.know(world.records[asker], asked=True)
    for record in [*world.known(asker, table), *(world.records[end] for end in ends)]:
        run.know(record)
    told: set[NodeId] = set()
    guide = objective.guide()
    while to_ask := run.to_ask(0.0):
        for host in to_ask:
            run.answered(host.node_id)
            news = [record for record in world.known(world.index_of[host.node_id], table) if record.node_id not in told]
            by_cost, by_guide = (heapq.nsmallest(NAMED, news, key=cost) for cost in (objective.cost, guide.cost))
            named = dict.fromkeys(record.node_id for pair in zip(by_cost, by_guide, strict=True) for record in pair)
            for node_id in list(named)[:NAMED]:
                told.add(node_id)
                run.know(world.records[world.index_of[node_id]])
    return run


def measure(world: World, searches: int, table: Table, seed: int) -> dict[str, tuple[float, float, int]]:
    """Recall@10, mean hosts asked, and how many found less than half, for the nearest to a host and to a point, and
    for least usage."""
    figures = {}
    for kind in ("nearest", "point", "usage"):
        rng, hits, contacts, astray = random.Random(seed), 0, 0, 0
        for _ in range(searches):
            hosts = range(len(world.records))
            asker, ends = rng.choice(hosts), rng.sample(hosts, rng.randint(3, 5))
            places = [(world.records[end].coordinate, world.records[end].node_id) for end in ends]
            match kind:
                case "nearest":
                    objective: Objective = NearestTo(*places[0])
                case "point":
                    objective = NearestTo(_between(places[0][0], places[1][0]))
                case _:
                    endpoints = tuple(Endpoint(place, 10.0 ** rng.uniform(3.0, 6.0), end) for place, end in places)
                    objective = LeastUsage(endpoints, sum(end.rate_bytes_per_s for end in endpoints[:-1]))
            run = search(world, asker, objective, ends if kind == "usage" else (), table)
            costs = heapq.nsmallest(K, map(objective.cost, world.records))
            found = sum(objective.cost(record) <= costs[-1] for record in run.result())
            hits += found
            astray += found < K / 2
            contacts += run.contacts
        figures[kind] = (hits / (K * searches), contacts / searches, astray)
    return figures


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="What searches find if all hosts know exactly whom they should.")
    parser.add_argument("--rtt", type=Path, action="append", required=True)
    parser.add_argument("--nodes", type=int, nargs="+", default=[1000, 10000])
    parser.add_argument("--searches", type=int, default=200)
    parser.add_argument("--links", type=int, default=14)
    parser.add_argument("--pointers", type=int, default=MAX_POINTERS)
    parser.add_argument("--far", type=int, default=4)
    parser.add_argument("--missing", type=float, default=0.0)
    parser.add_argument("--seed", type=int, default=1)
    parsed = parser.parse_args(arguments)
    network = Network(load(parsed.rtt), parsed.seed, play=False)
    sites = len(network.sites)
    for _ in range(sites):
        network.add_host()
    for nodes in parsed.nodes:
        world = World(network, sites, nodes, parsed.seed, parsed.missing)
        table = Table(parsed.links, parsed.pointers, parsed.far)
        for kind, (recall, contacts, astray) in measure(world, parsed.searches, table, parsed.seed).items():
            asked = f"{contacts:.1f} hosts asked, {astray} of {parsed.searches} searches went astray"
            print(f"{nodes} nodes, {kind}: recall@10 {recall:.4f}, {asked}", flush=True)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
