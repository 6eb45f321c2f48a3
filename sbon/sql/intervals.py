"""Interval expressions of SQL, in microseconds (Spark's resolution)."""

from __future__ import annotations

from sqlglot import exp

from sbon.errors import QueryError
from sbon.sql.dialect import place, render
from sbon.sql.durations import UNITS_US, parse_duration_us


def interval_us(node: exp.Expr) -> int | None:
    """A constant interval expression in microseconds, None if it is something else.

    Raises QueryError for intervals without a fixed length, and for ``HOUR TO MINUTE`` forms.
    """
    match node:
        case exp.Paren():
            return interval_us(node.this)
        case exp.Neg():
            length = interval_us(node.this)
            return None if length is None else -length
        case exp.Interval():
            amount, unit = node.this, node.args.get("unit")
            sign = 1
            while isinstance(amount, (exp.Neg, exp.Paren)):
                sign, amount = (-sign if isinstance(amount, exp.Neg) else sign), amount.this
            text = f"{amount.name} {unit.name}" if isinstance(unit, exp.Var) else amount.name if unit is None else ""
            length = parse_duration_us(text)
            if length is None:
                remedy = "write it in weeks, days, hours, minutes or seconds, as INTERVAL 90 MINUTES"
                raise QueryError(f"{render(node)}{place(node)} is not a length of time that is fixed; {remedy}")
            return sign * length
        case exp.Add() | exp.Sub():
            left, right = interval_us(node.this), interval_us(node.expression)
            if left is None or right is None:
                return None
            return left + right if isinstance(node, exp.Add) else left - right
    return None


def interval_literal(length_us: int) -> exp.Expr:
    """A non-negative length as one interval literal in the largest unit that fits."""
    units = [unit for unit in reversed(UNITS_US) if unit != "WEEK" and length_us % UNITS_US[unit] == 0]
    unit = units[0] if length_us else "SECOND"
    return exp.Interval(this=exp.Literal.string(str(length_us // UNITS_US[unit])), unit=exp.Var(this=unit))


def ceil_ms(length_us: int) -> int:
    return -(-length_us // 1000)
