"""A transit-stub network, as the founding paper's evaluation has it (SBON ICDE'06 section 4.1).

After E. Zegura, K. Calvert, S. Bhattacharjee, "How to Model an Internetwork", INFOCOM 1996: 10 transit domains of 5
nodes, 3 stub domains at each transit node, 10 nodes in each: 50 + 1,500 nodes. Domains are connected random graphs in
the plane, and a link takes as long as it is long. The *latency classes* are ranges of one-way ms:

    between transit domains      8 to 125, mean some 53
    within a transit domain      2 to  45, mean some 20
    stub domain to its transit   1 to  27, mean some 16
    within a stub domain       0.4 to  40, mean some 15

in the proportions of the GT-ITM generator's own graphs, which have no unit, and such that round trips are up to some
900 ms (the paper's network has a diameter of 878 ms). *Routing* is by the weights that the generator gives its links to
reflect policy: 1 within a domain, 3 between transit domains, 7 between a stub and its transit node. Data take the way
of least weight, which is not that of least latency: a stub carries nobody else's data, and a hop fewer counts more than
milliseconds.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from daemon.simulation.latency import Matrix

TRANSIT_DOMAINS = 10
TRANSIT_NODES = 5
STUBS_PER_NODE = 3
STUB_NODES = 10

#: Sides of the squares, in ms, that domains and nodes are thrown into.
WORLD_MS = 100.0
TRANSIT_MS = 40.0
STUB_MS = 29.0
#: The same of a stub that is one site.
INTRANET_MS = 4.0
#: Shares of the possible links that there are beside those that connect a domain.
EXTRA_TRANSIT_DOMAIN_LINKS = 0.5
EXTRA_TRANSIT_LINKS = 0.4
EXTRA_STUB_LINKS = 0.2

WITHIN_WEIGHT, BETWEEN_WEIGHT, ACCESS_WEIGHT = 1, 3, 7
#: More than any way is long, in ms: weights decide, latencies only between ways of equal weight.
_WEIGHT_UNIT = 1e6


@dataclass(frozen=True)
class TransitStub:
    """``links``: (u, v, one-way ms, weight). Nodes below ``transit_nodes`` are the routers of transit domains."""

    nodes: int
    transit_nodes: int
    links: tuple[tuple[int, int, float, int], ...]

    @cached_property
    def _routing(self) -> tuple[Matrix, NDArray[np.int32]]:
        from scipy.sparse import csr_array  # large
        from scipy.sparse.csgraph import dijkstra

        rows, columns, lengths, weights = (np.array(column) for column in zip(*self.links, strict=True))
        keys = csr_array((weights * _WEIGHT_UNIT + lengths, (rows, columns)), shape=(self.nodes, self.nodes))
        distances, before = dijkstra(keys, directed=False, return_predecessors=True)
        one_way_ms = np.round(distances - np.round(distances / _WEIGHT_UNIT) * _WEIGHT_UNIT, 3)
        return one_way_ms, before

    @cached_property
    def rtt_ms(self) -> Matrix:
        """Round trips by the routes, symmetric, 0 on the diagonal."""
        one_way_ms = self._routing[0]
        rtt_ms: Matrix = one_way_ms + one_way_ms.T
        np.fill_diagonal(rtt_ms, 0.0)
        return rtt_ms

    def route(self, a: int, b: int) -> list[int]:
        """The nodes that data from a to b pass, both ends among them; all routes to one b make a tree."""
        before = self._routing[1][b]
        route = [a]
        while route[-1] != b:
            route.append(int(before[route[-1]]))
        return route


@dataclass(frozen=True, slots=True)
class Shape:
    """How many domains of how many nodes; ``stub_ms`` is the side of the square that a stub is thrown into."""

    transit_domains: int = TRANSIT_DOMAINS
    transit_nodes: int = TRANSIT_NODES
    stubs_per_node: int = STUBS_PER_NODE
    stub_nodes: int = STUB_NODES
    stub_ms: float = STUB_MS

    @staticmethod
    def of(nodes: int) -> Shape:
        """About so many nodes, as Seshadri et al. (TPDS'09, section 4.1) have 128: transit domains of four nodes, four
        stubs of eight at each, in which links are far shorter than between them. Fewer than 128: fewer stubs."""
        domains = max(1, round(nodes / (4 * 4 * 8)))
        stubs = max(1, round((nodes - 4 * domains) / (domains * 4 * 8)))
        return Shape(domains, 4, stubs, 8, INTRANET_MS)

    @property
    def nodes(self) -> int:
        return self.transit_domains * self.transit_nodes * (1 + self.stubs_per_node * self.stub_nodes)


def generate(seed: int, shape: Shape | None = None) -> TransitStub:
    """The network of that seed; by default the founding paper's 1,550 nodes."""
    return _Generator(random.Random(f"{seed}/transit-stub"), shape or Shape()).go()


class _Generator:
    def __init__(self, rng: random.Random, shape: Shape) -> None:
        self._rng = rng
        self._shape = shape
        self._links: list[tuple[int, int, float, int]] = []
        self._nodes = shape.transit_domains * shape.transit_nodes

    def go(self) -> TransitStub:
        rng, transit_nodes, size = self._rng, self._nodes, self._shape.transit_nodes
        count = self._shape.transit_domains
        centres = [(rng.uniform(0.0, WORLD_MS), rng.uniform(0.0, WORLD_MS)) for _ in range(count)]
        domains = [list(range(d * size, (d + 1) * size)) for d in range(count)]
        for domain in domains:
            self._connect(domain, _scattered(size, TRANSIT_MS, rng), EXTRA_TRANSIT_LINKS)
        for a, b in _connected_pairs(centres, EXTRA_TRANSIT_DOMAIN_LINKS, rng):
            length_ms = math.dist(centres[a], centres[b])
            self._link(rng.choice(domains[a]), rng.choice(domains[b]), max(8.0, length_ms), BETWEEN_WEIGHT)
        for router in range(transit_nodes):
            for _ in range(self._shape.stubs_per_node):
                self._add_stub(router)
        return TransitStub(self._nodes, transit_nodes, tuple(self._links))

    def _add_stub(self, router: int) -> None:
        rng, size = self._rng, self._shape.stub_nodes
        stub = list(range(self._nodes, self._nodes + size))
        self._nodes += size
        self._connect(stub, _scattered(size, self._shape.stub_ms, rng), EXTRA_STUB_LINKS)
        length_ms = math.dist((rng.uniform(0.0, STUB_MS), rng.uniform(0.0, STUB_MS)), (STUB_MS / 2, STUB_MS / 2))
        self._link(router, rng.choice(stub), max(1.0, 1.4 * length_ms), ACCESS_WEIGHT)

    def _connect(self, nodes: Sequence[int], points: Sequence[tuple[float, float]], extra: float) -> None:
        for a, b in _connected_pairs(points, extra, self._rng):
            self._link(nodes[a], nodes[b], max(0.4, math.dist(points[a], points[b])), WITHIN_WEIGHT)

    def _link(self, u: int, v: int, length_ms: float, weight: int) -> None:
        self._links.append((u, v, round(length_ms, 3), weight))


def _scattered(count: int, side_ms: float, rng: random.Random) -> list[tuple[float, float]]:
    return [(rng.uniform(0.0, side_ms), rng.uniform(0.0, side_ms)) for _ in range(count)]


def _connected_pairs(points: Sequence[tuple[float, float]], extra: float, rng: random.Random) -> list[tuple[int, int]]:
    """A random tree over the points, and a share ``extra`` of the pairs beside it."""
    order = list(range(len(points)))
    rng.shuffle(order)
    tree = {(order[rng.randrange(k)], order[k]) for k in range(1, len(order))}
    pairs = sorted((min(a, b), max(a, b)) for a, b in tree)
    known = set(pairs)
    for a in range(len(points)):
        for b in range(a + 1, len(points)):
            if (a, b) not in known and rng.random() < extra:
                pairs.append((a, b))
    return pairs
