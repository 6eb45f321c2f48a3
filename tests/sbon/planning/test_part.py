"""What comes from other coordinators: nothing that cannot be is planned, nor taken for a plan."""

from __future__ import annotations

import math
from typing import Any

import msgspec
import pytest

from sbon.coordinate import Coordinate
from sbon.errors import RemoteProtocolError
from sbon.planning.part import MAX_LISTED, Given, Part, PlacedJoin, PlacedTree, Spot, TakenLeaf
from sbon.planning.problem import MAX_STREAMS, submasks

HERE = Spot("here", Coordinate((1.0, 2.0), 0.5, 0.1), takes=True)
#: Three streams; the first and the last one have nothing in common. The first two run joined, too.
PART = Part(
    0b111,
    (0.0, 5.0, 5.0, 2.0, 5.0, math.inf, 2.0, 1.0),
    (HERE, msgspec.structs.replace(HERE, node_id="there")),
    (Given(0b001, 0), Given(0b010, 1), Given(0b100, 1), Given(0b011, 0, 3.0)),
    1,
    1.0,
)
ONE, TWO, THREE, PAIR = map(TakenLeaf, range(4))


def joined(left: PlacedTree, right: PlacedTree, spot: Spot = HERE) -> PlacedJoin:
    return PlacedJoin(spot, left, right)


def high(joins: int) -> PlacedTree:
    tree: PlacedTree = ONE
    for _ in range(joins):
        tree = joined(tree, TWO)
    return tree


@pytest.mark.parametrize(
    "change",
    [
        {"mask": 0},
        {"mask": -1},
        {"mask": 0b1111},
        {"mask": 1 << 40},
        {"mask": 1 << MAX_STREAMS, "rates": (1.0,) * (2 << MAX_STREAMS)},
        {"rates": PART.rates[:-1]},
        {"rates": (*PART.rates[:-1], math.nan)},
        {"rates": (*PART.rates[:-1], -1.0)},
        {"rate": math.inf},
        {"rate": math.nan},
        {"target": -1},
        {"target": 2},
        {"spots": (HERE,) * (MAX_LISTED + 1)},
        {"spots": (HERE, msgspec.structs.replace(HERE, load_ms=math.nan))},
        {"spots": (HERE, msgspec.structs.replace(HERE, coordinate=Coordinate((1.0,), 0.5, 0.1)))},
        {"spots": (HERE, msgspec.structs.replace(HERE, coordinate=Coordinate((1.0, math.nan), 0.5, 0.1)))},
        {"given": (Given(0b001, 0),) * (MAX_LISTED + 1)},
        {"given": (Given(0b001, -1),)},
        {"given": (Given(0b001, 2),)},
        {"given": (Given(0b001, 0, math.inf),)},
        {"given": (Given(0b001, 0, -1.0),)},
        {"given": (Given(0, 0),)},
        {"given": (Given(-1, 0),)},
        {"given": (Given(0b1001, 0),)},
        {"given": (Given(0b101, 0),)},
    ],
)
def test_a_part_that_cannot_be_is_refused(change: dict[str, Any]) -> None:
    PART.check(2)
    with pytest.raises(RemoteProtocolError):
        msgspec.structs.replace(PART, **change).check(2)


@pytest.mark.parametrize(
    "tree", [joined(joined(ONE, TWO), THREE), joined(ONE, joined(THREE, TWO)), joined(THREE, PAIR)]
)
def test_a_tree_of_all_that_is_asked_for_is_an_answer(tree: PlacedTree) -> None:
    PART.check_answer(tree, 2)


@pytest.mark.parametrize(
    "tree",
    [
        ONE,
        joined(ONE, TWO),
        joined(PAIR, joined(TWO, THREE)),  # one stream twice
        joined(joined(ONE, THREE), TWO),  # what has nothing in common
        joined(PAIR, TakenLeaf(4)),
        joined(PAIR, TakenLeaf(-2)),
        joined(PAIR, THREE, Spot("lost", Coordinate((1.0, 2.0, 3.0), 0.5, 0.1), takes=True)),
        high(100_000),
    ],
)
def test_any_other_tree_is_none(tree: PlacedTree) -> None:
    with pytest.raises(RemoteProtocolError):
        PART.check_answer(tree, 2)


@pytest.mark.parametrize("mask", [0b1, 0b1011, 0b1101_0110])
def test_subsets_are_all_there_small_ones_first(mask: int) -> None:
    everything = [part for part in range(1, mask + 1) if part & mask == part]
    assert submasks(mask) == sorted(everything, key=int.bit_count)


def test_subsets_of_a_few_streams_with_high_numbers_are_few() -> None:
    assert submasks(1 << 60 | 1) == [1, 1 << 60, 1 << 60 | 1]
