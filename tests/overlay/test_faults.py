"""One seed draws a mix of faults; then they stop, and the overlay must agree again on who is there."""

from __future__ import annotations

import random

import pytest

from tests import truth
from tests.overlay.fake_network import FakeNetwork

NODES = 6


def disturb(network: FakeNetwork, rng: random.Random, boots: dict[int, int], gone: set[int]) -> None:
    """One random fault or repair. Node 0 stays, so that there is always somebody to join."""
    node = rng.randrange(1, NODES)
    match rng.choice(("kill", "restart", "leave", "join", "cut", "repair", "loss", "jitter")):
        case "kill" if node not in gone:
            network.kill(node)
            gone.add(node)
        case "restart" if node in gone:
            boots[node] += rng.choice((1, 1, 1, -1))  # a clock may go back
            network.start(node, boot_id=boots[node], port=rng.choice((None, 8000 + node)))
            gone.discard(node)
            if rng.random() < 0.5:
                network.join(node, 0)
        case "leave" if node not in gone:
            network.nodes[node].leave(network.now)
            network.settle(node)
        case "join" if node not in gone:
            network.join(node, 0)
        case "cut":
            network.cut.add(frozenset(rng.sample(range(NODES), 2)))
        case "repair":
            network.cut.clear()
        case "loss":
            network.loss = rng.choice((0.0, 0.1, 0.4))
        case "jitter":
            network.jitter_ms = rng.choice((0.0, 5.0, 300.0))
        case _:
            pass


@pytest.mark.parametrize("seed", range(10))
def test_after_any_faults_everybody_agrees_again(seed: int) -> None:
    rng = random.Random(seed)
    network = FakeNetwork(truth.cloud_regions(NODES), seed)
    for index in range(NODES):
        network.start(index, boot_id=10)
    for index in range(1, NODES):
        network.join(index, 0)
    boots, gone = dict.fromkeys(range(NODES), 10), set[int]()
    for _ in range(40):
        network.run(rng.uniform(0.0, 5.0))
        disturb(network, rng, boots, gone)

    network.cut.clear()
    network.loss = network.jitter_ms = 0.0
    up = set(range(NODES)) - gone
    for index in up - {0}:
        network.join(index, 0)
    network.run(60.0)
    for index in up:
        assert network.names_seen_by(index) == [f"n{other}" for other in sorted(up - {index})], f"seed {seed}"
        for other in up - {index}:
            seen = network.nodes[index].find(f"n{other}")
            assert seen is not None
            assert seen.address == network.nodes[other].record.address
            assert seen.boot_id == network.nodes[other].record.boot_id
            rtt_ms = network.nodes[index].measured_rtt_ms(seen.node_id)
            assert rtt_ms == pytest.approx(network.rtt_ms[index][other], abs=0.01)
