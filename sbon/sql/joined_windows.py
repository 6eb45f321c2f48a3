"""What windows in brackets mean: bounds on the event times of joined rows, or the window of an aggregate."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sqlglot import exp

from sbon.errors import QueryError
from sbon.sql.dialect import column
from sbon.sql.durations import duration_text
from sbon.sql.event_times import event_times
from sbon.sql.functions import function_name
from sbon.sql.intervals import interval_literal
from sbon.sql.logical_plan import Output, Plan, bare
from sbon.sql.stream_windows import StreamWindow, stream_window


@dataclass(frozen=True, slots=True)
class Windowed:
    """A FROM item. ``time``: its event time as (attribute, name of the column), None if it has none or it is hidden."""

    alias: str
    window: StreamWindow | None
    time: tuple[str, str] | None


def windowed(source: exp.Expr, alias: str, plan: Plan, outputs: Sequence[Output]) -> Windowed:
    """Raises QueryError for a window over something that has no event time."""
    window = stream_window(source)
    times = event_times(plan).lags_us
    found = next(
        (
            (attribute, output.name)
            for attribute in times
            for output in outputs
            if bare(output.expression) == attribute and output.name is not None
        ),
        None,
    )
    if window is not None and found is None:
        raise QueryError(f"the window{window.place} is over '{alias}', which has no event time; select it there")
    return Windowed(alias, window, found)


def joined_in_time(sources: Sequence[Windowed], new: Windowed) -> list[exp.Expr]:
    """What windows say about the event times of a row of ``new`` and rows of the sources before it: each is still in
    its window at the time of the other."""
    found: list[exp.Expr] = []
    for source in sources:
        if source.time is None or new.time is None:
            continue
        for one, other in ((source, new), (new, source)):
            if one.window is not None and one.time is not None and other.time is not None:
                earliest = exp.Sub(this=column(other.time[0]), expression=interval_literal(one.window.range_us))
                found.append(exp.GTE(this=column(one.time[0]), expression=earliest))
    return found


def grouped_by_window(select: exp.Select, source: Windowed) -> exp.Select:
    """A SELECT with aggregates over one stream, its window in brackets written as ``GROUP BY window(...)``."""
    window = source.window
    if window is None:
        return select
    group = select.args.get("group")
    keys = list(group.expressions) if group is not None else []
    if any(function_name(key) == "window" for key in keys):
        raise QueryError(f"the window{window.place} and window() in GROUP BY are two windows of one stream; use one")
    if window.slide_us is None:
        remedy = f"write [RANGE {duration_text(window.range_us).upper()} SLIDE 1 MINUTE]"
        raise QueryError(f"the window{window.place} has no SLIDE, and aggregates are computed for each; {remedy}")
    if window.slide_us > window.range_us:
        remedy = f"make SLIDE at most {duration_text(window.range_us).upper()}"
        raise QueryError(f"the window{window.place} slides further than its range, and would skip rows; {remedy}")
    assert source.time is not None
    lengths = [exp.Literal.string(duration_text(length_us)) for length_us in (window.range_us, window.slide_us)]
    call = exp.Anonymous(this="window", expressions=[exp.column(source.time[1], table=source.alias), *lengths])
    grouped = select.copy()
    grouped.set("group", exp.Group(expressions=[call, *(key.copy() for key in keys)]))
    return grouped
