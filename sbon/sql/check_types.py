"""Refusals of what can have no type: conditions that are none, and values that cannot be compared or added.

Only what is certain is refused here, from the declared types of streams, with its place in the text; the rest is left
to Spark, which knows all its functions, and says so when the query is started.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from enum import StrEnum

from sqlglot import exp

from sbon.errors import QueryError
from sbon.sql.dialect import place
from sbon.sql.logical_plan import Aggregate, Compute, Filter, Join, Output, Plan, Reused, Scan, Union, bare, shown


class Kind(StrEnum):
    """Of a value, as people are told."""

    CONDITION = "a condition"
    NUMBER = "a number"
    TEXT = "a text"
    TIME = "a point of time"
    NESTED = "a struct, array or map"


_NESTED = (exp.DataType.Type.STRUCT, exp.DataType.Type.ARRAY, exp.DataType.Type.MAP)
#: A DATE is none of these: numbers of days may be added to it.
_TIMES = tuple(kind for kind in exp.DataType.TEMPORAL_TYPES if kind.name.startswith("TIMESTAMP"))
_CONDITIONS = (exp.Predicate, exp.And, exp.Or, exp.Not)
_ARITHMETIC = (exp.Add, exp.Sub, exp.Mul, exp.Div, exp.Mod, exp.IntDiv)
#: Spark compares none of these with each other.
_APART = [{Kind.NUMBER, Kind.TIME}, {Kind.CONDITION, Kind.TIME}] + [
    {Kind.NESTED, kind} for kind in Kind if kind is not Kind.NESTED
]

#: Of AND, OR and NOT; a text may be one, though it keeps no rows by itself.
_NO_OPERANDS = {Kind.NUMBER, Kind.TIME, Kind.NESTED}

#: What attributes are, as far as that is certain.
Kinds = Mapping[str, Kind]


def check_types(plan: Plan, outputs: list[Output]) -> None:
    """Raises QueryError."""
    kinds = _checked(plan)
    for output in outputs:
        _check(output.expression, kinds)


def _checked(plan: Plan) -> Kinds:
    """The kinds of a plan's attributes, after all below was checked."""
    match plan:
        case Scan():
            declared = ((name, _declared(exp.DataType.build(kind, dialect="spark"))) for name, _, kind in plan.columns)
            return {name: kind for name, kind in declared if kind is not None}
        case Filter():
            kinds = _checked(plan.input)
            _check(plan.condition, kinds)
            _refuse(plan.condition, kinds, _NO_OPERANDS | {Kind.TEXT})
            return kinds
        case Compute():
            return _and(_checked(plan.input), plan.columns)
        case Join():
            kinds = {**_checked(plan.left), **_checked(plan.right)}
            for part in plan.condition:
                _check(part, kinds)
                _refuse(part, kinds, _NO_OPERANDS)
            return kinds
        case Union():
            for branch, sources in zip(plan.inputs, plan.expressions, strict=True):
                _and(_checked(branch), [("", source) for source in sources])
            return {}
        case Aggregate():
            times = {plan.window.start: Kind.TIME, plan.window.end: Kind.TIME}
            return {**_and(_checked(plan.input), [*plan.keys, *plan.measures]), **times}
        case Reused():
            return {}


def _and(kinds: Kinds, columns: Sequence[tuple[str, exp.Expr]]) -> dict[str, Kind]:
    found = dict(kinds)
    for name, expression in columns:
        _check(expression, kinds)
        kind = _kind(expression, kinds)
        if kind is not None:
            found[name] = kind
    return found


def _declared(kind: exp.DataType) -> Kind | None:
    if kind.is_type(*_NESTED):
        return Kind.NESTED
    for types, found in (
        ((exp.DataType.Type.BOOLEAN,), Kind.CONDITION),
        (tuple(exp.DataType.NUMERIC_TYPES), Kind.NUMBER),
        (tuple(exp.DataType.TEXT_TYPES), Kind.TEXT),
        (_TIMES, Kind.TIME),
    ):
        if kind.is_type(*types):
            return found
    return None


def _kind(expression: exp.Expr, kinds: Kinds) -> Kind | None:
    """None if that is not certain."""
    expression = expression.unnest()
    name = bare(expression)
    if name is not None:
        return kinds.get(name)
    if isinstance(expression, exp.Literal):
        return Kind.TEXT if expression.is_string else Kind.NUMBER
    if isinstance(expression, exp.Cast):
        return _declared(expression.to)
    if isinstance(expression, (*_CONDITIONS, exp.Boolean)):
        return Kind.CONDITION
    if isinstance(expression, (exp.Count, exp.CountIf)):
        return Kind.NUMBER
    if isinstance(expression, _ARITHMETIC):
        both = {_kind(expression.this, kinds), _kind(expression.expression, kinds)}
        return Kind.NUMBER if both == {Kind.NUMBER} else None
    return None


def _check(expression: exp.Expr, kinds: Kinds) -> None:
    for node in expression.walk():
        if isinstance(node, (exp.And, exp.Or, exp.Not, exp.If)):
            for part in _operands(node):
                _refuse(part, kinds, _NO_OPERANDS)
        elif isinstance(node, (exp.EQ, exp.NEQ, exp.NullSafeEQ, exp.LT, exp.LTE, exp.GT, exp.GTE)):
            _check_comparison(node, node.this, node.expression, kinds)
        elif isinstance(node, exp.Between):
            for bound in (node.args["low"], node.args["high"]):
                _check_comparison(node, node.this, bound, kinds)
        elif isinstance(node, exp.In):
            for value in node.expressions:
                _check_comparison(node, node.this, value, kinds)
        elif isinstance(node, _ARITHMETIC):
            _check_arithmetic(node, kinds)
        elif isinstance(node, (exp.Sum, exp.Avg)) and _kind(node.this, kinds) is Kind.NESTED:
            raise QueryError(f"{shown(node)}{place(node)} is over {Kind.NESTED}; add up numbers")


def _operands(node: exp.Expr) -> Iterator[exp.Expr]:
    yield node.this
    if isinstance(node, (exp.And, exp.Or)):
        yield node.expression


def _refuse(part: exp.Expr, kinds: Kinds, refused: set[Kind]) -> None:
    kind = _kind(part, kinds)
    if kind in refused:
        raise QueryError(f"{shown(part)}{place(part)} is {kind} where a condition is needed; compare it with something")


def _check_comparison(whole: exp.Expr, one: exp.Expr, other: exp.Expr, kinds: Kinds) -> None:
    found = [_kind(one, kinds), _kind(other, kinds)]
    if set(found) in _APART:
        what = f"{shown(whole)}{place(whole)} compares {found[0]} with {found[1]}"
        raise QueryError(f"{what}; CAST one of them, or compare a part of it")


def _check_arithmetic(node: exp.Expr, kinds: Kinds) -> None:
    found = [_kind(node.this, kinds), _kind(node.expression, kinds)]
    wrong = next((kind for kind in found if kind in (Kind.CONDITION, Kind.NESTED)), None)
    if wrong is None and set(found) == {Kind.TIME, Kind.NUMBER}:
        raise QueryError(
            f"{shown(node)}{place(node)} reckons with {found[0]} and {found[1]}; write INTERVAL 5 MINUTES, say"
        )
    if wrong is not None:
        raise QueryError(f"{shown(node)}{place(node)} reckons with {wrong}; use numbers")
