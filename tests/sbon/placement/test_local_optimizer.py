from __future__ import annotations

import msgspec
import pytest

from sbon.network_usage import Link
from sbon.placement.full_optimizer import choose
from sbon.placement.local_optimizer import (
    Action,
    Decision,
    LocalPolicy,
    Move,
    decide,
    groups,
    local_problem,
    observe,
    reason_to_search,
)
from sbon.placement.problem import PlacementProblem
from tests.sbon.placement.fake_view import FakeHost, host, view_of

LINKS = (
    Link("flights", "join", 10_000.0),
    Link("weather", "join", 1_000.0),
    Link("join", "aggregate", 20_000.0),
    Link("aggregate", "sink", 50.0),
)
UNPINNED = ("join", "aggregate")
HOSTS = [host("nyc", 0.0), host("chicago", 20.0), host("london", 80.0)]
PLACED = {"flights": "nyc", "weather": "chicago", "sink": "london", "join": "london", "aggregate": "london"}
POLICY = LocalPolicy()


def here(problem: PlacementProblem) -> dict[str, str]:
    return dict.fromkeys(problem.unpinned, "london")


def decided(
    *,
    group: tuple[str, ...] = UNPINNED,
    hosts: list[FakeHost] = HOSTS,
    policy: LocalPolicy = POLICY,
    state_bytes: int = 1_000_000,
    remaining_lifetime_s: float = 3600.0,
    since_last_move_s: float = 1e9,
    exact: bool = True,
) -> Decision:
    problem = local_problem(LINKS, PLACED, group)
    view = view_of(hosts, exact=exact)
    seen = observe(problem, here(problem), view)
    best = choose(problem, dict.fromkeys(problem.unpinned, hosts), view, seen.virtual)
    return decide(
        problem, here(problem), best, view,
        state_bytes=dict.fromkeys(UNPINNED, state_bytes), remaining_lifetime_s=remaining_lifetime_s,
        since_last_move_s=since_last_move_s, policy=policy,
    )  # fmt: skip


def test_a_join_and_its_aggregate_move_together_though_neither_would_alone() -> None:
    assert decided(group=("join",)).action is Action.STAY
    assert decided(group=("aggregate",)).action is Action.STAY
    decision = decided()
    assert decision.action is Action.MOVE
    assert decision.moves == (Move("join", "london", "nyc"), Move("aggregate", "london", "nyc"))
    assert decision.saving == pytest.approx(decision.cost_now - decision.cost_then)
    assert [choice.chosen for choice in decision.choices] == ["nyc", "nyc"]


def test_groups_are_connected_and_on_one_host() -> None:
    links = (*LINKS, Link("other", "filter", 1.0), Link("filter", "sink", 1.0))
    placement = PLACED | {"other": "nyc", "filter": "london"}
    unpinned = {"join", "aggregate", "filter"}
    assert groups(links, placement, unpinned, "london") == [("join", "aggregate"), ("filter",)]
    assert groups(links, placement | {"join": "nyc"}, unpinned, "london") == [("aggregate",), ("filter",)]
    assert groups(links, placement, unpinned, "chicago") == []


def test_a_saving_under_the_minimum_migration_threshold_is_left() -> None:
    decision = decided(policy=LocalPolicy(minimum_saving_ratio=0.99))
    assert decision.action is Action.STAY
    assert "99%" in decision.reason


def test_a_move_has_to_be_repaid_in_the_remaining_lifetime() -> None:
    # Two states of 1 MB over 40 ms one way: 80,000 byte seconds. Saved: some 400 bytes in every second.
    unpaid = decided(remaining_lifetime_s=150.0)
    assert unpaid.action is Action.STAY
    assert "2000 kB of state to nyc" in unpaid.reason
    assert unpaid.repaid_after_s == pytest.approx(80_000.0 / unpaid.saving)
    assert decided(remaining_lifetime_s=300.0).action is Action.MOVE
    assert decided(remaining_lifetime_s=300.0, policy=LocalPolicy(repay_factor=10.0)).action is Action.STAY
    assert decided(remaining_lifetime_s=0.0, state_bytes=0).action is Action.MOVE


def test_a_query_rests_after_a_move() -> None:
    assert decided(since_last_move_s=3.0).action is Action.STAY
    assert decided(since_last_move_s=10.0).action is Action.MOVE


def test_nothing_moves_on_predictions_alone_unless_told_to() -> None:
    assert decided(exact=False).action is Action.STAY
    assert decided(exact=False, policy=LocalPolicy(require_measured=False)).action is Action.MOVE


def test_the_best_host_keeps_its_operators() -> None:
    decision = decided(
        hosts=[host("nyc", 0.0, accepts=False), host("chicago", 1e3, accepts=False), host("london", 8.0)]
    )
    assert (decision.action, decision.moves) == (Action.STAY, ())
    assert "no host is better" in decision.reason


def test_hosts_are_looked_for_when_the_virtual_point_or_a_path_moved() -> None:
    problem = local_problem(LINKS, PLACED, UNPINNED)
    before = observe(problem, here(problem), view_of(HOSTS, exact=True))
    assert reason_to_search(None, before, POLICY) == "not evaluated before"
    assert reason_to_search(before, before, POLICY) is None
    nearly = [host("nyc", 2.0), *HOSTS[1:]]
    assert (
        reason_to_search(before, observe(problem, here(problem), view_of(nearly, exact=True), before), POLICY) is None
    )
    moved = [host("nyc", -10.0), *HOSTS[1:]]
    moved_reason = reason_to_search(before, observe(problem, here(problem), view_of(moved, exact=True), before), POLICY)
    assert moved_reason is not None
    assert "virtual point" in moved_reason
    # The coordinates have not followed yet, but the probes show it.
    slow = observe(problem, here(problem), view_of(HOSTS, {("nyc", "london"): 300.0}, exact=True), before)
    slow_reason = reason_to_search(before, slow, POLICY)
    assert slow_reason is not None
    assert "round trip to nyc" in slow_reason


def test_a_changed_rate_moves_the_virtual_point() -> None:
    problem = local_problem(LINKS, PLACED, UNPINNED)
    before = observe(problem, here(problem), view_of(HOSTS))
    links = tuple(msgspec.structs.replace(link, rate_bytes_per_s=10_000.0) for link in LINKS)
    after = observe(local_problem(links, PLACED, UNPINNED), here(problem), view_of(HOSTS), before)
    assert reason_to_search(before, after, POLICY) is not None


def test_decisions_can_be_sent() -> None:
    decision = decided()
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(decision), type=Decision) == decision
