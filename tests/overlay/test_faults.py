"""One seed draws a mix of faults; then they stop, and the overlay must agree again on who is there.

Every node is validated after every step (tests.overlay.fake_network).
"""

from __future__ import annotations

import random

import pytest

from overlay.events import MemberFailed
from tests import truth
from tests.overlay.fake_network import FakeNetwork, id_of

NODES = 6
#: By then everybody is found again, whatever happened before.
CALM_S = 60.0
FAULTS = (
    "kill",
    "restart",
    "leave",
    "join",
    "cut",
    "deaf",
    "repair",
    "loss",
    "lossy access",
    "jitter",
    "duplication",
    "freeze",
)


class Faults:
    """Disturbs a network. Node 0 stays, so that there is always somebody to join."""

    def __init__(self, network: FakeNetwork, rng: random.Random) -> None:
        self.network = network
        self.rng = rng
        self.boots = dict.fromkeys(network.nodes, 10)
        self.down: set[int] = set()

    def disturb(self) -> None:
        """One random fault or repair."""
        network, rng = self.network, self.rng
        node = rng.randrange(1, len(self.boots))
        match rng.choice(FAULTS):
            case "kill" if node not in self.down:
                network.kill(node)
                self.down.add(node)
            case "restart" if node in self.down:
                self.boots[node] += rng.choice((1, 1, 1, -1))  # a clock may go back
                network.start(node, boot_id=self.boots[node], port=rng.choice((None, 8000 + node)))
                self.down.discard(node)
                if rng.random() < 0.5:
                    network.join(node, 0)
            case "leave" if node not in self.down:
                network.leave(node)
            case "join" if node not in self.down:
                network.join(node, 0)
            case "cut":
                network.cut.add(frozenset(rng.sample(sorted(self.boots), 2)))
            case "deaf":
                one, other = rng.sample(sorted(self.boots), 2)
                network.deaf.add((one, other))
            case "repair":
                self.repair()
            case "loss":
                network.loss = rng.choice((0.0, 0.1, 0.4))
            case "lossy access":
                for other in self.boots:
                    network.path_loss[node, other] = 0.5
            case "jitter":
                network.jitter_ms = rng.choice((0.0, 5.0, 300.0))
            case "duplication":
                network.duplication = rng.choice((0.0, 0.2))
            case "freeze" if node not in self.down:
                network.freeze(node, rng.uniform(0.0, 20.0))
            case _:
                pass

    def repair(self) -> None:
        self.network.cut.clear()
        self.network.deaf.clear()
        self.network.path_loss.clear()

    def stop(self) -> set[int]:
        """No more faults; returns who is up. They may all join again."""
        self.repair()
        self.network.loss = self.network.jitter_ms = self.network.duplication = 0.0
        return set(self.network.nodes)


def disturbed(nodes: int, seed: int, faults: int = 40) -> tuple[FakeNetwork, Faults]:
    """A network after so many faults."""
    rng = random.Random(seed)
    network = FakeNetwork([row[:nodes] for row in truth.cloud_regions(12)[:nodes]], seed)
    for index in range(nodes):
        network.start(index, boot_id=10)
    for index in range(1, nodes):
        network.join(index, 0)
    chaos = Faults(network, rng)
    for _ in range(faults):
        network.run(rng.uniform(0.0, 5.0))
        chaos.disturb()
    return network, chaos


@pytest.mark.parametrize("seed", range(16))
def test_after_any_faults_everybody_sees_everybody_again(seed: int) -> None:
    network, chaos = disturbed(NODES, seed)
    up = chaos.stop()
    # A process that was started with an old clock is refused until its old self is forgotten, and tries again then.
    for _ in range(2):
        for index in up - {0}:
            network.join(index, 0)
        network.run(CALM_S / 2)
    assert network.is_complete(up), f"seed {seed}"
    for index in up:
        node = network.nodes[index]
        for other in up - {index}:
            seen = node.find(f"n{other}")
            assert seen is not None
            assert seen.address == network.nodes[other].record.address
            assert seen.boot_id == network.nodes[other].record.boot_id
            assert node.measured_rtt_ms(seen.node_id) == pytest.approx(network.rtt_ms[index][other], abs=0.01)


@pytest.mark.parametrize("seed", range(100, 104))
def test_twelve_nodes_after_any_faults(seed: int) -> None:
    network, chaos = disturbed(12, seed)
    up = chaos.stop()
    for _ in range(2):
        for index in up - {0}:
            network.join(index, 0)
        network.run(CALM_S / 2)
    assert network.is_complete(up), f"seed {seed}"


@pytest.mark.parametrize("seed", range(200, 206))
def test_those_who_never_left_find_each_other_again_by_themselves(seed: int) -> None:
    """Cuts, loss and stalls only: nobody joins again, and nobody has to."""
    rng = random.Random(seed)
    network = FakeNetwork(truth.cloud_regions(8), seed)
    for index in range(8):
        network.start(index)
    for index in range(1, 8):
        network.join(index, 0)
    network.run(10.0)
    for _ in range(30):
        network.run(rng.uniform(0.0, 10.0))
        match rng.choice(("cut", "deaf", "split", "loss", "freeze")):
            case "cut":
                network.cut.add(frozenset(rng.sample(range(8), 2)))
            case "deaf":
                network.deaf.add((rng.randrange(4), rng.randrange(4, 8)))
            case "split":
                left = set(rng.sample(range(8), rng.randrange(1, 7)))
                network.cut |= {frozenset((a, b)) for a in left for b in set(range(8)) - left}
            case "loss":
                network.loss = rng.choice((0.0, 0.1, 0.4))
            case _:
                network.freeze(rng.randrange(8), rng.uniform(0.0, 30.0))
    Faults(network, rng).stop()
    network.run(CALM_S)
    assert network.is_complete(), f"seed {seed}"


@pytest.mark.parametrize("seed", range(300, 303))
def test_loss_and_jitter_and_duplicates_alone_kill_nobody(seed: int) -> None:
    network = FakeNetwork(truth.cloud_regions(8), seed, loss=0.2, jitter_ms=50.0)
    network.duplication = 0.1
    for index in range(8):
        network.start(index)
    for index in range(1, 8):
        network.join(index, 0)
    network.run_until(network.is_complete, 40.0)
    network.run(200.0)
    assert not [event for index in range(8) for event in network.happened(index, MemberFailed)]
    assert network.is_complete()
    assert not any(node.counters["dropped.malformed"] for node in network.nodes.values()) or network.duplication
    assert network.nodes[0].find(id_of(1)) is not None
