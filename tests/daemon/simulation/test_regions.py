"""The hierarchy of clusters at run time, many nodes in virtual time."""

from __future__ import annotations

import json
import random

import pytest

from daemon.cli.main import main
from daemon.simulation.regions import RegionWorld
from overlay.region_messages import Appoint, Appointed, Elsewhere, Lead, MemberReport, Placed, Summary
from overlay.region_state import MAX_NAMES, PATIENCE
from overlay.regions import MEMBER_LASTS, ROOM
from sbon.coordinate import Coordinate

PERIOD_S = 10.0
#: Long enough for whatever has to be noticed and put right; the state is looked at, not the time it took.
QUIET_S = 600.0


def crowds(nodes: int, seed: int) -> dict[str, Coordinate]:
    rng = random.Random(seed)
    centres = [(rng.uniform(-80.0, 80.0), rng.uniform(-80.0, 80.0)) for _ in range(4)]
    return {
        f"n{number:03d}": Coordinate((x + rng.gauss(0.0, 5.0), y + rng.gauss(0.0, 5.0)), 2.0, 0.1)
        for number in range(nodes)
        for x, y in [rng.choice(centres)]
    }


def settled(nodes: int, max_cs: int, seed: int = 1, loss: float = 0.0) -> RegionWorld:
    world = RegionWorld(crowds(nodes, seed), max_cs=max_cs, period_s=PERIOD_S, loss=loss, seed=seed)
    for name in world.records:
        world.start(name)
    world.run(QUIET_S)
    return world


def quiet(world: RegionWorld) -> list[str]:
    world.run(world.now_s + QUIET_S)
    return world.faults()


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_clusters_form_and_outlive_their_coordinators(seed: int) -> None:
    world = settled(60, 6, seed)
    assert world.faults() == []
    (top,) = world.tops()
    assert world.nodes[top].led >= 3
    assert world.nodes[top].hosts == 60
    assert world.nodes[top].summary(world.nodes[top].led).names == tuple(sorted(f"of-{name}" for name in world.nodes))
    assert all(node.height == world.nodes[top].led for node in world.nodes.values())

    lost = {top, *random.Random(seed).sample(sorted(world.nodes), 6)}
    for name in lost:
        world.kill(name)
    assert quiet(world) == []
    for name in lost:
        world.start(name)
    assert quiet(world) == []
    assert all(node.hosts == 60 for node in world.nodes.values())


def test_the_standby_leads_the_same_cluster_with_the_next_generation() -> None:
    world = settled(4, 8)
    (top,) = world.tops()
    before = world.nodes[top].roster(1)
    assert before is not None
    assert before.standby is not None
    world.kill(top)
    world.run(world.now_s + (PATIENCE + MEMBER_LASTS) * PERIOD_S)
    after = world.nodes[before.standby.node_id].roster(1)
    assert after is not None
    assert after.coordinator.node_id == before.standby.node_id
    assert (after.lead.cluster, after.lead.generation) == (before.lead.cluster, before.lead.generation + 1)
    assert world.faults() == []


def test_a_coordinator_that_was_away_hears_that_it_was_replaced() -> None:
    world = settled(40, 6)
    for name in [name for name, node in world.nodes.items() if node.led][:3]:
        away = world.nodes.pop(name)
        assert quiet(world) == []
        world.nodes[name] = away
        world._wake(name, away)
        assert quiet(world) == []


def test_nobody_knows_everybody() -> None:
    world = settled(150, 6)
    for node in world.nodes.values():
        known = {each for level in range(1, node.led + 1) for each in node.members(level)}
        assert len(known) <= 6 * node.led <= 6 * node.height
    assert max(len(members) for _, _, members in world.clusters()) <= 6 < ROOM * 6
    # Those near each other are together.
    spread = [
        world.records[a].coordinate.rtt_ms(world.records[b].coordinate)
        for level, _, members in world.clusters()
        if level == 1
        for a in members
        for b in members
        if a < b
    ]
    everybody = sorted(world.records)
    overall = [
        world.records[a].coordinate.rtt_ms(world.records[b].coordinate) for a in everybody for b in everybody if a < b
    ]
    assert sum(spread) / len(spread) < 0.3 * sum(overall) / len(overall)


def test_lost_requests_break_nothing_for_good() -> None:
    world = settled(50, 6, loss=0.03)
    for name in random.Random(4).sample(sorted(world.nodes), 5):
        world.kill(name)
    faults = quiet(world)
    for _ in range(5):  # something may just be on its way
        if faults:
            world.run(world.now_s + 60.0)
            faults = world.faults()
    assert faults == []


def test_nobody_but_the_coordinator_appoints_and_nobody_reports_for_another() -> None:
    world = settled(6, 8)
    (top,) = world.tops()
    member, other = sorted(set(world.nodes) - {top})[:2]
    lead = Lead("made up", 9)
    appoint = Appoint(1, lead, tuple(world.records.values()), None)
    assert world.nodes[member].handle(appoint, other, world.now_s) == Appointed(accepted=False)
    assert world.nodes[top].handle(appoint, other, world.now_s) == Appointed(accepted=False)
    names = tuple(f"s{number}" for number in range(10 * MAX_NAMES))
    report = MemberReport(1, 1, world.records[member], Summary(1, 1, names))
    assert world.nodes[top].handle(report, other, world.now_s) == Placed(Elsewhere())
    world.nodes[top].handle(report, member, world.now_s)
    assert len(world.nodes[top].members(1)[member].names) == MAX_NAMES
    assert quiet(world) == []
    assert world.tops() == [top]


def test_the_command_reports_how_it_forms_and_heals(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["simulate", "regions", "--transit-stub", "32", "--max-cs", "8", "--json"]
    assert main(words) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["clusters"][-1] == 1
    assert len(report["clusters"]) >= 2
    assert report["nearness"] < 1.0
    assert report["killed"] >= 4
    assert report["most_known"] <= 8 * len(report["clusters"])
    assert main([*words, "--max-cs", "3"]) == 1
    assert "at least 4" in capsys.readouterr().err
