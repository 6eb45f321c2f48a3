"""A query that begins to read streams which have been running: from some point of event time on, all or nothing.

What a fragment has put out and let go before somebody subscribes to it is gone. Its rows later than all of these are
still to come, every one of them. So a subscriber reads the rows from that point of event time on, and each window of
its own that begins before is not put out at all: what comes out is exactly what would have come out of the whole stream
for times that are late enough.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from sqlglot import exp

from sbon.errors import QueryError
from sbon.fragment import Start
from sbon.sql.dialect import column
from sbon.sql.event_times import event_times
from sbon.sql.logical_plan import Aggregate, Compute, Filter, Join, Plan, Reused, Scan, Union, bare, display
from sbon.sql.time_bounds import Bounds

#: Rows may be missing that have, in one of these attributes, an earlier time than this, in ms since the epoch.
_Missing = dict[str, int]


def begin(plan: Plan, starts: Mapping[str, Start]) -> Plan:
    """``plan``, reading the fragments of others from ``starts`` on; from their beginnings where none is given.

    Raises QueryError for a window of which it cannot be said whether all that belongs to it will come.
    """
    return _begin(plan, starts)[0]


def _begin(plan: Plan, starts: Mapping[str, Start]) -> tuple[Plan, _Missing]:
    match plan:
        case Scan():
            return plan, {}
        case Reused():
            start = starts.get(plan.fragment_id, Start(0, None))
            read = replace(plan, first_batch=start.first_batch)
            return (read, {}) if start.from_ms is None else _from(read, plan.time, start.from_ms)
        case Filter():
            below, missing = _begin(plan.input, starts)
            return Filter(below, plan.condition), missing
        case Compute():
            below, missing = _begin(plan.input, starts)
            return Compute(below, plan.columns), missing
        case Join():
            (left, one), (right, other) = _begin(plan.left, starts), _begin(plan.right, starts)
            return Join(left, right, plan.condition, plan.place), one | other
        case Union():
            return _of_union(plan, starts)
        case Aggregate():
            below, missing = _begin(plan.input, starts)
            aggregate = Aggregate(below, plan.window, plan.keys, plan.measures)
            if not missing:
                return aggregate, {}
            complete_ms = _complete_from(missing, plan.window.time, event_times(below).bounds)
            return _from(aggregate, plan.window.start, complete_ms)


def _from(plan: Plan, time: str, from_ms: int) -> tuple[Plan, _Missing]:
    since = exp.Anonymous(this="timestamp_millis", expressions=[exp.Literal.number(from_ms)])
    return Filter(plan, exp.GTE(this=column(time), expression=since)), {time: from_ms}


def _of_union(union: Union, starts: Mapping[str, Start]) -> tuple[Plan, _Missing]:
    begun = [_begin(branch, starts) for branch in union.inputs]
    missing: _Missing = {}
    for (branch, of_branch), sources in zip(begun, union.expressions, strict=True):
        if of_branch:
            bounds = event_times(branch).bounds
            for name, source in zip(union.columns, sources, strict=True):
                time = bare(source)
                if time is not None and time in event_times(branch).lags_us:
                    missing[name] = max(missing.get(name, 0), _complete_from(of_branch, time, bounds))
    return Union(tuple(branch for branch, _ in begun), union.columns, union.expressions), missing


def _complete_from(missing: _Missing, time: str, bounds: Bounds) -> int:
    """From which value of ``time`` on, in ms, no row is missing. Raises QueryError if that cannot be said."""
    found = []
    for other, from_ms in missing.items():
        least_us = 0 if other == time else bounds.get((other, time))  # other - time >= least
        if least_us is None:
            raise QueryError(f"rows before {display(other)} cannot be told from others by {display(time)}")
        found.append(from_ms - least_us // 1000)
    return max(found)
