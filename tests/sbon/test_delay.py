from __future__ import annotations

import pytest

from sbon.delay import delay_penalty, longest_delay_ms, longest_direct_ms
from sbon.network_usage import Link

PLAN = (Link("a", "join", 1.0), Link("b", "join", 1.0), Link("join", "sink", 1.0))
PLACED = {"a": "x", "b": "y", "join": "z", "sink": "w"}
RTT_MS = {("x", "z"): 20.0, ("y", "z"): 60.0, ("z", "w"): 10.0, ("x", "w"): 50.0, ("y", "w"): 40.0}


def rtt_ms(a: str, b: str) -> float:
    return RTT_MS[a, b]


def test_the_longest_way_goes_over_the_operators_hosts() -> None:
    assert longest_delay_ms(PLAN, PLACED, rtt_ms) == pytest.approx((60.0 + 10.0) / 2)
    assert longest_direct_ms(PLAN, PLACED, rtt_ms) == pytest.approx(50.0 / 2)
    assert delay_penalty(PLAN, PLACED, rtt_ms) == pytest.approx(70.0 / 50.0 - 1.0)


def test_beside_the_consumer_there_is_no_penalty() -> None:
    assert delay_penalty(PLAN, PLACED | {"join": "w"}, rtt_ms) == 0.0


def test_a_detour_may_be_shorter_than_the_direct_route() -> None:
    chain = (Link("a", "op", 1.0), Link("op", "sink", 1.0))
    assert delay_penalty(chain, {"a": "x", "op": "z", "sink": "w"}, rtt_ms) == pytest.approx(30.0 / 50.0 - 1.0)


def test_each_consumer_counts_with_the_producers_that_feed_it() -> None:
    plan = (Link("a", "s1", 1.0), Link("b", "s2", 1.0))
    placed = {"a": "x", "s1": "z", "b": "y", "s2": "w"}
    assert longest_direct_ms(plan, placed, rtt_ms) == pytest.approx(20.0)
    assert delay_penalty(plan, placed, rtt_ms) == 0.0


def test_everything_on_one_host_takes_no_time() -> None:
    assert delay_penalty(PLAN, dict.fromkeys(PLACED, "x"), rtt_ms) == 0.0


def test_plans_do_not_go_round_in_a_circle() -> None:
    with pytest.raises(ValueError, match="circle"):
        longest_delay_ms((*PLAN, Link("p", "q", 1.0), Link("q", "p", 1.0)), PLACED, rtt_ms)
