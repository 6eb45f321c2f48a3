"""Expressions in a form in which equal is equal, however it was written: text that is compared, and never parsed again.

``x BETWEEN a AND b`` is two comparisons; the order of conjuncts, of ``OR``, of ``IN`` lists and of the sides of what
commutes makes no difference, nor do parentheses, ``NOT`` before a comparison, the units of intervals, and on which side
of a comparison of two times an interval is added. What is of one form here gives the same for all rows, nulls included;
much that is equal is not found to be.
"""

from __future__ import annotations

from sqlglot import exp

from sbon.errors import QueryError
from sbon.sql.dialect import render
from sbon.sql.intervals import interval_literal, interval_us
from sbon.sql.time_bounds import at_least, conjunct_bounds

#: A comparison, and what holds if it is false; both unknown if a side is null.
_NEGATED: dict[type[exp.Expr], type[exp.Expr]] = {
    exp.GT: exp.LTE,
    exp.LTE: exp.GT,
    exp.GTE: exp.LT,
    exp.LT: exp.GTE,
    exp.EQ: exp.NEQ,
    exp.NEQ: exp.EQ,
}
_TURNED: dict[type[exp.Expr], type[exp.Expr]] = {exp.GT: exp.LT, exp.GTE: exp.LTE}
#: What commutes, and how it is written.
_COMMUTING: dict[type[exp.Expr], str] = {exp.EQ: "=", exp.NEQ: "<>", exp.NullSafeEQ: "<=>", exp.Add: "+", exp.Mul: "*"}
_ORDERED = (exp.GT, exp.GTE, exp.LT, exp.LTE)
_STRICT = (exp.GT, exp.LT)


def parts(condition: exp.Expr) -> list[exp.Expr]:
    """Conditions that all have to hold for ``condition`` to hold: as many and as small ones as there are."""
    match condition:
        case exp.Paren():
            return parts(condition.this)
        case exp.And():
            return parts(condition.this) + parts(condition.expression)
        case exp.Between() if not condition.args.get("symmetric"):
            value = condition.this
            low = exp.GTE(this=value.copy(), expression=condition.args["low"].copy())
            return [low, exp.LTE(this=value.copy(), expression=condition.args["high"].copy())]
        case exp.Not():
            return _negated(condition.this)
    return [condition]


def text(expression: exp.Expr) -> str:
    """The normal form of an expression."""
    return _text(expression, closed=False)


def _negated(condition: exp.Expr) -> list[exp.Expr]:
    """The parts of ``NOT condition``."""
    inner = condition.unnest()
    if isinstance(inner, exp.Not):
        return parts(inner.this)
    if isinstance(inner, exp.Or):
        return _negated(inner.this) + _negated(inner.expression)
    together = parts(inner)
    if len(together) > 1:
        return [exp.or_(*(exp.and_(*_negated(part)) for part in together))]
    kind = _NEGATED.get(type(inner))
    return [exp.Not(this=inner) if kind is None else kind(this=inner.this, expression=inner.expression)]


def _text(node: exp.Expr, *, closed: bool = True) -> str:
    """``closed``: in parentheses where it could be torn apart by what stands beside it."""
    node = node.unnest()
    together = parts(node)
    if len(together) > 1:
        return _closed(" AND ".join(sorted({_text(part) for part in together})), closed)
    node = together[0].unnest()
    if isinstance(node, exp.Or):
        return _closed(" OR ".join(sorted({_text(part) for part in _alternatives(node)})), closed)
    if isinstance(node, _ORDERED):
        return _closed(_comparison(node), closed)
    length = _interval(node)
    if length is not None:
        return length
    sign = _COMMUTING.get(type(node))
    if sign is not None:
        return _closed(f" {sign} ".join(sorted((_text(node.this), _text(node.expression)))), closed)
    if isinstance(node, exp.In) and node.expressions:
        listed = sorted({_text(item) for item in node.expressions})
        if len(listed) == 1:
            return _text(exp.EQ(this=node.this, expression=node.expressions[0]), closed=closed)
        return _closed(f"{_text(node.this)} IN ({', '.join(listed)})", closed)
    if isinstance(node, exp.Count) and isinstance(node.this, exp.Literal) and not node.expressions:
        return "COUNT(*)"
    return _closed(_rendered(node), closed and not _whole(node))


def _whole(node: exp.Expr) -> bool:
    """Whether it stays together whatever stands beside it."""
    kinds = (exp.Column, exp.Literal, exp.Func, exp.Null, exp.Boolean, exp.Star, exp.Var)
    return isinstance(node, kinds) and not isinstance(node, exp.Binary)


def _alternatives(node: exp.Expr) -> list[exp.Expr]:
    together = parts(node)
    inner = together[0].unnest() if len(together) == 1 else node
    if isinstance(inner, exp.Or):
        return _alternatives(inner.this) + _alternatives(inner.expression)
    return [inner]


def _comparison(node: exp.Expr) -> str:
    """With the smaller side first; of two times that differ by an interval, with that on the right."""
    try:
        bounds = conjunct_bounds(node)
    except QueryError:  # an interval without a fixed length
        bounds = {}
    for (greater, smaller), least_us in bounds.items():
        bound = at_least(greater, smaller, least_us)
        if isinstance(node, _STRICT):
            bound = exp.GT(this=bound.this, expression=bound.expression)
        return render(bound)
    turned = _TURNED.get(type(node))
    if turned is not None:
        node = turned(this=node.expression, expression=node.this)
    sign = "<" if isinstance(node, exp.LT) else "<="
    return f"{_text(node.this)} {sign} {_text(node.expression)}"


def _interval(node: exp.Expr) -> str | None:
    try:
        length_us = interval_us(node)
    except QueryError:
        return None
    if length_us is None:
        return None
    return render(interval_literal(length_us)) if length_us >= 0 else f"(-{render(interval_literal(-length_us))})"


def _rendered(node: exp.Expr) -> str:
    """As it is written, with what is inside in its normal form."""
    copy = node.copy()
    for child in list(copy.iter_expressions()):
        _normalise(child)
    return render(copy)


def _normalise(node: exp.Expr) -> None:
    """In place: values become their texts; what only says how to read them (CASE branches, types) stays."""
    if isinstance(node, (exp.If, exp.Ordered, exp.Tuple)) or not isinstance(node, (exp.Condition, exp.Interval)):
        for child in list(node.iter_expressions()):
            _normalise(child)
    elif not isinstance(node, (exp.Literal, exp.Star, exp.Var, exp.Boolean, exp.Null)):
        node.replace(exp.Var(this=_text(node)))


def _closed(written: str, closed: bool) -> str:
    return f"({written})" if closed else written
