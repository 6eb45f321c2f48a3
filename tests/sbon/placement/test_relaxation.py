from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sbon.network_usage import Link
from sbon.placement.relaxation import Point, virtual_place

points = st.tuples(st.floats(-200, 200), st.floats(-200, 200))
rates = st.floats(0.1, 1e6)


def star(ends: list[tuple[Point, float]]) -> tuple[list[Link], dict[str, Point]]:
    links = [Link(f"p{index}", "op", rate) for index, (_, rate) in enumerate(ends)]
    return links, {f"p{index}": point for index, (point, _) in enumerate(ends)}


@given(st.lists(st.tuples(points, rates), min_size=1, max_size=6))
def test_one_operator_rests_at_the_weighted_centroid(ends: list[tuple[Point, float]]) -> None:
    links, fixed = star(ends)
    place = virtual_place(links, fixed)["op"]
    total = sum(rate for _, rate in ends)
    for axis in range(2):
        centroid = sum(point[axis] * rate for point, rate in ends) / total
        assert place[axis] == pytest.approx(centroid, abs=0.1)


def test_a_chain_of_operators_is_spread_by_its_rates() -> None:
    # source --100--> filter --10--> aggregate --1--> sink, 111 ms long: springs in series stretch as 1 / rate.
    links = [Link("source", "filter", 100.0), Link("filter", "aggregate", 10.0), Link("aggregate", "sink", 1.0)]
    places = virtual_place(links, {"source": (0.0,), "sink": (111.0,)})
    assert places["filter"][0] == pytest.approx(1.0, abs=0.5)
    assert places["aggregate"][0] == pytest.approx(11.0, abs=0.5)


def test_it_starts_from_where_it_was_and_ends_in_the_same_place() -> None:
    links, fixed = star([((0.0, 0.0), 1.0), ((10.0, 0.0), 3.0)])
    far = virtual_place(links, fixed, start={"op": (-500.0, 500.0)})
    assert far["op"] == pytest.approx(virtual_place(links, fixed)["op"], abs=0.1)


def test_a_link_without_traffic_pulls_nowhere() -> None:
    assert virtual_place([Link("a", "op", 0.0)], {"a": (5.0,)}, start={"op": (7.0,)}) == {"op": (7.0,)}


def test_nothing_pinned_is_refused() -> None:
    with pytest.raises(ValueError, match="pinned"):
        virtual_place([Link("a", "b", 1.0)], {})
