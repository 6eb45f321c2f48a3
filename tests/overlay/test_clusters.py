from __future__ import annotations

import random

import pytest

from overlay.clusters import LEAST_SHARE, distance_ms, halves, medoid, nearest
from overlay.records import NodeRecord
from sbon.coordinate import Coordinate


def at(name: str, x: float, y: float = 0.0) -> NodeRecord:
    return NodeRecord(
        node_id=name, name=name, host="192.0.2.1", port=1, boot_id=1, coordinate=Coordinate((x, y), 0.0, 0.1),
        load=0.0, accepts_operators=True,
    )  # fmt: skip


def test_the_medoid_is_in_the_middle_and_ties_go_by_id() -> None:
    line = [at("a", 0.0), at("b", 10.0), at("c", 30.0)]
    assert medoid(line).name == "b"
    assert medoid([at("z", 1.0), at("y", 1.0)]).name == "y"
    assert nearest(at("x", 26.0), line).name == "c"
    assert distance_ms(line[0], line[0]) == 0.0


def test_two_crowds_are_told_apart() -> None:
    rng = random.Random(1)
    here = [at(f"a{i}", rng.gauss(0.0, 1.0), rng.gauss(0.0, 1.0)) for i in range(9)]
    there = [at(f"b{i}", rng.gauss(50.0, 1.0), rng.gauss(0.0, 1.0)) for i in range(8)]
    mixed = here + there
    rng.shuffle(mixed)
    parts = {frozenset(record.name for record in part) for part in halves(mixed)}
    assert parts == {frozenset(record.name for record in part) for part in (here, there)}


def test_no_part_is_small_even_if_one_stands_far_from_all_others() -> None:
    crowd = [at(f"a{i}", float(i)) for i in range(12)] + [at("far", 1000.0)]
    one, other = halves(crowd)
    assert min(len(one), len(other)) >= len(crowd) // LEAST_SHARE
    same_place = halves([at(f"s{i}", 5.0) for i in range(4)])
    assert min(map(len, same_place)) >= 1
    assert [len(part) for part in halves([at("a", 0.0), at("b", 1.0)])] == [1, 1]


def test_many_are_parted_without_looking_at_all_pairs_for_each_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    looks = 0

    def counted(a: NodeRecord, b: NodeRecord) -> float:
        nonlocal looks
        looks += 1
        return distance_ms(a, b)

    monkeypatch.setattr("overlay.clusters.distance_ms", counted)
    crowd = [at(f"a{i:03}", float(i % 17), float(i % 13)) for i in range(100)]
    halves(crowd)
    assert looks < 10 * len(crowd) ** 2
