"""A part of a plan on its way between coordinators: what has to be joined, and what became of it.

Whoever plans it (:mod:`sbon.planning.part_planning`) knows its own cluster, and of all else what is in the part: where
the streams and the reader are.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from sbon.coordinate import Coordinate
from sbon.planning.problem import Join, JoinQuery, Tree, Use


class Spot(msgspec.Struct, frozen=True):
    """A host. ``takes``: whether it takes operators, or stands for some that do."""

    node_id: str
    coordinate: Coordinate
    takes: bool
    load_ms: float = 0.0


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
