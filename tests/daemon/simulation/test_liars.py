"""Liars speak the protocol, and their lies arrive."""

from __future__ import annotations

import math

import pytest

from daemon.simulation.faults import Conditions
from daemon.simulation.latency import Network, load
from daemon.simulation.liars import ATTACKS, BY_NAME, Liar, kind_of_liar, make_plot
from daemon.simulation.population import Population
from overlay.config import OverlayConfig
from overlay.node import Overlay


def with_liars(attack: str, nodes: int = 10, liars: int = 2, seconds: float = 40.0) -> Population:
    config = OverlayConfig()
    population = Population(1, Network(load([]), 1), Conditions(), config)
    make_liar = kind_of_liar(make_plot(attack, 1, config.dimensions))
    population.liars.update(range(nodes - liars, nodes))
    population.kind_of = lambda endpoint: make_liar if endpoint in population.liars else Overlay
    for _ in range(nodes):
        population.add()
    for endpoint in range(nodes):
        population.start(endpoint)
        population.world.run(population.world.now + 0.1)
    population.world.run(seconds)
    return population


@pytest.mark.parametrize("attack", [attack.name for attack in ATTACKS])
def test_what_liars_say_is_well_formed_and_nobody_is_hurt(attack: str) -> None:
    population = with_liars(attack)
    for endpoint in population.honest():
        node = population.node(endpoint)
        node.validate()
        assert node.counters["dropped.malformed"] == 0
        assert all(math.isfinite(x) for x in node.coordinate.vector_ms)
        assert any(record.name in ("n8", "n9") for record in node.members())


def test_a_lie_is_what_others_have_of_a_liar() -> None:
    population = with_liars("inflation")
    liar = population.node(9)
    assert isinstance(liar, Liar)
    claimed = population.node(0).find("n9")
    assert claimed is not None
    assert math.hypot(*claimed.coordinate.vector_ms) > 1500.0
    assert math.hypot(*liar.coordinate.vector_ms) < 1000.0


def test_held_back_replies_look_like_a_longer_path() -> None:
    honest, delayed = with_liars("pull"), with_liars("delay")
    node_id = honest.identities[9].node_id
    before, after = honest.node(0).measured_rtt_ms(node_id), delayed.node(0).measured_rtt_ms(node_id)
    assert before is not None
    assert after is not None
    assert after > before + 40.0


@pytest.mark.parametrize("attack", ["random", "poison"])
def test_places_that_are_made_up_each_time_are_no_samples(attack: str) -> None:
    population = with_liars(attack, nodes=20, liars=4, seconds=60.0)
    honest = [population.node(endpoint) for endpoint in population.honest()]
    lies = sum(node.counters["dropped.jumped"] for node in honest)
    assert lies > 0.1 * sum(node.counters["received.pong"] for node in honest) * 4 / 19
    without = with_liars("drift", nodes=20, liars=0, seconds=60.0)
    nodes = [without.node(endpoint) for endpoint in without.honest()]
    mistakes = sum(node.counters["dropped.jumped"] for node in nodes)
    assert mistakes < 0.02 * sum(node.counters["received.pong"] for node in nodes)


def test_all_attacks_are_listed() -> None:
    assert set(BY_NAME) == {"random", "inflation", "deflation", "drift", "delay", "pull", "poison"}
