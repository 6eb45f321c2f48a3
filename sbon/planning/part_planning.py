"""Planning a part in one cluster, by its coordinator, who knows nobody else: paths are what coordinates predict."""

from __future__ import annotations

from collections.abc import Collection, Generator, Sequence

import numpy as np

from sbon.placement.optimum import Truth
from sbon.placement.path_model import Places
from sbon.planning.in_clusters import Delegated, PartPlanning
from sbon.planning.join_table import Leaf
from sbon.planning.part import Given, Part, PlacedJoin, PlacedTree, Spot, TakenLeaf
from sbon.planning.problem import Join, Tree, Use, Work


def plan_part(
    part: Part, members: Sequence[Spot], places: int, *, leaders: Collection[str]
) -> Generator[tuple[str, Part], PlacedTree, tuple[PlacedTree, float]]:
    """Plan ``part`` in a cluster of ``members``; yields (node id, part) for those of ``leaders`` to decide on.

    Where members leave some of ``places`` free, hosts of the part's own streams have them. The tree, and its expected
    cost. Raises UnavailableError if no host takes operators.
    """
    return (yield from _PartOnItsWay(part, members, places, leaders).go())


class _PartOnItsWay:
    def __init__(self, part: Part, members: Sequence[Spot], places: int, leaders: Collection[str]) -> None:
        self._part = part
        known = {spot.node_id: spot for spot in (*part.spots, *members)}
        #: By number of a host: what is known of it. Those that others have chosen come behind.
        self._spots = list(known.values())
        self._index = {node_id: number for number, node_id in enumerate(known)}
        where = Places([spot.coordinate for spot in self._spots])
        rtt_ms = where.rtt_ms(where)
        np.fill_diagonal(rtt_ms, 0.0)
        network = Truth.of(
            list(known),
            (rtt_ms + rtt_ms.T) / 2.0,
            takes=np.array([spot.takes for spot in self._spots]),
            load_ms=np.array([spot.load_ms for spot in self._spots]),
        )
        ids = [spot.node_id for spot in members if spot.takes]
        ids += [spot.node_id for spot in part.spots if spot.takes and spot.node_id not in ids][
            : max(0, places - len(ids))
        ]
        self._leaves = [Leaf(Use(each.mask, self._host(part.spots[each.spot])), each.cost) for each in part.given]
        self._planning = PartPlanning(
            network,
            part.rates,
            np.array([self._index[node_id] for node_id in ids], dtype=np.intp),
            frozenset(self._index[spot.node_id] for spot in members if spot.node_id in leaders),
            self._leaves,
            Work(),
        )

    def go(self) -> Generator[tuple[str, Part], PlacedTree, tuple[PlacedTree, float]]:
        part = self._part
        course = self._planning.go(part.mask, self._host(part.spots[part.target]), part.rate)
        tree: Tree | None = None
        while True:
            try:
                asked = next(course) if tree is None else course.send(tree)
            except StopIteration as end:
                return self._placed(end.value[0]), end.value[1]
            answer = yield self._spots[asked.member].node_id, self._part_of(asked)
            tree = self._taken(answer, _usable(asked))

    def _host(self, spot: Spot) -> int:
        if spot.node_id not in self._index:
            self._index[spot.node_id] = len(self._spots)
            self._spots.append(spot)
        return self._index[spot.node_id]

    def _part_of(self, asked: Delegated) -> Part:
        usable = _usable(asked)
        hosts = list(dict.fromkeys([asked.target, *(leaf.tree.host for leaf in usable)]))
        return Part(
            asked.mask,
            self._part.rates,
            tuple(self._spots[host] for host in hosts),
            tuple(Given(leaf.tree.mask, hosts.index(leaf.tree.host), leaf.cost) for leaf in usable),
            0,
            asked.rate,
        )

    def _taken(self, answer: PlacedTree, leaves: Sequence[Leaf]) -> Tree:
        """The answer's tree with what was given to it in its place."""
        if isinstance(answer, TakenLeaf):
            return leaves[answer.number].tree
        left, right = self._taken(answer.left, leaves), self._taken(answer.right, leaves)
        return Join(left.mask | right.mask, self._host(answer.spot), left, right)

    def _placed(self, tree: Tree) -> PlacedTree:
        for number, leaf in enumerate(self._leaves):
            if tree is leaf.tree:
                return TakenLeaf(number)
        assert isinstance(tree, Join)
        return PlacedJoin(self._spots[tree.host], self._placed(tree.left), self._placed(tree.right))


def _usable(asked: Delegated) -> list[Leaf]:
    return [leaf for leaf in asked.leaves if leaf.tree.mask & asked.mask == leaf.tree.mask]
