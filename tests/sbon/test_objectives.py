"""What a search for hosts minimises, and by whom it is guided."""

from __future__ import annotations

import math

import msgspec

from overlay.records import NodeRecord
from sbon.coordinate import MAX_ERROR, Coordinate
from sbon.objectives import LOST_RTT_MS, Endpoint, HasProperty, LeastUsage, NearestTo
from tests.overlay.fake_network import fake_record

HERE = Coordinate((0.0, 0.0), 20.0, 0.1)
ENDS = (Endpoint(HERE, 3000.0, "a"), Endpoint(Coordinate((30.0, 0.0), 5.0, 0.1), 1000.0, "b"))


def host(index: int, x: float, height_ms: float, error: float = 0.1) -> NodeRecord:
    place = Coordinate((x, 0.0), height_ms, error)
    return msgspec.structs.replace(fake_record(index, dimensions=2), coordinate=place)


def test_hubs_are_near_and_those_alike_know_them() -> None:
    hub, alike = host(1, 5.0, 0.0), host(2, 1.0, 19.0)
    objective = NearestTo(HERE)
    assert objective.cost(hub) < objective.cost(alike)
    assert objective.guide().cost(alike) < objective.guide().cost(hub)


def test_usage_is_least_at_hubs_and_those_alike_to_the_ends_know_them() -> None:
    hub, alike = host(1, 8.0, 0.0), host(2, 2.0, 18.0)
    objective = LeastUsage(ENDS)
    assert objective.cost(hub) < objective.cost(alike)
    assert objective.guide().cost(alike) < objective.guide().cost(hub)


def test_one_that_has_found_no_place_is_far_from_all_but_itself() -> None:
    lost, there = host(1, 0.0, 0.0, error=MAX_ERROR), host(2, 500.0, 0.0)
    assert LeastUsage(ENDS).cost(there) < LeastUsage(ENDS).cost(lost) < math.inf, (
        "where nobody has a place one is chosen"
    )
    end = Endpoint(HERE, 1000.0, lost.node_id)
    assert end.rtt_ms(lost) == 0.0
    assert Endpoint(HERE, 1000.0).rtt_ms(lost) == LOST_RTT_MS


def test_one_that_has_found_no_place_is_not_the_nearest_with_a_property() -> None:
    lost, there = host(1, 0.0, 0.0, error=MAX_ERROR), host(2, 500.0, 0.0)
    for objective in (NearestTo(HERE), HasProperty(HERE), HasProperty(HERE, accepts_operators=True)):
        assert objective.cost(there) < objective.cost(lost) == math.inf


def test_nobody_is_guided_to_one_that_has_no_place() -> None:
    lost = host(1, 0.0, 0.0, error=MAX_ERROR)
    assert NearestTo(HERE).guide().cost(lost) == LeastUsage(ENDS).guide().cost(lost) == float("inf")
