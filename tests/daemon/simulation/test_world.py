"""Virtual time, what the network does to datagrams, and the conditions under which it does."""

from __future__ import annotations

import random

import numpy as np
import pytest

from daemon.simulation.faults import Conditions, FaultMix
from daemon.simulation.latency import Network, load
from daemon.simulation.population import Population
from overlay.config import OverlayConfig


def grown(nodes: int, conditions: Conditions | None = None, seed: int = 1) -> Population:
    population = Population(seed, Network(load([]), seed), conditions or Conditions(), OverlayConfig())
    for _ in range(nodes):
        population.add()
    for endpoint in range(nodes):
        population.start(endpoint)
        population.world.run(population.world.now + 0.2)
    population.world.run(population.world.now + 5.0)
    return population


def test_nodes_join_and_see_each_other() -> None:
    population = grown(5)
    assert population.unjoined == set()
    assert [len(population.node(endpoint).members()) for endpoint in range(5)] == [4] * 5


def test_nobody_answers_at_the_address_of_the_dead() -> None:
    population = grown(3)
    population.crash(2)
    population.world.run(population.world.now + 30.0)
    assert [record.name for record in population.node(0).members()] == ["n1"]


def test_who_comes_back_at_the_same_address_is_another_boot() -> None:
    population = grown(3)
    before = population.boot_ids[2]
    population.crash(2)
    population.start(2)
    population.world.run(population.world.now + 30.0)
    seen = {record.name: record.boot_id for record in population.node(0).members()}
    assert seen["n2"] == population.boot_ids[2] > before


def test_a_newcomer_in_somebodys_place_is_another_node() -> None:
    population = grown(3)
    newcomer = population.replace(2)
    population.world.run(population.world.now + 40.0)
    assert sorted(record.name for record in population.node(0).members()) == ["n1", f"n{newcomer}"]
    network = population.world.network
    assert network.site[newcomer] == network.site[2]


def test_clocks_that_drift_and_disagree_do_no_harm() -> None:
    population = Population(1, Network(load([]), 1), Conditions(), OverlayConfig())
    for index in range(4):
        population.start(population.add(rate=1.0 + (index - 2) * 1e-3, offset_s=index * 1e5))
    population.world.run(60.0)
    assert [len(population.node(endpoint).members()) for endpoint in range(4)] == [3] * 4


def test_a_host_that_stands_still_catches_up() -> None:
    population = grown(4)
    world = population.world
    world.conditions.held_until[3] = world.now + 2.0
    before = world.received_messages[3]
    world.run(world.now + 1.9)
    assert world.received_messages[3] == before
    world.run(world.now + 1.0)
    assert world.received_messages[3] > before


def test_loss_works_in_one_direction() -> None:
    conditions = Conditions(loss=0.1)
    for _ in range(10):
        conditions.add_endpoint()
    chosen = conditions.lose(range(10), 0.4, 0.5, random.Random(1))
    assert len(chosen) == 4
    for endpoint in range(10):
        kept = (conditions.keep_out[endpoint], conditions.keep_in[endpoint])
        assert kept in ([(0.45, 1.0), (0.9, 0.5)] if endpoint in chosen else [(0.9, 1.0)])
    assert conditions.lossy
    conditions.heal()
    assert not conditions.lossy


def test_over_a_cut_path_nothing_passes() -> None:
    conditions = Conditions(cut={(0, 1)})
    rng = random.Random(1)
    assert conditions.delays_s(0, 1, rng) == ()
    assert conditions.delays_s(1, 0, rng) == (0.0,)


def test_duplicates_come_later() -> None:
    conditions = Conditions(duplication=1.0, late_s=0.5)
    first, second = conditions.delays_s(0, 1, random.Random(1))
    assert first == 0.0 < second <= 0.5


@pytest.mark.parametrize("seed", range(20))
def test_a_mix_stays_within_what_is_promised(seed: int) -> None:
    mix = FaultMix.draw(random.Random(seed), 40, 60.0)
    assert mix == FaultMix.draw(random.Random(seed), 40, 60.0)
    assert 0.0 <= mix.loss <= 0.05
    assert mix.asymmetric_loss <= 0.5
    assert all(0.0 < partition.start_s < partition.end_s <= 60.0 for partition in mix.partitions)
    assert all(0.0 <= stroke.at_s <= 60.0 for stroke in mix.strokes)


def test_the_same_seed_delivers_the_same() -> None:
    def delivered(seed: int) -> tuple[int, int]:
        world = grown(6, Conditions(loss=0.05, jitter_s=0.01, reordering=0.1, late_s=0.1), seed).world
        return world.deliveries, world.digest

    assert delivered(1) == delivered(1)
    assert delivered(1) != delivered(2)


def test_round_trips_are_those_of_the_matrix() -> None:
    rtt = np.full((2, 2), np.nan)
    rtt[0, 1], rtt[1, 0] = 80.0, 120.0
    population = Population(1, Network(rtt[None], 1), Conditions(), OverlayConfig())
    for _ in range(2):
        population.start(population.add())
    population.world.run(20.0)
    other = population.identities[1].node_id
    assert population.node(0).measured_rtt_ms(other) == pytest.approx(100.0, abs=0.01)
