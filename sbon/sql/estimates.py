"""Estimated rates of links. They only start things: what is measured at the links replaces them within seconds.

Selectivities of predicates are those of Selinger et al., Access path selection (SIGMOD 1979), where it has one.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from sqlglot import exp

from sbon.streams import StreamSpec

EQUALITY = 1 / 10
RANGE = 1 / 3
BETWEEN = 1 / 4
LIST_LIMIT = 1 / 2
PATTERN = 1 / 4
IS_NULL = 1 / 10
OTHER = 1 / 2
#: Rows that come out of a windowed aggregate for each row and window that goes in.
GROUPS_PER_ROW = 1 / 10
#: A computed column (a number, a timestamp).
COMPUTED_BYTES = 8.0


@dataclass(frozen=True, slots=True)
class Rate:
    """What flows over a link: rows, and bytes per column of a row. ``kept`` is the share that filters have left."""

    rows_per_s: float
    column_bytes: dict[str, float]
    kept: float = 1.0

    @property
    def bytes_per_s(self) -> float:
        return self.rows_per_s * sum(self.column_bytes.values())


def predicate_selectivity(condition: exp.Expr) -> float:
    """Share of rows that a condition is expected to keep, between 0 and 1."""
    match condition:
        case exp.Paren():
            return predicate_selectivity(condition.this)
        case exp.And():
            return predicate_selectivity(condition.this) * predicate_selectivity(condition.expression)
        case exp.Or():
            one, other = predicate_selectivity(condition.this), predicate_selectivity(condition.expression)
            return one + other - one * other
        case exp.Not():
            return 1 - predicate_selectivity(condition.this)
        case exp.EQ() | exp.NullSafeEQ():
            return EQUALITY
        case exp.NEQ():
            return 1 - EQUALITY
        case exp.GT() | exp.GTE() | exp.LT() | exp.LTE():
            return RANGE
        case exp.Between():
            return BETWEEN
        case exp.In():
            return min(LIST_LIMIT, EQUALITY * len(condition.expressions))
        case exp.Like() | exp.ILike() | exp.RegexpLike():
            return PATTERN
        case exp.Is():
            return IS_NULL
        case exp.Boolean():
            return 1.0 if condition.this else 0.0
    return OTHER


def stream_rate(stream: StreamSpec, columns: list[str]) -> Rate:
    """A stream before its source's filters, its bytes shared evenly by its columns."""
    width = max(stream.row_bytes, 1.0) / max(len(columns), 1)
    return Rate(stream.rate_bytes_per_s / max(stream.row_bytes, 1.0), dict.fromkeys(columns, width))


def filtered(rate: Rate, conditions: list[exp.Expr]) -> Rate:
    share = math.prod(predicate_selectivity(part) for part in conditions)
    return Rate(rate.rows_per_s * share, rate.column_bytes, rate.kept * share)


def joined(left: Rate, right: Rate) -> Rate:
    """A row of the faster stream finds one partner, if the filters of the other stream have left it."""
    fast, slow = (left, right) if left.rows_per_s * right.kept >= right.rows_per_s * left.kept else (right, left)
    return Rate(fast.rows_per_s * slow.kept, left.column_bytes | right.column_bytes, left.kept * right.kept)


def merged(rates: list[Rate]) -> Rate:
    """UNION ALL of inputs that have the same columns."""
    rows = sum(rate.rows_per_s for rate in rates)
    names = rates[0].column_bytes
    return Rate(rows, {name: max(rate.column_bytes.get(name, COMPUTED_BYTES) for rate in rates) for name in names})


def aggregated(rate: Rate, windows_per_row: float, columns: list[str]) -> Rate:
    widths = {name: rate.column_bytes.get(name, COMPUTED_BYTES) for name in columns}
    return Rate(rate.rows_per_s * windows_per_row * GROUPS_PER_ROW, widths)


def projected(rate: Rate, outputs: list[tuple[str, str | None]]) -> Rate:
    """Only ``outputs``, as (name, the column it is or None if it is computed)."""
    widths = {name: rate.column_bytes.get(source or "", COMPUTED_BYTES) for name, source in outputs}
    return Rate(rate.rows_per_s, widths, rate.kept)
