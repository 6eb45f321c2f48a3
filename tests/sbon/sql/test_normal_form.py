"""Conditions that are written differently have one form; those of one form give the same for every row."""

from __future__ import annotations

import itertools
import operator
import random
from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sqlglot import exp

from sbon.sql.dialect import parse
from sbon.sql.normal_form import text

#: None is SQL's NULL.
Value = int | bool | None
Row = Mapping[str, int | None]

ROWS: list[Row] = [
    dict(zip("abc", values, strict=True)) for values in itertools.product((None, 0, 1, 2), (None, 1, 2), (None, 0, 2))
]
COMPARISONS = {"<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge, "=": operator.eq}
_NUMBERS = st.sampled_from(("a", "b", "c", "0", "1", "2"))
_SUMS = st.one_of(_NUMBERS, st.tuples(_NUMBERS, st.sampled_from("+-*"), _NUMBERS).map(lambda t: f"({' '.join(t)})"))
_ATOMS = st.one_of(
    st.tuples(_SUMS, st.sampled_from((*COMPARISONS, "<>", "<=>")), _SUMS).map(" ".join),
    st.tuples(_SUMS, _NUMBERS, _NUMBERS).map(lambda t: "{} BETWEEN {} AND {}".format(*t)),
    st.tuples(_SUMS, st.lists(_NUMBERS, min_size=1, max_size=3)).map(lambda t: f"{t[0]} IN ({', '.join(t[1])})"),
    _NUMBERS.map(lambda name: f"{name} IS NULL"),
)
CONDITIONS = st.recursive(
    _ATOMS,
    lambda inner: st.one_of(
        st.tuples(inner, st.sampled_from((" AND ", " OR ")), inner).map(lambda t: f"({t[0]}){t[1]}({t[2]})"),
        inner.map(lambda part: f"NOT ({part})"),
    ),
    max_leaves=4,
)


def expression(written: str) -> exp.Expr:
    select = parse(f"SELECT {written} AS x")[0]
    assert isinstance(select, exp.Select)
    found = select.expressions[0].unalias()
    assert isinstance(found, exp.Expr)
    return found


def form(written: str) -> str:
    return text(expression(written))


def value(node: exp.Expr, row: Row) -> Value:
    """As SQL has it: null where it is not known."""
    match node:
        case exp.Paren():
            return value(node.this, row)
        case exp.Column():
            return row[node.name]
        case exp.Literal():
            return int(node.name)
        case exp.Is():
            return value(node.this, row) is None
        case exp.NullSafeEQ():
            return value(node.this, row) == value(node.expression, row)
        case exp.Not():
            inner = value(node.this, row)
            return None if inner is None else not inner
        case exp.And():
            return _all(value(node.this, row), value(node.expression, row))
        case exp.Or():
            return _any([value(node.this, row), value(node.expression, row)])
        case exp.Between():
            middle, low, high = (value(part, row) for part in (node.this, node.args["low"], node.args["high"]))
            return _all(_known(operator.le, low, middle), _known(operator.le, middle, high))
        case exp.In():
            return _any([_known(operator.eq, value(node.this, row), value(item, row)) for item in node.expressions])
    kinds: dict[type[exp.Expr], object] = {
        exp.LT: operator.lt,
        exp.LTE: operator.le,
        exp.GT: operator.gt,
        exp.GTE: operator.ge,
        exp.EQ: operator.eq,
        exp.NEQ: operator.ne,
        exp.Add: operator.add,
        exp.Sub: operator.sub,
        exp.Mul: operator.mul,
    }
    return _known(kinds[type(node)], value(node.this, row), value(node.expression, row))


def _known(function: object, one: Value, other: Value) -> Value:
    assert callable(function)
    if one is None or other is None:
        return None
    result: int | bool = function(one, other)
    return result


def _all(one: Value, other: Value) -> Value:
    if one is False or other is False:
        return False
    return None if one is None or other is None else True


def _any(parts: list[Value]) -> Value:
    if True in [part for part in parts if part is not None]:
        return True
    return None if None in parts else False


def rewritten(node: exp.Expr, rng: random.Random) -> exp.Expr:
    """The same in other words."""
    node = node.copy()
    for child in list(node.iter_expressions()):
        child.replace(rewritten(child, rng))
    turned: dict[type[exp.Expr], type[exp.Expr]]
    turned = {exp.LT: exp.GT, exp.GT: exp.LT, exp.LTE: exp.GTE, exp.GTE: exp.LTE}
    turned |= {kind: kind for kind in (exp.EQ, exp.NEQ, exp.And, exp.Or, exp.Add, exp.Mul, exp.NullSafeEQ)}
    if type(node) in turned and rng.random() < 0.7:
        return exp.Paren(this=turned[type(node)](this=_in_parentheses(node.expression), expression=node.this))
    if isinstance(node, exp.Between) and rng.random() < 0.7:
        low, high = node.args["low"], node.args["high"]
        both = exp.And(
            this=exp.LTE(this=node.this.copy(), expression=high), expression=exp.LTE(this=low, expression=node.this)
        )
        return exp.Paren(this=both)
    if isinstance(node, exp.In):
        items = [*node.expressions, rng.choice(node.expressions)]
        return exp.In(this=node.this, expressions=rng.sample(items, len(items)))
    if isinstance(node, exp.And) and rng.random() < 0.5:
        sides = (exp.Not(this=_in_parentheses(side)) for side in (node.this, node.expression))
        return exp.Not(this=exp.Paren(this=exp.or_(*sides)))
    return node


def _in_parentheses(node: exp.Expr) -> exp.Expr:
    return node if isinstance(node, (exp.Column, exp.Literal, exp.Paren)) else exp.Paren(this=node)


@given(CONDITIONS, st.randoms(use_true_random=False))
def test_what_is_written_in_other_words_has_the_same_form(written: str, rng: random.Random) -> None:
    condition = expression(written)
    other = rewritten(condition, rng)
    assert [value(other, row) for row in ROWS] == [value(condition, row) for row in ROWS]
    assert text(other) == text(condition)


@given(st.lists(CONDITIONS, min_size=2, max_size=2), st.randoms(use_true_random=False))
def test_what_has_the_same_form_gives_the_same(written: list[str], rng: random.Random) -> None:
    one, other = (rewritten(expression(each), rng) for each in written)
    if text(one) == text(other):
        assert [value(one, row) for row in ROWS] == [value(other, row) for row in ROWS]


@pytest.mark.parametrize(
    "same",
    [
        ("f <= w + INTERVAL 90 MINUTES", "f - INTERVAL '90' MINUTE <= w", "w >= f - INTERVAL '5400' SECOND"),
        ("CASE WHEN a BETWEEN 1 AND 2 THEN c + d END", "CASE WHEN a >= 1 AND 2 >= a THEN (d + c) END"),
        ("upper(a) = 'x'", "'x' = UPPER((a))"),
        ("a IS NOT NULL", "NOT a IS NULL"),
        ("count(*)", "count(1)"),
        ("sum(a) FILTER (WHERE b > 1)", "sum(a) FILTER (WHERE 1 < b)"),
        ("a NOT IN (1, 2)", "NOT (a IN (2, 1, 2))"),
        ("a IN (1)", "1 = a"),
    ],
)  # fmt: skip
def test_one_form(same: tuple[str, ...]) -> None:
    assert len({form(written) for written in same}) == 1


def test_other_forms() -> None:
    different = ["a - (b - c)", "a - b - c", "(a + b) * c", "a + b * c", "f < w", "f <= w", "a + (b + c)", "a + b + c"]
    different += ["f < w + INTERVAL 1 HOUR", "f <= w + INTERVAL 1 HOUR", "NOT (a = 1 AND b = 2)", "NOT a = 1 AND b = 2"]
    assert len({form(written) for written in different}) == len(different)
