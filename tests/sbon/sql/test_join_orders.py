"""Joins in other orders than the one that is written, and what planners are told of them."""

from __future__ import annotations

import functools
import itertools
import math
import random
from collections.abc import Iterable, Iterator

import pytest

from sbon.errors import QueryError
from sbon.fragment import FragmentKind
from sbon.placement.optimum import Truth
from sbon.planning import planners
from sbon.planning.problem import MAX_STREAMS, JoinQuery
from sbon.planning.running import Running
from sbon.planning.signature import Signature
from sbon.planning.situation import Situation
from sbon.sql import estimates
from sbon.sql.estimates import Rate
from sbon.sql.event_times import event_times
from sbon.sql.join_graph import JoinGraph, Order, _runs, join_graph
from sbon.sql.join_query import join_query, order_of, used_above
from sbon.sql.logical_plan import Join, Plan
from sbon.sql.plan import Prepared, plan_query, prepare_query
from sbon.sql.plan_rates import joined_rate
from sbon.sql.signatures import canonical_join
from tests.sbon.planning.cases import metric_network
from tests.sbon.sql.test_stream_windows import CATALOG

WINDOWS = (
    "FLIGHTS f [RANGE 5 MINUTES], CHECKINS c [RANGE 1 MINUTE], BAGGAGE b [RANGE 1 MINUTE], WEATHER w [RANGE 5 MINUTES]"
)
KEYS = "f.NUM = c.FLIGHT AND f.NUM = b.FLIGHT AND f.DEST = w.CITY"
QUERY = f"INSERT INTO DISPLAY SELECT f.GATE, b.AREA, w.FORECAST FROM {WINDOWS} WHERE {KEYS} AND f.TERMINAL = 'S'"


def signature(graph: JoinGraph, numbers: Iterable[int]) -> Signature:
    return canonical_join(graph, numbers).signature


def graph_of(text: str) -> JoinGraph:
    plan = prepare_query(text, CATALOG).plan
    assert isinstance(plan, Join)
    return join_graph(plan)


def orders(numbers: frozenset[int]) -> Iterator[Order]:
    """All trees."""
    if len(numbers) == 1:
        yield next(iter(numbers))
        return
    first = min(numbers)
    for count in range(1, len(numbers)):
        for left in itertools.combinations(sorted(numbers), count):
            if first in left:
                for one in orders(frozenset(left)):
                    for other in orders(numbers - frozenset(left)):
                        yield one, other


def sets_of(order: Order) -> tuple[frozenset[int], list[frozenset[int]]]:
    if isinstance(order, int):
        return frozenset({order}), []
    (left, below), (right, others) = sets_of(order[0]), sets_of(order[1])
    return left | right, [*below, *others, left | right]


def _always(order: Order, _graph: JoinGraph) -> Order:
    return order


def test_every_order_whose_parts_can_be_joined_can_be_run() -> None:
    graph = graph_of(QUERY)
    found = list(orders(frozenset(range(4))))
    assert len(found) == 15
    runs = [order for order in found if all(graph.can_join(part) for part in sets_of(order)[1])]
    # Check-ins and baggage share the flight's number; weather has something in common with flights only.
    assert not graph.can_join(frozenset({1, 3}))
    assert graph.can_join(frozenset({1, 2}))
    assert len(runs) == 8
    for order in runs:
        assert event_times(graph.plan(order)).lags_us
        plan = prepare_query(QUERY, CATALOG).cut("q", functools.partial(_always, order))
        assert [spec.kind for spec in plan.fragments].count(FragmentKind.JOIN) == 3


def test_an_order_that_cannot_be_run_is_put_right() -> None:
    swapped = (
        "INSERT INTO DISPLAY SELECT f.GATE FROM CHECKINS c [RANGE 1 MINUTE], WEATHER w [RANGE 5 MINUTES], "
        "FLIGHTS f [RANGE 5 MINUTES] WHERE f.NUM = c.FLIGHT AND f.DEST = w.CITY"
    )
    joins = [spec.sql for spec in plan_query(swapped, "q", CATALOG).fragments if spec.kind is FragmentKind.JOIN]
    assert len(joins) == 2
    assert "f__NUM = c__FLIGHT" in joins[0]
    assert "f__DEST = w__CITY" in joins[1]
    with pytest.raises(QueryError, match="no equality of keys"):
        plan_query(swapped.replace("f.DEST = w.CITY", "f.NUM > 5"), "q", CATALOG)


def test_what_is_written_stays_if_it_can_be_run() -> None:
    graph = graph_of(QUERY)
    assert graph.written == (((0, 1), 2), 3)
    assert graph.any_order() == graph.written


def many(streams: int) -> str:
    """The last one has nothing in common with the others, each of which can be joined with each."""
    names = [f"s{number}" for number in range(streams)]
    keys = " AND ".join(f"s0.FLIGHT = {name}.FLIGHT" for name in names[1:-1])
    windows = ", ".join(f"CHECKINS {name} [RANGE 1 MINUTE]" for name in names)
    return f"INSERT INTO DISPLAY SELECT s0.FLIGHT FROM {windows} WHERE {keys}"


def test_sets_of_inputs_are_looked_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = graph_of(many(6))
    looked = 0

    def runs(plan: Plan) -> bool:
        nonlocal looked
        looked += 1
        return _runs(plan)

    monkeypatch.setattr("sbon.sql.join_graph._runs", runs)
    assert graph.any_order() is None
    assert looked <= 2**6
    assert graph.can_join(frozenset(range(5)))
    assert looked <= 2**6


def test_no_order_is_looked_for_among_too_many() -> None:
    graph = graph_of(many(MAX_STREAMS + 1))
    assert graph.can_join(frozenset(range(3)))
    with pytest.raises(QueryError, match="write each behind those"):
        graph.any_order()
    runs = many(MAX_STREAMS + 2) + f" AND s0.FLIGHT = s{MAX_STREAMS + 1}.FLIGHT"
    assert graph_of(runs).any_order() == graph_of(runs).written


def test_signatures_do_not_depend_on_how_a_query_is_written() -> None:
    other = (
        "INSERT INTO DISPLAY SELECT x.FORECAST FROM WEATHER x [RANGE 5 MINUTES], BAGGAGE y [RANGE 1 MINUTE], "
        "FLIGHTS z [RANGE 5 MINUTES], CHECKINS q [RANGE 1 MINUTE] "
        "WHERE x.CITY = z.DEST AND 'S' = z.TERMINAL AND y.FLIGHT = z.NUM AND q.FLIGHT = z.NUM"
    )
    one, two = graph_of(QUERY), graph_of(other)
    to_other = {0: 2, 1: 3, 2: 1, 3: 0}
    for count in range(1, 5):
        for numbers in itertools.combinations(range(4), count):
            found = signature(one, numbers)
            assert found == signature(two, [to_other[number] for number in numbers])
            assert found.filters == (frozenset({"'S' = flights1__terminal"}) if 0 in numbers else frozenset())
    assert len({signature(one, [a, b]) for a, b in itertools.combinations(range(4), 2)}) == 6
    wider = graph_of(QUERY.replace("c [RANGE 1 MINUTE]", "c [RANGE 2 MINUTES]"))
    assert signature(wider, [0, 1]) != signature(one, [0, 1])
    assert signature(wider, [0, 3]) == signature(one, [0, 3])


def test_uses_of_one_stream_are_told_apart_the_same_way() -> None:
    text = (
        "INSERT INTO DISPLAY SELECT {a}.GATE FROM FLIGHTS a [RANGE 1 MINUTE], FLIGHTS b [RANGE 1 MINUTE] "
        "WHERE a.NUM = b.NUM AND {a}.DEST = 'ATL' AND {b}.DEST = 'BOS'"
    )
    one, two = graph_of(text.format(a="a", b="b")), graph_of(text.format(a="b", b="a"))
    assert signature(one, [0, 1]) == signature(two, [0, 1])
    assert signature(one, [0]) == signature(two, [1])
    assert signature(one, [0]) == Signature("flights1", frozenset({"'ATL' = flights1__dest"}))


def test_rates_do_not_depend_on_the_order() -> None:
    rng = random.Random(5)
    rates = [
        Rate(rng.uniform(1, 100), {f"a{i}": rng.uniform(1, 50), f"b{i}": 8.0}, rng.uniform(0.1, 1)) for i in range(4)
    ]
    needed = {"a0", "a1", "b2", "a3"}
    for order in itertools.permutations(rates):
        joined = order[0]
        for rate in order[1:]:
            joined = estimates.joined(joined, rate)
        width = sum(width for name, width in joined.column_bytes.items() if name in needed)
        assert joined_rate(order, needed) == pytest.approx(joined.rows_per_s * width)


def test_planners_are_told_of_a_query() -> None:
    prepared, query, network = _problem()
    assert query is not None
    plan = planners.load("joint").plan(query, Situation(network, Running()))
    order = order_of(plan.tree)
    assert sets_of(order)[0] == frozenset(range(4))
    cut = prepared.cut("q", lambda graph: order)
    assert len(cut.fragments) == 4 + 3 + 1
    # What planners take a link to carry is what is estimated when the query has been cut.
    by_id = {spec.fragment_id: spec for spec in cut.fragments}
    last = next(rate for producer, consumer, rate in cut.links if by_id[consumer].kind is FragmentKind.SINK)
    assert query.result_rate == pytest.approx(last)
    assert math.isinf(query.rates[0b1010])


def _problem() -> tuple[Prepared, JoinQuery | None, Truth]:
    prepared = prepare_query(QUERY, CATALOG)
    graph = graph_of(QUERY)
    network = metric_network(random.Random(1), 10)
    homes = {"FLIGHTS": 0, "CHECKINS": 1, "BAGGAGE": 2, "WEATHER": 3}
    above = used_above(prepared.outputs, prepared.plan, graph)
    return prepared, join_query("q", graph, homes.__getitem__, above, 4, None), network
