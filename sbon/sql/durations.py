"""Lengths of time as words, in microseconds (Spark's resolution)."""

from __future__ import annotations

import re
from fractions import Fraction

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


def duration_text(length_us: int) -> str:
    """A positive length in the largest unit that fits, as :func:`parse_duration_us` and Spark's window() read it."""
    unit = next(unit for unit in reversed(UNITS_US) if length_us % UNITS_US[unit] == 0)
    count = length_us // UNITS_US[unit]
    return f"{count} {unit.lower()}{'' if count == 1 else 's'}"


def _unit_us(word: str) -> int | None:
    return UNITS_US.get(word.upper().removesuffix("S"))
