from __future__ import annotations

import pytest

from sbon.cost_space import LOAD_SCALE_MS, load_ms, one_way_ms
from sbon.network_usage import Link, network_usage, placement_cost

LINKS = (Link("p", "op", 1000.0), Link("op", "c", 100.0))


def rtt_ms(a: str, b: str) -> float:
    assert a != b, "nobody asks for the way from a node to itself"
    return {frozenset("xy"): 40.0, frozenset("xz"): 100.0, frozenset("yz"): 80.0}[frozenset((a, b))]


def test_usage_is_bytes_in_transit() -> None:
    assert network_usage(LINKS, {"p": "x", "op": "y", "c": "z"}, rtt_ms) == pytest.approx(1000 * 0.020 + 100 * 0.040)
    assert network_usage(LINKS, {"p": "x", "op": "x", "c": "z"}, rtt_ms) == pytest.approx(100 * 0.050)
    assert network_usage(LINKS, {"p": "x", "op": "x", "c": "x"}, rtt_ms) == 0.0


def test_the_objective_adds_the_load_of_the_unpinned_operators_hosts() -> None:
    placement = {"p": "x", "op": "x", "c": "z"}
    cost = placement_cost(LINKS, placement, ["op"], rtt_ms, {"x": 10.0, "z": 1e9}.__getitem__)
    assert cost == pytest.approx(100 * 0.050 + 1000 * 0.010)


def test_an_unplaced_end_is_an_error() -> None:
    with pytest.raises(KeyError):
        network_usage(LINKS, {"p": "x"}, rtt_ms)


def test_the_cost_space() -> None:
    assert one_way_ms(8.0) == 4.0
    assert load_ms(0.5) == 0.5 * LOAD_SCALE_MS
    assert load_ms(-1.0) == 0.0
    assert load_ms(1e9) == load_ms(100.0)
