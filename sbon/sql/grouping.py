"""GROUP BY with a window of event time: from a SELECT to an Aggregate, its HAVING to a Filter above it."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from sqlglot import exp

from sbon.errors import QueryError
from sbon.sql.check import check_expression
from sbon.sql.dialect import column, place, render
from sbon.sql.durations import parse_duration_us
from sbon.sql.functions import function_name, is_aggregate
from sbon.sql.logical_plan import Aggregate, Filter, Output, Plan, TimeWindow, bare, shown
from sbon.sql.names import Namer, Scope, is_star, output_name, simplify_structs, window_struct

_REMEDY = "group by a window of event time: GROUP BY window(ts, '1 hour'), ..."
_USAGE = "write window(ts, '1 hour') or window(ts, '1 hour', '30 minutes')"


def aggregates(item: exp.Expr) -> exp.Expr | None:
    """The first aggregate function in an expression, None if it has none."""
    return next((node for node in item.walk() if is_aggregate(node)), None)


def group_by_window(select: exp.Select, plan: Plan, scope: Scope, namer: Namer) -> tuple[Plan, list[Output]]:
    """The plan of a SELECT with aggregates over ``plan``, whose columns are ``scope``. Raises QueryError."""
    window, keys = _group(select, scope, namer)
    if not scope.has_column("window"):
        scope = replace(scope, extra={"window": window_struct(window.start, window.end)})
    lifting = _Lifting(window, keys, namer)
    outputs: list[Output] = []
    for item in select.expressions:
        if is_star(item):
            raise QueryError(
                f"'*'{place(item) or place(select)} cannot stand beside GROUP BY; list keys and aggregates"
            )
        name = output_name(item)
        outputs.append(Output(name, lifting.lift(scope.resolve(item.unalias()), name)))
    having = select.args.get("having")
    if having is None:
        return Aggregate(plan, window, keys, tuple(lifting.measures)), outputs
    named = {output.name.lower(): output.expression for output in outputs if output.name}
    resolved = _resolve_having(having.this, scope, replace(scope, extra={**scope.extra, **named}, extra_first=True))
    condition = lifting.lift(resolved, None)
    return Filter(Aggregate(plan, window, keys, tuple(lifting.measures)), condition), outputs


@dataclass(slots=True)
class _Lifting:
    """Rewrites expressions over the rows of a group into expressions over the group's result, collecting aggregates."""

    window: TimeWindow
    keys: tuple[tuple[str, exp.Expr], ...]
    namer: Namer
    measures: list[tuple[str, exp.Expr]] = field(default_factory=list)

    def lift(self, expression: exp.Expr, name: str | None) -> exp.Expr:
        return simplify_structs(self._lift(expression, name))

    def _lift(self, expression: exp.Expr, name: str | None) -> exp.Expr:
        """``name`` is what an aggregate that is the whole expression is called after."""
        if function_name(expression) == "window":
            if _normal(expression) != self.window.call:
                what = f"{shown(expression)}{place(expression)}"
                raise QueryError(f"{what} is not the window of GROUP BY; write window.start or window.end")
            return window_struct(self.window.start, self.window.end)
        for attribute, key in self.keys:
            if expression == key:
                return column(attribute)
        if is_aggregate(expression):
            for attribute, measure in self.measures:
                if measure == expression:
                    return column(attribute)
            attribute = self.namer.attribute("aggregate", name or function_name(expression) or "value")
            self.measures.append((attribute, expression.copy()))
            return column(attribute)
        if isinstance(expression, exp.Column):
            own = {self.window.start, self.window.end, *dict(self.keys), *dict(self.measures)}
            if expression.name not in own:
                what = f"{shown(expression)}{place(expression)}"
                raise QueryError(f"{what} is neither grouped by nor aggregated; add it to GROUP BY")
            return expression
        for child in list(expression.iter_expressions()):
            child.replace(self._lift(child, None))
        return expression


def _group(select: exp.Select, scope: Scope, namer: Namer) -> tuple[TimeWindow, tuple[tuple[str, exp.Expr], ...]]:
    """The window and the other keys of GROUP BY."""
    group = select.args.get("group")
    written = list(group.expressions) if group is not None else []
    for key in written:
        check_expression(key, clause="GROUP BY")
    windows = [key for key in written if function_name(key) == "window"]
    if not windows:
        first = next((found for item in select.expressions if (found := aggregates(item))), select)
        raise QueryError(f"an aggregate without a window{place(first)} is not supported; {_REMEDY}")
    if len(windows) > 1:
        raise QueryError(
            f"two windows in one GROUP BY{place(windows[1])} are not supported; use one and aggregate twice"
        )
    window = _window(windows[0], scope, namer)
    keys: list[tuple[str, exp.Expr]] = []
    for key in written:
        if key is windows[0]:
            continue
        if isinstance(key, exp.Literal):
            raise QueryError(f"GROUP BY {render(key)}{place(key)}: positions are not supported; name the column")
        meant = _unaliased(key, select, scope)
        check_expression(meant, clause="GROUP BY")
        name = key.name if isinstance(key, exp.Column) else f"key{len(keys) + 1}"
        keys.append((namer.attribute("group", name), scope.resolve(meant)))
    return window, tuple(keys)


def _unaliased(key: exp.Expr, select: exp.Select, scope: Scope) -> exp.Expr:
    """As Spark: a name in GROUP BY that is no column may be an alias of the SELECT list."""
    if isinstance(key, exp.Column) and not key.table and not scope.has_column(key.name):
        for item in select.expressions:
            if isinstance(item, exp.Alias) and item.alias.lower() == key.name.lower():
                return item.unalias()
    return key


def _window(call: exp.Expr, scope: Scope, namer: Namer) -> TimeWindow:
    """``window(ts, '1 hour'[, '30 minutes'[, '15 minutes']])``: column, length, slide, offset."""
    time, *lengths = call.expressions or [None]
    if time is None or not 1 <= len(lengths) <= 3:
        raise QueryError(f"window(){place(call)} takes a column and one to three lengths; {_USAGE}")
    name = bare(scope.resolve(time))
    if name is None:
        raise QueryError(f"window(){place(call)} needs an event-time column, not {render(time)}; {_USAGE}")
    lengths_us: list[int] = []
    for length in lengths:
        if not (isinstance(length, exp.Literal) and length.is_string):
            raise QueryError(f"{render(length)}{place(call)} in window() must be a string; {_USAGE}")
        length_us = parse_duration_us(length.name)
        if length_us is None or (length_us <= 0 and len(lengths_us) < 2):
            remedy = "write weeks, days, hours, minutes or seconds, as '1 hour'"
            raise QueryError(
                f"'{length.name}'{place(length) or place(call)} in window() is not a fixed length; {remedy}"
            )
        lengths_us.append(length_us)
    length_us, slide_us = lengths_us[0], lengths_us[1] if len(lengths_us) > 1 else lengths_us[0]
    if slide_us > length_us:
        remedy = f"make the slide at most '{lengths[0].name}'"
        raise QueryError(f"window(){place(call)} slides further than its length, and would skip rows; {remedy}")
    return TimeWindow(
        call=exp.Anonymous(this="window", expressions=[column(name), *(length.copy() for length in lengths)]),
        time=name,
        length_us=length_us,
        start=namer.attribute("window", "start"),
        end=namer.attribute("window", "end"),
        slide_us=slide_us,
        offset_us=lengths_us[2] if len(lengths_us) > 2 else 0,
        place=place(call),
    )


def _resolve_having(condition: exp.Expr, rows: Scope, groups: Scope) -> exp.Expr:
    """As Spark: inside an aggregate names are columns of the rows, outside first of all aliases of the SELECT list."""
    if is_aggregate(condition):
        return rows.resolve(condition)
    if isinstance(condition, exp.Column):
        return groups.resolve(condition)
    condition = condition.copy()
    for child in list(condition.iter_expressions()):
        child.replace(_resolve_having(child, rows, groups))
    return condition


def _normal(call: exp.Expr) -> exp.Expr:
    return exp.Anonymous(this="window", expressions=[part.copy() for part in call.expressions])
