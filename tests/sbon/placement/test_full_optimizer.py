from __future__ import annotations

import itertools
import math
import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sbon.delay import longest_delay_ms
from sbon.errors import UnavailableError
from sbon.network_usage import Link, network_usage, placement_cost
from sbon.placement.candidates import candidate_objective, virtual_places
from sbon.placement.exact import Term, elimination_order, minimise, minimum_with
from sbon.placement.full_optimizer import choose
from sbon.placement.problem import CostView, PlacementProblem
from tests.sbon.placement.fake_view import FakeHost, host, view_of

JOIN_PLAN = (
    Link("flights", "join", 10_000.0),
    Link("weather", "join", 1_000.0),
    Link("join", "aggregate", 4_000.0),
    Link("aggregate", "sink", 50.0),
)


def brute_force(problem: PlacementProblem, hosts: list[FakeHost], view: CostView) -> float:
    best = math.inf
    for choice in itertools.product(hosts, repeat=len(problem.unpinned)):
        placed = {op: one.node_id for op, one in zip(problem.unpinned, choice, strict=True)}
        placement = dict(problem.pinned) | placed
        best = min(best, placement_cost(problem.links, placement, problem.unpinned, view.rtt_ms, view.load_ms))
    return best


def random_case(seed: int, *, operators: int, hosts: int) -> tuple[PlacementProblem, list[FakeHost], CostView]:
    """A random DAG with shared operators (several consumers), not only a tree."""
    rng = random.Random(seed)
    places = [
        host(f"h{i}", rng.uniform(-100, 100), rng.uniform(-100, 100), height_ms=rng.uniform(0, 20), load=rng.random())
        for i in range(hosts)
    ]
    names = ["p0", "p1", *(f"op{i}" for i in range(operators)), "c0", "c1"]
    links = []
    for index in range(operators):
        target = f"op{index}"
        sources = names[: 2 + index]
        links += [
            Link(s, target, rng.uniform(1, 1e4)) for s in rng.sample(sources, min(len(sources), rng.choice((1, 2))))
        ]
        links += [Link(target, c, rng.uniform(1, 1e4)) for c in ("c0", "c1") if rng.random() < 0.5]
    links += [Link(f"op{operators - 1}", "c0", 10.0), Link("p0", "c1", 5.0)]
    pinned = {name: rng.choice(places).node_id for name in ("p0", "p1", "c0", "c1")}
    ids = [one.node_id for one in places]
    measured = {pair: rng.uniform(1, 200) for pair in itertools.combinations(ids, 2) if rng.random() < 0.8}
    return PlacementProblem(tuple(links), pinned), places, view_of(places, measured)


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32), st.integers(1, 4), st.integers(1, 5))
def test_the_choice_is_as_good_as_brute_force(seed: int, operators: int, hosts: int) -> None:
    problem, places, view = random_case(seed, operators=operators, hosts=hosts)
    placement = choose(problem, dict.fromkeys(problem.unpinned, places), view, virtual_places(problem, view))
    assert placement.cost == pytest.approx(brute_force(problem, places, view))
    assert placement.network_usage == pytest.approx(network_usage(problem.links, placement.hosts, view.rtt_ms))
    for choice in placement.choices:
        costs = [candidate.measured_cost for candidate in choice.candidates]
        assert choice.cost == pytest.approx(placement.cost)
        assert costs[0] <= min(costs) * (1 + 1e-9) + 1e-9
        assert choice.candidates[0].node_id == choice.chosen == placement.hosts[choice.operator]


def test_the_costs_of_other_candidates_are_those_of_the_best_plan_with_them() -> None:
    problem, places, view = random_case(7, operators=3, hosts=4)
    placement = choose(problem, dict.fromkeys(problem.unpinned, places), view, virtual_places(problem, view))
    choice = placement.choices[1]
    for candidate in choice.candidates:
        forced = PlacementProblem(problem.links, dict(problem.pinned) | {choice.operator: candidate.node_id})
        load = problem.input_rate_bytes_per_s(choice.operator) * view.load_ms(candidate.node_id) / 1000.0
        assert candidate.measured_cost == pytest.approx(brute_force(forced, places, view) + load)


def test_join_and_aggregate_go_to_the_producer_with_the_most_data() -> None:
    places = [host("nyc", 0.0), host("chicago", 20.0), host("london", 75.0), host("paris", 80.0)]
    view = view_of(places, exact=True)
    problem = PlacementProblem(JOIN_PLAN, {"flights": "nyc", "weather": "chicago", "sink": "london"})
    virtual = virtual_places(problem, view)
    assert problem.unpinned == ("join", "aggregate")
    assert 0.0 < virtual["join"][0] < virtual["aggregate"][0] < 20.0
    candidates = {
        op: sorted(places, key=candidate_objective(problem, op, virtual, view).cost) for op in problem.unpinned
    }
    placement = choose(problem, candidates, view, virtual)
    assert placement.hosts == {
        "flights": "nyc", "weather": "chicago", "sink": "london", "join": "nyc", "aggregate": "nyc",
    }  # fmt: skip
    join = placement.choices[0]
    assert (join.chosen, join.runner_up) == ("nyc", "chicago")
    assert join.runner_up_cost is not None
    assert join.runner_up_cost > join.cost
    assert all(candidate.measured for candidate in join.candidates)
    assert "nyc" in join.reason
    assert "chicago" in join.reason


def test_a_measurement_corrects_a_prediction() -> None:
    places = [host("a", 0.0), host("b", 10.0), host("c", 100.0)]
    problem = PlacementProblem((Link("in", "op", 100.0), Link("op", "out", 100.0)), {"in": "a", "out": "c"})
    measured = {("a", "b"): 500.0, ("b", "c"): 500.0, ("a", "c"): 100.0}
    view = view_of(places, measured)
    placement = choose(problem, {"op": places}, view, virtual_places(problem, view))
    assert placement.hosts["op"] in ("a", "c")
    worst = placement.choices[0].candidates[-1]
    assert worst.node_id == "b"
    assert worst.measured_cost == pytest.approx(50.0)
    assert worst.predicted_cost == pytest.approx(5.0)


def test_load_moves_an_operator_to_an_idle_neighbour_but_is_not_reported_as_usage() -> None:
    places = [host("busy", 0.0, load=4.0), host("idle", 2.0), host("sink", 50.0)]
    problem = PlacementProblem((Link("in", "op", 100.0), Link("op", "out", 1.0)), {"in": "busy", "out": "sink"})
    view = view_of(places, exact=True)
    placement = choose(problem, {"op": places}, view, virtual_places(problem, view))
    assert placement.hosts["op"] == "idle"
    assert placement.network_usage == pytest.approx((100.0 * 1.0 + 1.0 * 24.0) / 1000.0)


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32), st.sampled_from([0.005, 0.05, 0.5]))
def test_near_ties_are_broken_by_delay(seed: int, slack: float) -> None:
    problem, places, view = random_case(seed, operators=3, hosts=6)
    candidates, virtual = dict.fromkeys(problem.unpinned, places), virtual_places(problem, view)
    cheapest = choose(problem, candidates, view, virtual)
    quick = choose(problem, candidates, view, virtual, slack=slack)
    most = (1.0 + slack) * cheapest.cost
    assert quick.cost <= most * (1.0 + 1e-9)
    quick_ms = longest_delay_ms(problem.links, quick.hosts, view.rtt_ms)
    assert quick_ms <= longest_delay_ms(problem.links, cheapest.hosts, view.rtt_ms)
    for operator, one in itertools.product(problem.unpinned, places):
        moved = quick.hosts | {operator: one.node_id}
        cost = placement_cost(problem.links, moved, problem.unpinned, view.rtt_ms, view.load_ms)
        assert cost > most * (1.0 - 1e-9) or longest_delay_ms(problem.links, moved, view.rtt_ms) >= quick_ms


def test_of_two_hosts_of_about_the_same_cost_the_quicker_one_is_taken() -> None:
    """On b, a detour for the slower producer, usage is a little less than on a."""
    places = [host(name) for name in ("p", "q", "a", "b", "sink")]
    measured = {("p", "a"): 99.0, ("p", "b"): 112.0, ("q", "a"): 40.0, ("q", "b"): 26.9, ("a", "sink"): 1.0}
    view = view_of(places, measured | {("b", "sink"): 1.0, ("p", "q"): 300.0, ("p", "sink"): 99.0, ("q", "sink"): 99.0})
    links = (Link("in", "op", 100.0), Link("other", "op", 100.0), Link("op", "out", 10.0))
    problem = PlacementProblem(links, {"in": "p", "other": "q", "out": "sink"})
    virtual = virtual_places(problem, view)
    for slack, chosen in ((0.0, "b"), (0.005, "a"), (0.0005, "b")):
        placement = choose(problem, {"op": places[2:4]}, view, virtual, slack=slack)
        assert placement.hosts["op"] == chosen
        assert ("data would take longer" in placement.choices[0].reason) == (chosen == "a")


def test_hosts_that_take_no_operators_are_never_chosen() -> None:
    places = [host("a", 0.0, accepts=False), host("b", 50.0)]
    problem = PlacementProblem((Link("in", "op", 1.0),), {"in": "a"})
    view = view_of(places)
    virtual = virtual_places(problem, view)
    assert candidate_objective(problem, "op", virtual, view).cost(places[0]) == math.inf
    assert choose(problem, {"op": places}, view, virtual).hosts["op"] == "b"
    with pytest.raises(UnavailableError, match="accept_operators"):
        choose(problem, {"op": places[:1]}, view, virtual)


def test_operators_may_share_a_host_that_only_one_of_them_asked_for() -> None:
    places = [host("a", 0.0), host("b", 30.0), host("c", 60.0)]
    problem = PlacementProblem(JOIN_PLAN, {"flights": "a", "weather": "a", "sink": "a"})
    placement = choose(
        problem, {"join": places[:1], "aggregate": places[1:]}, view_of(places), {"join": (0.0,), "aggregate": (0.0,)}
    )
    assert placement.hosts["aggregate"] == "a"
    assert placement.cost == 0.0


def test_a_plan_without_unpinned_operators_costs_what_its_links_cost() -> None:
    places = [host("a", 0.0), host("b", 30.0)]
    problem = PlacementProblem((Link("in", "out", 1000.0),), {"in": "a", "out": "b"})
    placement = choose(problem, {}, view_of(places), {})
    assert placement.network_usage == placement.cost == pytest.approx(15.0)
    assert placement.choices == ()


def test_too_many_candidates_are_trimmed_from_the_least_promising_end() -> None:
    """A dense plan whose exact table would be huge is still placed, in bounded memory."""
    rng = random.Random(3)
    operators = [f"op{i}" for i in range(6)]
    links = [Link(a, b, rng.uniform(1, 10)) for a, b in itertools.combinations(operators, 2)]
    links += [Link("in", op, 1.0) for op in operators]
    places = [host(f"h{i}", float(i)) for i in range(20)]
    view = view_of(places)
    problem = PlacementProblem(tuple(links), {"in": "h0"})
    placement = choose(problem, dict.fromkeys(operators, places), view, virtual_places(problem, view))
    assert set(placement.hosts.values()) == {"h0"}


@given(st.integers(0, 2**32))
@settings(max_examples=50, deadline=None)
def test_elimination_equals_enumeration(seed: int) -> None:
    rng = np.random.default_rng(seed)
    names = ["a", "b", "c", "d"]
    sizes = {name: int(rng.integers(1, 4)) for name in names}
    scopes = [scope for count in (1, 2) for scope in itertools.combinations(names, count) if rng.random() < 0.6]
    terms = [Term(scope, rng.random([sizes[name] for name in scope])) for scope in scopes]
    totals = {
        choice: sum(float(term.costs[tuple(choice[names.index(name)] for name in term.scope)]) for term in terms)
        for choice in itertools.product(*(range(sizes[name]) for name in names))
    }
    choice, cost = minimise(terms, sizes)
    assert cost == pytest.approx(min(totals.values()))
    assert totals[tuple(choice[name] for name in names)] == pytest.approx(cost)
    for name in names:
        for index, least in enumerate(minimum_with(name, terms, sizes)):
            assert least == pytest.approx(min(v for k, v in totals.items() if k[names.index(name)] == index))
    assert sorted(elimination_order(terms, sizes)[0]) == names
