"""A query that begins to read streams which have been running: from some point of event time on, all or nothing.

What a fragment has put out and let go before somebody subscribes to it is gone. Its rows later than all of these are
still to come, every one of them. So a subscriber reads the rows from that point of event time on, and each window of
its own that begins before is not put out at all: what comes out is exactly what would have come out of the whole stream
for times that are late enough.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType

from sqlglot import exp

from sbon.errors import QueryError
from sbon.fragment import Start
from sbon.sql.dialect import column
from sbon.sql.event_times import event_times
from sbon.sql.logical_plan import Aggregate, Compute, Filter, Join, Plan, Reused, Scan, Union, bare, display
from sbon.sql.time_bounds import Bounds


def begin(
    plan: Plan,
    starts: Mapping[str, Start],
    from_ms: int | None = None,
    own: Mapping[str, int | None] = MappingProxyType({}),
) -> Plan:
    """``plan``, reading the fragments of others from ``starts`` on; from their beginnings where none is given.

    ``own``: new fragments of the same query, and from which event time on they are whole, in ms since the epoch.
    Reading one gives what there would be if it were computed in its place.

    ``from_ms``: nothing of an event time before is wanted of anything that is read.
    Raises QueryError for a window of which it cannot be said whether all that belongs to it will come.
    """
    match plan:
        case Scan():
            time = next(attribute for attribute, name, _ in plan.columns if name == plan.stream.event_time)
            return _since(plan, time, from_ms)
        case Reused() if plan.fragment_id in own:
            return replace(plan, whole_from_ms=own[plan.fragment_id])
        case Reused():
            start = starts.get(plan.fragment_id, Start(0, None))
            given = [each for each in (start.from_ms, from_ms) if each is not None]
            return _since(replace(plan, first_batch=start.first_batch), plan.time, max(given, default=None))
        case Filter():
            return replace(plan, input=begin(plan.input, starts, from_ms, own))
        case Compute():
            return Compute(begin(plan.input, starts, from_ms, own), plan.columns)
        case Join():
            left, right = begin(plan.left, starts, from_ms, own), begin(plan.right, starts, from_ms, own)
            return Join(left, right, plan.condition, plan.place)
        case Union():
            branches = tuple(begin(branch, starts, from_ms, own) for branch in plan.inputs)
            return Union(branches, plan.columns, plan.expressions)
        case Aggregate():
            aggregate = Aggregate(begin(plan.input, starts, from_ms, own), plan.window, plan.keys, plan.measures)
            return _since(aggregate, plan.window.start, complete_from(aggregate.input, plan.window.time))


def complete_from(plan: Plan, time: str) -> int | None:
    """From which value of ``time`` on, in ms since the epoch, a plan that has begun has all rows; None: it has all.

    Raises QueryError if that cannot be said.
    """
    missing = _missing(plan)
    return _complete_from(missing, time, event_times(plan).bounds) if missing else None


def _since(plan: Plan, time: str, from_ms: int | None) -> Plan:
    if from_ms is None:
        return plan
    since = exp.Anonymous(this="timestamp_millis", expressions=[exp.Literal.number(from_ms)])
    return Filter(plan, exp.GTE(this=column(time), expression=since), is_start=True)


def _missing(plan: Plan) -> dict[str, int]:
    """Rows may be missing that have, in one of these attributes, an earlier time than this, in ms since the epoch."""
    match plan:
        case Reused() if plan.whole_from_ms is not None:
            return {plan.time: plan.whole_from_ms}
        case Scan() | Reused() | Aggregate():
            return {}  # where they are not whole, they stand below a filter that says so
        case Filter():
            missing = _missing(plan.input)
            if not plan.is_start:
                return missing
            time, from_ms = plan.condition.this, plan.condition.expression.expressions[0]
            return {**missing, time.name: int(from_ms.name)}
        case Compute():
            return _missing(plan.input)
        case Join():
            return _missing(plan.left) | _missing(plan.right)
        case Union():
            return _missing_in_union(plan)


def _missing_in_union(union: Union) -> dict[str, int]:
    missing: dict[str, int] = {}
    for branch, sources in zip(union.inputs, union.expressions, strict=True):
        of_branch, times = _missing(branch), event_times(branch)
        for name, source in zip(union.columns, sources, strict=True):
            time = bare(source)
            if of_branch and time is not None and time in times.lags_us:
                missing[name] = max(missing.get(name, 0), _complete_from(of_branch, time, times.bounds))
    return missing


def _complete_from(missing: Mapping[str, int], time: str, bounds: Bounds) -> int:
    found = []
    for other, from_ms in missing.items():
        least_us = 0 if other == time else bounds.get((other, time))  # other - time >= least
        if least_us is None:
            raise QueryError(f"rows before {display(other)} cannot be told from others by {display(time)}")
        found.append(from_ms - least_us // 1000)
    return max(found)
