"""Estimated rates of logical plans, before they are cut: what the choice of a join order starts from."""

from __future__ import annotations

import math
from collections.abc import Sequence

from sbon.sql import estimates
from sbon.sql.estimates import Rate
from sbon.sql.logical_plan import (
    Aggregate,
    Compute,
    Filter,
    Join,
    Plan,
    Reused,
    Scan,
    Union,
    attributes,
    bare,
    conjuncts,
)


def rate_of(plan: Plan) -> Rate:
    """Rows, and bytes by attribute, that come out of ``plan``."""
    match plan:
        case Scan():
            return estimates.stream_rate(plan.stream, [attribute for attribute, _, _ in plan.columns])
        case Filter() if plan.is_start:
            return rate_of(plan.input)
        case Filter():
            return estimates.filtered(rate_of(plan.input), conjuncts(plan.condition))
        case Compute():
            below = rate_of(plan.input)
            computed = dict.fromkeys((name for name, _ in plan.columns), estimates.COMPUTED_BYTES)
            return Rate(below.rows_per_s, below.column_bytes | computed, below.kept)
        case Join():
            return estimates.joined(rate_of(plan.left), rate_of(plan.right))
        case Union():
            branches = [
                estimates.projected(
                    rate_of(branch), [(name, bare(e)) for name, e in zip(plan.columns, sources, strict=True)]
                )
                for branch, sources in zip(plan.inputs, plan.expressions, strict=True)
            ]
            return estimates.merged(branches)
        case Aggregate():
            windows = plan.window.length_us / plan.window.slide_us
            return estimates.aggregated(rate_of(plan.input), windows, list(attributes(plan)))
        case Reused():
            rate = rate_of(plan.instead_of)
            widths = {name: rate.column_bytes[name] for name in attributes(plan)}
            return Rate(rate.rows_per_s * plan.surplus, widths, rate.kept * plan.surplus)


def joined_rate(inputs: Sequence[Rate], needed: set[str]) -> float:
    """Bytes/s of the join of all ``inputs`` with the columns ``needed``; the same in whatever order they are joined.

    As :func:`sbon.sql.estimates.joined`: a row of the fastest stream finds one partner in each other one, if the
    filters there have left it.
    """
    kept = math.prod(rate.kept for rate in inputs)
    unfiltered = max(rate.rows_per_s / rate.kept if rate.kept > 0.0 else 0.0 for rate in inputs)
    rows = inputs[0].rows_per_s if len(inputs) == 1 else unfiltered * kept
    width = sum(width for rate in inputs for name, width in rate.column_bytes.items() if name in needed)
    return rows * width
