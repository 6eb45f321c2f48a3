"""The networks that queries are placed on, from the command's arguments."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from daemon.simulation import transit_stub
from daemon.simulation.latency import Matrix, Network, Sites, load
from sbon.errors import SbonError

#: More hosts than this have too many pairs for a matrix.
MAX_HOSTS = 5000


@dataclass(frozen=True)
class KnownNetwork:
    """``rtt_ms`` is complete and symmetric, by host; ``slices`` by site is what an overlay is simulated over.

    ``transit``: the hosts that are routers of transit domains; ``route``: the hosts that data from one to another pass.
    """

    name: str
    slices: Matrix
    rtt_ms: Matrix
    transit: frozenset[int] | None = None
    route: Callable[[int, int], Sequence[int]] | None = None


def from_files(files: Sequence[Path], nodes: int | None, seed: int) -> KnownNetwork:
    """The sites of a matrix, the median over its slices; more ``nodes`` than sites as docs/simulator.md has it."""
    slices = load(files)
    count = nodes or slices.shape[1]
    if count > MAX_HOSTS:
        raise SbonError(f"--nodes {count}: the optimum over more than {MAX_HOSTS} hosts takes too much memory")
    network = _inhabited(slices, count, seed)
    name = ", ".join(file.name for file in files) or "built-in (44 cloud regions)"
    return KnownNetwork(name, slices, _rtt_ms(network))


def from_slice(slices: Matrix) -> Matrix:
    """The round trips between all sites of one slice (1, n, n), complete and symmetric, in the order of the file."""
    one_way_ms = np.array(Sites(slices).one_way_s) * 1000.0
    rtt_ms: Matrix = one_way_ms + one_way_ms.T
    np.fill_diagonal(rtt_ms, 0.0)
    return rtt_ms


def from_transit_stub(seed: int, shape: transit_stub.Shape | None = None) -> KnownNetwork:
    """By default the founding paper's 1,550 nodes."""
    graph = transit_stub.generate(seed, shape)
    slices = graph.rtt_ms[None].copy()
    np.fill_diagonal(slices[0], np.nan)
    network = _inhabited(slices, graph.nodes, seed)
    host_of = {site: host for host, site in enumerate(network.site)}

    def route(a: int, b: int) -> list[int]:
        return [host_of[node] for node in graph.route(network.site[a], network.site[b])]

    transit = frozenset(host_of[node] for node in range(graph.transit_nodes))
    name = f"transit-stub: {graph.transit_nodes} transit and {graph.nodes - graph.transit_nodes} stub nodes"
    return KnownNetwork(name, slices, _rtt_ms(network), transit, route)


def _inhabited(slices: Matrix, hosts: int, seed: int) -> Network:
    """Hosts where the overlay's simulation of the same seed has them."""
    network = Network(slices, seed)
    for _ in range(hosts):
        network.add_host()
    return network


def _rtt_ms(network: Network) -> Matrix:
    """By host. A pair that was never measured is as far as the simulator's delays have it."""
    site, access_ms = np.array(network.site), np.array(network.access_s) * 1000.0
    one_way_ms = np.array(network.sites.one_way_s)[np.ix_(site, site)] * 1000.0 + access_ms[:, None] + access_ms
    rtt_ms: Matrix = one_way_ms + one_way_ms.T
    np.fill_diagonal(rtt_ms, 0.0)
    return rtt_ms
