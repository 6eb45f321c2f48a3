"""A part of a plan on its way between coordinators: what has to be joined, and what became of it.

Whoever plans it (:mod:`sbon.planning.part_planning`) knows its own cluster, and of all else what is in the part: where
the streams and the reader are.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec

from sbon.coordinate import Coordinate
from sbon.errors import RemoteProtocolError
from sbon.planning.problem import MAX_STREAMS, Join, JoinQuery, Tree, Use

#: A part has at most so many hosts, and as many streams: all paths between hosts are looked at.
MAX_LISTED = 1000


class Spot(msgspec.Struct, frozen=True):
    """A host. ``takes``: whether it takes operators, or stands for some that do."""

    node_id: str
    coordinate: Coordinate
    takes: bool
    load_ms: float = 0.0

    def check(self, dimensions: int) -> None:
        """Raise RemoteProtocolError unless this can be a host, with a coordinate of ``dimensions`` dimensions."""
        self.coordinate.check(dimensions)
        if not 0.0 <= self.load_ms < math.inf:  # false for NaN, too
            raise RemoteProtocolError(f"a host with a load of {self.load_ms} ms")


class Given(msgspec.Struct, frozen=True):
    """A stream of the set ``mask`` that can be read on ``spots[spot]`` and costs ``cost`` to run."""

    mask: int
    spot: int
    cost: float = 0.0


class Part(msgspec.Struct, frozen=True):
    """The streams ``mask``, out of what is ``given``, for a reader on ``spots[target]`` at ``rate`` bytes/s.

    ``rates`` are by mask; infinity where streams are not joined.
    """

    mask: int
    rates: tuple[float, ...]
    spots: tuple[Spot, ...]
    given: tuple[Given, ...]
    target: int
    rate: float

    def check(self, dimensions: int) -> None:
        """Raise RemoteProtocolError unless it can be planned, with coordinates of ``dimensions`` dimensions."""
        if not 0 < self.mask < len(self.rates) <= 1 << MAX_STREAMS:
            raise RemoteProtocolError(f"streams {self.mask:b} to be joined with {len(self.rates)} rates")
        if not all(rate >= 0.0 for rate in self.rates) or not 0.0 <= self.rate < math.inf:  # false for NaN, too
            raise RemoteProtocolError("a rate that cannot be")
        if max(len(self.spots), len(self.given)) > MAX_LISTED:
            raise RemoteProtocolError(f"a part with {len(self.spots)} hosts and {len(self.given)} streams")
        if not 0 <= self.target < len(self.spots):
            raise RemoteProtocolError("a reader on no host")
        for spot in self.spots:
            spot.check(dimensions)
        for each in self.given:
            if not 0 <= each.spot < len(self.spots) or not 0.0 <= each.cost < math.inf:
                raise RemoteProtocolError("a stream on no host, or of no cost")
            if not each.mask or each.mask | self.mask != self.mask or math.isinf(self.rates[each.mask]):
                raise RemoteProtocolError(f"{each.mask:b} is no part of the streams {self.mask:b}, or has no rate")

    def check_answer(self, tree: PlacedTree, dimensions: int) -> None:
        """Raise RemoteProtocolError unless ``tree`` joins what is given, each stream once, to what is to be joined.

        The part itself has passed :meth:`check`.
        """
        if self._joined(tree, dimensions, MAX_STREAMS) != self.mask:
            raise RemoteProtocolError("a tree of other streams than those that are to be joined")

    def _joined(self, tree: PlacedTree, dimensions: int, at_most: int) -> int:
        """The streams of a tree that is not higher than ``at_most``."""
        if isinstance(tree, TakenLeaf):
            if not 0 <= tree.number < len(self.given):
                raise RemoteProtocolError("a tree with a stream that is not given")
            return self.given[tree.number].mask
        if not at_most:
            raise RemoteProtocolError("a tree with more joins than streams")
        tree.spot.check(dimensions)
        left, right = (self._joined(part, dimensions, at_most - 1) for part in (tree.left, tree.right))
        if left & right or math.isinf(self.rates[left | right]):
            raise RemoteProtocolError("a tree with a join that cannot be")
        return left | right


class TakenLeaf(msgspec.Struct, frozen=True, tag=True):
    """``given[number]`` of the part."""

    number: int


class PlacedJoin(msgspec.Struct, frozen=True, tag=True):
    spot: Spot
    left: TakenLeaf | PlacedJoin
    right: TakenLeaf | PlacedJoin


PlacedTree = TakenLeaf | PlacedJoin


def leaves_of(query: JoinQuery, running: Sequence[Use]) -> list[Use]:
    """What is given for a query: its base streams, then what runs."""
    return [*(Use(1 << number, host) for number, host in enumerate(query.hosts)), *running]


def part_of(query: JoinQuery, leaves: Sequence[Use], spots: Sequence[Spot]) -> Part:
    """The whole of a query whose hosts are numbers of ``spots``."""
    given = tuple(Given(leaf.mask, leaf.host) for leaf in leaves)
    return Part(query.everything, query.rates, tuple(spots), given, query.sink, query.result_rate)


def tree_of(placed: PlacedTree, leaves: Sequence[Use]) -> Tree:
    """The order of joins alone, and what they read: hosts are chosen later, and are none (-1) here."""
    if isinstance(placed, TakenLeaf):
        return leaves[placed.number]
    left, right = tree_of(placed.left, leaves), tree_of(placed.right, leaves)
    return Join(left.mask | right.mask, -1, left, right)
