"""Which columns of a plan can be its event time downstream, and how far they lag behind its input's watermark.

Refuses here what could not run with bounded state: joins without a time bound, windows over other columns.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from sqlglot import exp

from sbon.errors import QueryError
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
    display,
    used,
)
from sbon.sql.time_bounds import Bounds, JoinTimes, closure, conjunct_bounds, join_times


@dataclass(frozen=True, slots=True)
class EventTimes:
    """``lags_us``: columns that may be the event time, the default first, each with its lag behind the watermark of the
    plan's last stateful operator's input. ``bounds``: least differences between them, in microseconds.
    """

    lags_us: Mapping[str, int]
    bounds: Bounds


def event_times(plan: Plan) -> EventTimes:
    """Event times of a plan's output. Raises QueryError for joins and windows that could not run on streams."""
    match plan:
        case Scan():
            times = {attribute: 0 for attribute, name, _ in plan.columns if name == plan.stream.event_time}
            return EventTimes(times, {})
        case Filter():
            below = event_times(plan.input)
            stated = [conjunct_bounds(part) for part in conjuncts(plan.condition)]
            held = [{pair: v for pair, v in system.items() if below.lags_us.keys() >= set(pair)} for system in stated]
            return EventTimes(below.lags_us, closure(below.bounds, *held))
        case Compute():
            return event_times(plan.input)
        case Join():
            times_of_join = times_in_join(plan)
            return EventTimes(times_of_join.lags_us, times_of_join.bounds)
        case Union():
            return _of_union(plan)
        case Aggregate():
            window = plan.window
            input_times = event_times(plan.input).lags_us
            if window.time not in input_times:
                there = _names(input_times) or "none: it is not selected"
                what = (
                    f"window(){window.place} is over {display(window.time)}, which is not the event time of its input"
                )
                raise QueryError(f"{what}; use that ({there})")
            length = window.length_us
            bounds = {(window.end, window.start): length, (window.start, window.end): -length}
            # Windows with end <= W have been put out at watermark W: later ones end after W, and start a length before.
            return EventTimes({window.end: 0, window.start: length}, bounds)
        case Reused():
            columns, all_bounds = set(attributes(plan)), event_times(plan.instead_of).bounds
            kept = {pair: least for pair, least in all_bounds.items() if columns.issuperset(pair)}
            return EventTimes({plan.time: 0}, kept)


def times_in_join(join: Join) -> JoinTimes:
    """The pair of event times that the join runs on. Raises QueryError if there is none, or no key."""
    left, right = event_times(join.left), event_times(join.right)
    times = join_times(list(left.lags_us), list(right.lags_us), [left.bounds, right.bounds], join.condition)
    if not any(_is_key(part, join) for part in (join.condition if times is None else times.condition)):
        keys = "JOIN ... ON keys are equal AND event times are close"
        raise QueryError(f"the join with{_what(join)} has no equality of keys between its sides; use {keys}")
    if times is None:
        one, other = next(iter(left.lags_us), None), next(iter(right.lags_us), None)
        if one is None or other is None:
            missing = "left" if one is None else "right"
            raise QueryError(f"the join with{_what(join)} has no event time on its {missing} side; select it there")
        one, other = display(one), display(other)
        unbounded = f"the join with{_what(join)} does not bound the event times {one} and {other} from both sides"
        remedy = f"add AND {one} BETWEEN {other} - INTERVAL 1 HOUR AND {other} + INTERVAL 1 HOUR"
        raise QueryError(f"{unbounded}; {remedy}")
    return times


def _of_union(union: Union) -> EventTimes:
    branches = [event_times(branch) for branch in union.inputs]
    sources = {
        attribute: [bare(source) for source in column]
        for attribute, *column in zip(union.columns, *union.expressions, strict=True)
    }
    times = {
        attribute: 0
        for attribute, names in sources.items()
        if all(name in branch.lags_us for name, branch in zip(names, branches, strict=True))
    }
    bounds: dict[tuple[str, str], int] = {}
    for one in times:
        for other in times:
            pairs = [(a or "", b or "") for a, b in zip(sources[one], sources[other], strict=True)]
            known = [branch.bounds.get(pair) for pair, branch in zip(pairs, branches, strict=True)]
            if one != other and None not in known:
                bounds[one, other] = min(least for least in known if least is not None)
    return EventTimes(times, bounds)


def _is_key(part: exp.Expr, join: Join) -> bool:
    if not isinstance(part, (exp.EQ, exp.NullSafeEQ)):
        return False
    left, right = set(attributes(join.left)), set(attributes(join.right))
    one, other = used(part.this), used(part.expression)
    return bool(one and other) and ((one <= left and other <= right) or (one <= right and other <= left))


def _what(join: Join) -> str:
    return f" the input{join.place}" if join.place else " its second input"


def _names(times: Mapping[str, int]) -> str:
    return ", ".join(display(name) for name in times)
