"""Interval arithmetic against brute force over small times: what is said of later rows has to hold for all."""

from __future__ import annotations

import itertools
import operator
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sqlglot import exp

from sbon.errors import QueryError
from sbon.sql.dialect import parse
from sbon.sql.durations import UNITS_US, parse_duration_us
from sbon.sql.intervals import interval_literal, interval_us
from sbon.sql.logical_plan import conjuncts
from sbon.sql.time_bounds import closure, conjunct_bounds, join_times

MINUTE = UNITS_US["MINUTE"]
TIMES = range(-7, 8)
OPERATORS: dict[str, Callable[[int, int], bool]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
    "=": operator.eq,
}

Row = dict[str, int]
Predicate = tuple[str, Callable[[Row], bool]]


def expression(text: str) -> exp.Expr:
    (statement,) = parse(f"SELECT {text}")
    found = statement.expressions[0]
    assert isinstance(found, exp.Expr)
    return found


@st.composite
def predicates(draw: st.DrawFn, one: str, other: str) -> Predicate:
    """A condition on two columns in one of the forms that people write, and what it means."""
    low, high = draw(st.integers(-4, 4)), draw(st.integers(-4, 4))
    name = draw(st.sampled_from(sorted(OPERATORS)))
    compare = OPERATORS[name]
    form = draw(st.integers(0, 5))
    if form == 0:
        return f"{one} {name} {other} + INTERVAL {low} MINUTES", lambda row: compare(row[one], row[other] + low)
    if form == 1:
        return f"{one} - INTERVAL {low} MINUTES {name} {other}", lambda row: compare(row[one] - low, row[other])
    if form == 2:
        text = f"({one} - {other}) {name} INTERVAL {low} MINUTES"
        return text, lambda row: compare(row[one] - row[other], low)
    if form == 3:
        text = f"INTERVAL {low} MINUTES + {one} {name} {other} - (INTERVAL {high} MINUTES - INTERVAL 60 SECONDS)"
        return text, lambda row: compare(row[one] + low, row[other] - (high - 1))
    if form == 4:
        return f"{one} {name} {other}", lambda row: compare(row[one], row[other])
    text = f"{one} BETWEEN {other} + INTERVAL {low} MINUTES AND {other} + INTERVAL {high} MINUTES"
    return text, lambda row: row[other] + low <= row[one] <= row[other] + high


@settings(deadline=None)
@given(st.lists(predicates("l", "r"), min_size=1, max_size=3))
def test_later_rows_of_a_join_respect_its_lags(conditions: list[Predicate]) -> None:
    condition = expression(" AND ".join(text for text, _ in conditions))
    times = join_times(["l"], ["r"], [], conjuncts(condition))
    rows = [dict(zip("lr", pair, strict=True)) for pair in itertools.product(TIMES, TIMES)]
    matches = [row for row in rows if all(holds(row) for _, holds in conditions)]
    if times is None:
        bounded_below = any(conjunct_bounds(expression(text)).keys() & {("l", "r")} for text, _ in conditions)
        bounded_above = any(conjunct_bounds(expression(text)).keys() & {("r", "l")} for text, _ in conditions)
        assert not (bounded_below and bounded_above)
        return
    for row in matches:
        assert times.bounds["l", "r"] <= (row["l"] - row["r"]) * MINUTE <= -times.bounds["r", "l"]
        if max(row["l"], row["r"]) >= 0:  # one of the two came after the watermark 0
            for name, lag_us in times.lags_us.items():
                assert row[name] * MINUTE >= -lag_us


@settings(deadline=None)
@given(
    predicates("a", "b"),
    predicates("b", "a"),
    st.lists(st.one_of(predicates("a", "c"), predicates("c", "b")), min_size=1, max_size=3),
)
def test_lags_of_columns_that_are_not_the_event_time(one: Predicate, other: Predicate, joined: list[Predicate]) -> None:
    """The left input is itself a join of a and b, whose difference is bounded by what held there."""
    known = closure(conjunct_bounds(expression(one[0])), conjunct_bounds(expression(other[0])))
    times = join_times(["a", "b"], ["c"], [known], [expression(text) for text, _ in joined])
    if times is None:
        return
    for combination in itertools.product(TIMES, repeat=3):
        row = dict(zip("abc", combination, strict=True))
        later = row[times.left] >= 0 or row["c"] >= 0
        if later and all(holds(row) for _, holds in (one, other, *joined)):
            for name, lag_us in times.lags_us.items():
                assert row[name] * MINUTE >= -lag_us


@pytest.mark.parametrize(
    ("condition", "left_lag", "right_lag"),
    [
        ("l BETWEEN r - INTERVAL 3 MINUTES AND r + INTERVAL 2 MINUTES", 3, 2),
        ("l BETWEEN r AND r + INTERVAL 59 MINUTES", 0, 59),
        ("l = r", 0, 0),
        ("l = r + INTERVAL 5 MINUTES", 0, 5),
        ("l > r - INTERVAL 1 HOUR AND r > l - INTERVAL 1 DAY", 60, 24 * 60),
        ("l >= r + INTERVAL 2 MINUTES AND l < r + INTERVAL 4 MINUTES", 0, 4),
        ("r <= l AND l <= r + INTERVAL 30 SECONDS + INTERVAL 30 SECONDS", 0, 1),
    ],
)
def test_lags(condition: str, left_lag: int, right_lag: int) -> None:
    times = join_times(["l"], ["r"], [], conjuncts(expression(condition)))
    assert times is not None
    assert times.lags_us == {"l": left_lag * MINUTE, "r": right_lag * MINUTE}


@pytest.mark.parametrize(
    "condition",
    [
        "l >= r",
        "l < r + INTERVAL 1 HOUR",
        "l <> r",
        "l + l >= r AND l <= r",
        "hour(l) = hour(r)",
        "l <=> r",
        "l >= r OR l <= r",
        "l BETWEEN x AND r",
    ],
)
def test_conditions_that_leave_state_unbounded(condition: str) -> None:
    assert join_times(["l"], ["r"], [], conjuncts(expression(condition))) is None


def test_an_equality_with_one_watermark_is_no_key() -> None:
    parts = conjuncts(expression("l = r - INTERVAL 1 HOUR AND l = x AND r = l + INTERVAL 1 HOUR"))
    times = join_times(["l"], ["r"], [], parts)
    assert times is not None
    assert not any(isinstance(part, exp.EQ) for part in times.condition)


def test_the_closest_pair_is_chosen() -> None:
    parts = conjuncts(expression("a BETWEEN c AND c + INTERVAL 1 HOUR AND b BETWEEN c AND c + INTERVAL 1 MINUTE"))
    times = join_times(["a", "b"], ["c"], [], parts)
    assert times is not None
    assert (times.left, times.right) == ("b", "c")


@pytest.mark.parametrize(
    ("text", "length_us"),
    [
        ("1 hour", 60 * MINUTE),
        ("interval 1 hour 30 minutes", 90 * MINUTE),
        (" 90 SECONDS ", 90_000_000),
        ("1.5 milliseconds", 1500),
        ("2 weeks", 14 * 24 * 60 * MINUTE),
        ("1 month", None),
        ("1", None),
        ("hour", None),
        ("", None),
        ("1 hour and", None),
        ("0.0001 milliseconds", None),
    ],
)
def test_durations(text: str, length_us: int | None) -> None:
    assert parse_duration_us(text) == length_us


@settings(deadline=None)
@given(st.integers(0, 10**13))
def test_interval_literals_are_read_back(length_us: int) -> None:
    assert interval_us(interval_literal(length_us)) == length_us


def test_an_interval_without_a_length_is_refused() -> None:
    with pytest.raises(QueryError, match="not a length of time that is fixed"):
        interval_us(expression("INTERVAL 2 MONTHS"))
