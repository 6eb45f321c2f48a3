from __future__ import annotations

import pytest
from sqlglot import exp

from sbon.sql import estimates
from sbon.sql.dialect import parse
from sbon.sql.plan import plan_query
from sbon.streams import StreamSpec
from tests.sbon.sql.streams import CATALOG


def predicate(text: str) -> exp.Expr:
    (statement,) = parse(f"SELECT a FROM s WHERE {text}")
    where = statement.args["where"]
    assert isinstance(where, exp.Where)
    condition = where.this
    assert isinstance(condition, exp.Expr)
    return condition


@pytest.mark.parametrize(
    ("text", "share"),
    [
        ("a = 1", 0.1),
        ("a <> 1", 0.9),
        ("NOT a = 1", 0.9),
        ("a > 1", 1 / 3),
        ("a BETWEEN 1 AND 2", 0.25),
        ("a IN (1, 2, 3)", 0.3),
        ("a IN (1, 2, 3, 4, 5, 6, 7, 8, 9)", 0.5),
        ("a LIKE 'x%'", 0.25),
        ("a IS NULL", 0.1),
        ("a IS NOT NULL", 0.9),
        ("a = 1 AND b > 2", 0.1 / 3),
        ("(a = 1 OR b = 2)", 0.19),
        ("true", 1.0),
        ("false", 0.0),
        ("startswith(a, 'x')", 0.5),
    ],
)
def test_predicates(text: str, share: float) -> None:
    assert estimates.predicate_selectivity(predicate(text)) == pytest.approx(share)


def test_a_source_sends_its_share_of_columns_and_rows() -> None:
    stream, _ = CATALOG.stream("flights")
    plan = plan_query("INSERT INTO result SELECT ts, origin, dest FROM flights WHERE seats = 1", "q", CATALOG)
    ((_, _, rate),) = plan.links
    assert rate == pytest.approx(stream.rate_bytes_per_s * 3 / 6 * 0.1)
    assert plan.fragments[0].selectivity == pytest.approx(3 / 6 * 0.1)


def test_a_join_gives_a_row_per_row_of_its_faster_input() -> None:
    fast = estimates.filtered(estimates.Rate(100.0, {"a": 8.0}), [predicate("a = 1")])
    slow = estimates.filtered(estimates.Rate(1.0, {"b": 8.0}), [predicate("b > 1")])
    joined = estimates.joined(slow, fast)
    assert joined.rows_per_s == pytest.approx(100 * 0.1 / 3)
    assert joined.bytes_per_s == pytest.approx(100 * 0.1 / 3 * 16)


def test_nothing_divides_by_zero() -> None:
    stream = StreamSpec(name="s", format="replay", schema="a INT", event_time="a", rate_bytes_per_s=0, row_bytes=0)
    assert estimates.stream_rate(stream, []).bytes_per_s == 0
    nothing = estimates.filtered(estimates.Rate(0.0, {"a": 8.0}), [predicate("false")])
    assert estimates.joined(nothing, nothing).bytes_per_s == 0
