from __future__ import annotations

import itertools

import numpy as np
import pytest

from daemon.simulation import transit_stub
from daemon.simulation.transit_stub import TransitStub, generate


@pytest.fixture(scope="module")
def network() -> TransitStub:
    return generate(1)


def test_it_has_the_nodes_of_the_paper(network: TransitStub) -> None:
    assert (network.nodes, network.transit_nodes) == (1550, 50)
    assert network.rtt_ms.shape == (1550, 1550)


def test_everybody_reaches_everybody(network: TransitStub) -> None:
    rtt_ms = network.rtt_ms
    assert np.isfinite(rtt_ms).all()
    assert (rtt_ms == rtt_ms.T).all()
    assert (rtt_ms[~np.eye(1550, dtype=bool)] > 0.0).all()
    assert 700.0 < rtt_ms.max() < 1100.0


def test_a_round_trip_is_twice_its_route(network: TransitStub) -> None:
    length_ms = {(u, v): ms for u, v, ms, _ in network.links} | {(v, u): ms for u, v, ms, _ in network.links}
    for a, b in ((0, 1549), (700, 60), (3, 49), (55, 56)):
        route = network.route(a, b)
        assert (route[0], route[-1]) == (a, b)
        one_way_ms = sum(length_ms[hop] for hop in itertools.pairwise(route))
        assert 2.0 * one_way_ms == pytest.approx(network.rtt_ms[a, b], abs=0.01)


def test_a_stub_carries_nobody_elses_data(network: TransitStub) -> None:
    per_stub = transit_stub.STUB_NODES
    for a, b in ((60, 1500), (700, 61), (51, 1000)):
        stubs = {(node - 50) // per_stub for node in network.route(a, b) if node >= 50}
        assert stubs == {(a - 50) // per_stub, (b - 50) // per_stub}


def test_routes_to_one_node_make_a_tree(network: TransitStub) -> None:
    after: dict[int, int] = {}
    for a in range(50, 1550, 100):
        route = network.route(a, 777)
        for node, following in itertools.pairwise(route):
            assert after.setdefault(node, following) == following


def test_the_seed_makes_the_network() -> None:
    assert generate(7).links == generate(7).links
    assert generate(7).links != generate(8).links
