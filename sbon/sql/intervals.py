"""Lengths of time as SQL writes them, in microseconds (Spark's resolution)."""

from __future__ import annotations

import re
from fractions import Fraction

from sqlglot import exp

from sbon.errors import QueryError
from sbon.sql.dialect import place, render

#: Fixed lengths only. A day is 24 hours because engines run in UTC; a month has no length.
UNITS_US = {
    "MICROSECOND": 1,
    "MILLISECOND": 1_000,
    "SECOND": 1_000_000,
    "MINUTE": 60_000_000,
    "HOUR": 3_600_000_000,
    "DAY": 86_400_000_000,
    "WEEK": 604_800_000_000,
}
_PART = re.compile(r"\s*([+-]?\d+(?:\.\d+)?)\s*([A-Za-z]+)")


def parse_duration_us(text: str) -> int | None:
    """``'1 hour 30 minutes'`` in microseconds, None if it is not a fixed length written in whole units."""
    text = re.sub(r"^\s*interval\s", " ", text, flags=re.IGNORECASE)
    total, position = 0, 0
    while match := _PART.match(text, position):
        unit = _unit_us(match[2])
        length = Fraction(match[1]) * (unit or 0)
        if unit is None or length.denominator != 1:
            return None
        total, position = total + int(length), match.end()
    return total if position > 0 and not text[position:].strip() else None


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


def _unit_us(word: str) -> int | None:
    return UNITS_US.get(word.upper().removesuffix("S"))
