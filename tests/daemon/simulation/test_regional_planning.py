"""Planning over the hierarchy as it stands at run time: each coordinator knows its own cluster and what it is sent."""

from __future__ import annotations

import random
from collections.abc import Generator

import msgspec
import numpy as np

from daemon.simulation.regions import RegionWorld
from overlay.records import NodeRecord
from sbon.placement.optimum import Truth
from sbon.placement.path_model import Places
from sbon.planning.cost import cost
from sbon.planning.part import Part, PlacedTree, Spot, TakenLeaf, leaves_of, part_of, tree_of
from sbon.planning.part_planning import plan_part
from sbon.planning.planners import load
from sbon.planning.problem import Join, JoinQuery, Tree, Use
from sbon.planning.running import Running
from sbon.planning.situation import Situation
from tests.daemon.simulation.test_regions import settled
from tests.sbon.planning.cases import World

MAX_CS = 16


def spot(record: NodeRecord) -> Spot:
    return Spot(record.node_id, record.coordinate, takes=True)


def planned_at(world: RegionWorld, name: str, level: int, part: Part) -> tuple[PlacedTree, float]:
    """By the coordinator ``name``; parts and trees travel as bytes."""
    roster = world.nodes[name].roster(level)
    assert roster is not None
    members = [spot(record) for record in roster.members]
    leaders = {each.node_id for each in members} if level > 1 else set()
    part = msgspec.msgpack.decode(msgspec.msgpack.encode(part), type=Part)
    course: Generator[tuple[str, Part], PlacedTree, tuple[PlacedTree, float]]
    course, tree = plan_part(part, members, MAX_CS, leaders=leaders), None
    while True:
        try:
            node_id, asked = next(course) if tree is None else course.send(tree)
        except StopIteration as end:
            found: tuple[PlacedTree, float] = end.value
            return found
        tree = planned_at(world, node_id, level - 1, asked)[0]


def on_hosts(placed: PlacedTree, tree: Tree, index: dict[str, int]) -> Tree:
    """``tree``, which has the order alone, on the hosts of ``placed``."""
    if isinstance(placed, TakenLeaf):
        return tree
    assert isinstance(tree, Join)
    left, right = on_hosts(placed.left, tree.left, index), on_hosts(placed.right, tree.right, index)
    return Join(tree.mask, index[placed.spot.node_id], left, right)


def test_plans_are_hardly_dearer_than_the_optimum() -> None:
    world = settled(150, MAX_CS)
    assert world.faults() == []
    (top,) = world.tops()
    assert world.nodes[top].led >= 2
    names = sorted(world.records)
    index = {name: number for number, name in enumerate(names)}
    places = Places([world.records[name].coordinate for name in names])
    rtt_ms = places.rtt_ms(places)
    np.fill_diagonal(rtt_ms, 0.0)
    network = Truth.of(names, rtt_ms)
    queries = World(random.Random(7), 8, len(names))
    reading = Situation(network, Running())
    least = total = 0.0
    for _ in range(30):
        query: JoinQuery = queries.query(4)
        best = load("joint").plan(query, reading)
        leaves: list[Use] = leaves_of(query, reading.running.usable(query))
        spots = [spot(world.records[name]) for name in names]
        hosts = sorted({query.sink, *(leaf.host for leaf in leaves)})
        part = part_of(query, leaves, spots)
        renumbered = msgspec.structs.replace(
            part,
            spots=tuple(spots[host] for host in hosts),
            given=tuple(msgspec.structs.replace(each, spot=hosts.index(each.spot)) for each in part.given),
            target=hosts.index(part.target),
        )
        placed, _ = planned_at(world, top, world.nodes[top].led, renumbered)
        tree = on_hosts(placed, tree_of(placed, leaves), index)
        least += best.cost
        total += cost(query, tree, network)
        reading.running.deploy(query, best.tree)
    assert least <= total <= 1.05 * least
