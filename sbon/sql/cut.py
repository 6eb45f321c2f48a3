"""Cut a logical plan into fragments (DESIGN: Queries, fragments, ports).

There is one per scan, join, union and aggregate, with the filters and projections around it fused in, and the sink.
Going down from the sink, each fragment is told which columns its consumer uses and which of them is the consumer's
event time; that is all it puts out, and its event time, if it has one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from sqlglot import exp

from sbon.fragment import Computes, FragmentKind, FragmentSpec, PortSpec, WatermarkSteps
from sbon.sql import estimates
from sbon.sql.dialect import column, identifier, render
from sbon.sql.estimates import Rate
from sbon.sql.event_times import event_times, times_in_join
from sbon.sql.intervals import ceil_ms
from sbon.sql.logical_plan import (
    Aggregate,
    Compute,
    Filter,
    Join,
    Output,
    Plan,
    Reused,
    Scan,
    TimeWindow,
    Union,
    attributes,
    bare,
    conjunction,
    conjuncts,
    identity,
    substitute,
    used,
)
from sbon.sql.plan_rates import rate_of
from sbon.sql.signatures import computes
from sbon.streams import SinkSpec, StreamSpec


@dataclass(frozen=True, slots=True)
class _Cut:
    """What a consumer needs to know of a finished fragment: its output's columns, event time and estimated rate."""

    fragment_id: str
    columns: tuple[str, ...]
    event_time: str | None
    rate: Rate
    #: Of a fragment that is another query's: how its output is made into what is wanted, and where reading begins.
    select: exp.Select | None = None
    first_batch: int = 0

    def at(self, port: str) -> exp.Expr:
        """What the consumer's SQL reads at this port."""
        return exp.to_table(port) if self.select is None else self.select.from_(port).subquery(port)

    def port(self, name: str) -> PortSpec:
        first_batches = {self.fragment_id: self.first_batch} if self.first_batch else {}
        return PortSpec(name, (self.fragment_id,), first_batches)


@dataclass(slots=True)
class Cutter:
    """Collects the fragments of one query, producers before consumers. Their ids begin with ``name``."""

    query_id: str
    name: str
    fragments: list[FragmentSpec] = field(default_factory=list)
    rates: dict[str, float] = field(default_factory=dict)
    #: What each fragment computes, sources too, by its id.
    offers: dict[str, Computes] = field(default_factory=dict)
    _numbers: dict[FragmentKind, int] = field(default_factory=dict)

    def cut(self, plan: Plan, outputs: Sequence[Output], sink: SinkSpec, interval_us: int = 0) -> None:
        """Fragments of ``plan`` and of the sink, which writes ``outputs`` each ``interval_us`` (0: as they come).

        Every output has a name.
        """
        times = event_times(plan)
        selected = [bare(output.expression) for output in outputs]
        top = self._fragment(plan, list(outputs), next((time for time in times.lags_us if time in selected), None))
        names = tuple(output.name or "" for output in outputs)
        selected_names: list[exp.Expr] = [exp.Star()] if names == top.columns else [column(name) for name in names]
        event_time = top.event_time if top.event_time in names else None
        sql = render(exp.select(*selected_names).from_(top.at("in0")))
        self._add(
            FragmentKind.SINK,
            sql,
            (top,),
            event_time=event_time,
            rate=top.rate,
            sink=sink,
            columns=names,
            interval_us=interval_us,
        )

    def cut_part(self, plan: Plan, outputs: Sequence[Output], time: str) -> str:
        """The id of the last fragment of ``plan``, which puts out ``outputs`` with the event time ``time``, to be read
        by several others."""
        return self._fragment(plan, list(outputs), time).fragment_id

    def copy(self) -> Cutter:
        """To try something with."""
        return Cutter(self.query_id, self.name, [*self.fragments], {**self.rates}, {**self.offers}, {**self._numbers})

    @property
    def whole_from_ms(self) -> dict[str, int | None]:
        """From which event times on what others of the same query can read is whole; None: from the first one on."""
        return {fragment_id: offer.from_ms for fragment_id, offer in self.offers.items()}

    def _fragment(self, plan: Plan, outputs: list[Output], time: str | None) -> _Cut:
        """The fragment whose output is ``outputs`` over ``plan``; ``time`` is the attribute that is its event time."""
        whole = plan
        conditions: list[exp.Expr] = []
        while isinstance(plan, (Filter, Compute)):
            if isinstance(plan, Filter):
                conditions += conjuncts(plan.condition)
            else:
                definitions = dict(plan.columns)
                outputs = [Output(o.name, substitute(o.expression, definitions)) for o in outputs]
                conditions = [substitute(part, definitions) for part in conditions]
            plan = plan.input
        match plan:
            case Scan():
                return self._source(plan, whole, outputs, conditions)
            case Join():
                return self._join(plan, whole, outputs, conditions, time)
            case Union():
                return self._union(plan, whole, outputs, conditions, time)
            case Aggregate():
                return self._aggregate(plan, whole, outputs, conditions, time)
            case Reused():
                return self._reused(plan, whole, outputs, conditions, time)

    def _source(self, scan: Scan, whole: Plan, outputs: list[Output], conditions: list[exp.Expr]) -> _Cut:
        time = next(attribute for attribute, name, _ in scan.columns if name == scan.stream.event_time)
        outputs = _with_time(outputs, time)
        names = {attribute: column(name) for attribute, name, _ in scan.columns}
        rate = estimates.stream_rate(scan.stream, list(names))
        select = _select(outputs, names).from_("source")
        if conditions:
            select = select.where(substitute(conjunction(conditions), names))
        return self._add(
            FragmentKind.SOURCE,
            render(select),
            (),
            columns=tuple(output.name or "" for output in outputs),
            event_time=_named(outputs, time),
            rate=_projected(estimates.filtered(rate, _lasting(whole)), outputs),
            stream=scan.stream,
            computes=computes(whole, outputs, _named(outputs, time)),
        )

    def _reused(
        self, reused: Reused, whole: Plan, outputs: list[Output], conditions: list[exp.Expr], time: str | None
    ) -> _Cut:
        """No fragment of ours: whoever reads it takes its rows as they come, and makes of them what is wanted."""
        names = {attribute: column(name) for attribute, name in reused.columns}
        select = _select(outputs, names)
        if conditions:
            select = select.where(substitute(conjunction(conditions), names))
        rate = rate_of(reused)
        self.rates[reused.fragment_id] = rate.bytes_per_s
        return _Cut(
            reused.fragment_id,
            tuple(output.name or "" for output in outputs),
            None if time is None else _named(outputs, time),
            _projected(estimates.filtered(rate, _lasting(whole)), outputs),
            select,
            reused.first_batch,
        )

    def _join(
        self, join: Join, whole: Plan, outputs: list[Output], conditions: list[exp.Expr], time: str | None
    ) -> _Cut:
        times = times_in_join(join)
        time = time or min(times.lags_us)
        outputs = _with_time(outputs, time)
        needed = used(*(o.expression for o in outputs), *conditions, *join.condition) | {times.left, times.right}
        left, right = (
            self._fragment(side, list(identity(a for a in attributes(side) if a in needed)), side_time)
            for side, side_time in ((join.left, times.left), (join.right, times.right))
        )
        select = _select(outputs).from_(left.at("in0"))
        select = select.join(right.at("in1"), on=conjunction(times.condition), join_type="inner")
        if conditions:
            select = select.where(conjunction(conditions))
        return self._add(
            FragmentKind.JOIN,
            render(select),
            (left, right),
            columns=tuple(output.name or "" for output in outputs),
            event_time=_named(outputs, time),
            lag_us=times.lags_us[time],
            rate=_projected(estimates.filtered(estimates.joined(left.rate, right.rate), _lasting(whole)), outputs),
            computes=computes(whole, outputs, _named(outputs, time)),
        )

    def _union(
        self, union: Union, whole: Plan, outputs: list[Output], conditions: list[exp.Expr], time: str | None
    ) -> _Cut:
        time = time or min(event_times(union).lags_us, default=None)
        if time is not None:
            outputs = _with_time(outputs, time)
        needed = used(*(output.expression for output in outputs), *conditions) | ({time} if time else set())
        inputs: list[_Cut] = []
        for branch, sources in zip(union.inputs, union.expressions, strict=True):
            columns = [
                Output(name, source) for name, source in zip(union.columns, sources, strict=True) if name in needed
            ]
            # With no column needed (SELECT 1), the rows themselves still are.
            columns = columns or [Output(union.columns[0], sources[0])]
            branch_time = next((bare(output.expression) for output in columns if output.name == time), None)
            inputs.append(self._fragment(branch, columns, branch_time))
        passed = [name for name in union.columns if name in needed] or [union.columns[0]]
        # Computing above the union sees its widened types; names alone can be given below it.
        above = bool(conditions) or any(bare(output.expression) is None for output in outputs)
        parts = [
            _select(list(identity(passed)) if above else outputs).from_(each.at(f"in{number}"))
            for number, each in enumerate(inputs)
        ]
        merged: exp.Query = parts[0]
        for part in parts[1:]:
            merged = exp.union(merged, part, distinct=False)
        if above:
            select = _select(outputs).from_(merged.subquery("united"))
            merged = select.where(conjunction(conditions)) if conditions else select
        event_time = None if time is None else _named(outputs, time)
        merged_rate = estimates.merged([each.rate for each in inputs])
        return self._add(
            FragmentKind.UNION,
            render(merged),
            tuple(inputs),
            columns=tuple(output.name or "" for output in outputs),
            event_time=event_time,
            rate=_projected(estimates.filtered(merged_rate, _lasting(whole)), outputs),
            computes=computes(whole, outputs, event_time),
        )

    def _aggregate(
        self, aggregate: Aggregate, whole: Plan, outputs: list[Output], conditions: list[exp.Expr], time: str | None
    ) -> _Cut:
        window, definitions = aggregate.window, aggregate.definitions()
        time = time or window.end
        outputs = _with_time(outputs, time)
        result_names = used(*(output.expression for output in outputs), *conditions)
        measures = [measure for name, measure in aggregate.measures if name in result_names]
        needed = used(*(key for _, key in aggregate.keys), *measures) | {window.time}
        child = self._fragment(
            aggregate.input, list(identity(a for a in attributes(aggregate.input) if a in needed)), window.time
        )
        select = _select(outputs, definitions).from_(child.at("in0"))
        select = select.group_by(window.call, *(key for _, key in aggregate.keys))
        if conditions:
            select = select.having(substitute(conjunction(conditions), definitions))
        rate = estimates.aggregated(child.rate, window.length_us / window.slide_us, list(definitions))
        return self._add(
            FragmentKind.AGGREGATE,
            render(select),
            (child,),
            columns=tuple(output.name or "" for output in outputs),
            event_time=_named(outputs, time),
            lag_us=window.length_us if time == window.start else 0,
            steps=_closing(window),
            rate=_projected(estimates.filtered(rate, _lasting(whole)), outputs),
            computes=computes(whole, outputs, _named(outputs, time)),
        )

    def _add(
        self,
        kind: FragmentKind,
        sql: str,
        inputs: tuple[_Cut, ...],
        *,
        columns: tuple[str, ...],
        event_time: str | None,
        rate: Rate,
        lag_us: int = 0,
        steps: WatermarkSteps | None = None,
        stream: StreamSpec | None = None,
        sink: SinkSpec | None = None,
        interval_us: int = 0,
        computes: Computes | None = None,
    ) -> _Cut:
        number = self._numbers[kind] = self._numbers.get(kind, 0) + 1
        fragment_id = f"{self.name}-{kind}{number}"
        bytes_in = stream.rate_bytes_per_s if stream is not None else sum(each.rate.bytes_per_s for each in inputs)
        self.fragments.append(
            FragmentSpec(
                fragment_id=fragment_id,
                query_id=self.query_id,
                kind=kind,
                sql=sql,
                ports=tuple(each.port(f"in{i}") for i, each in enumerate(inputs)),
                event_time=event_time,
                watermark_lag_ms=ceil_ms(lag_us),
                watermark_steps=steps,
                stateful=kind in (FragmentKind.JOIN, FragmentKind.AGGREGATE),
                selectivity=rate.bytes_per_s / bytes_in if bytes_in > 0 else 1.0,
                stream=stream,
                sink=sink,
                output_interval_ms=ceil_ms(interval_us),
                computes=computes,
            )
        )
        if computes is not None:
            self.offers[fragment_id] = computes
        self.rates[fragment_id] = rate.bytes_per_s
        return _Cut(fragment_id, columns, event_time, rate)


def _closing(window: TimeWindow) -> WatermarkSteps | None:
    """When windows close; None if that is not in whole milliseconds, as watermarks are."""
    phase_us = (window.offset_us + window.length_us) % window.slide_us
    if window.slide_us % 1000 or phase_us % 1000:
        return None
    return WatermarkSteps(window.slide_us // 1000, phase_us // 1000)


def _lasting(plan: Plan) -> list[exp.Expr]:
    """The filters around a fragment, but for those that only matter at its start."""
    found: list[exp.Expr] = []
    while isinstance(plan, (Filter, Compute)):
        if isinstance(plan, Filter) and not plan.is_start:
            found += conjuncts(plan.condition)
        plan = plan.input
    return found


def _select(outputs: Sequence[Output], definitions: Mapping[str, exp.Expr] | None = None) -> exp.Select:
    """``SELECT`` of the outputs, with attributes replaced by ``definitions``, each under its name."""
    items: list[exp.Expr] = []
    for output in outputs:
        name = output.name or ""
        value = substitute(output.expression, definitions or {})
        items.append(value if bare(value) == name else exp.Alias(this=value.unnest(), alias=identifier(name)))
    return exp.select(*items)


def _with_time(outputs: list[Output], time: str) -> list[Output]:
    """And the event time: whoever comes later, and wants the same, needs to know from when on it has all of it."""
    return outputs if _named(outputs, time) is not None else [*outputs, Output(time, column(time))]


def _named(outputs: Sequence[Output], attribute: str) -> str | None:
    """The name under which an attribute is put out unchanged, None if it is not."""
    return next((output.name for output in outputs if bare(output.expression) == attribute), None)


def _projected(rate: Rate, outputs: Sequence[Output]) -> Rate:
    return estimates.projected(rate, [(output.name or "", bare(output.expression)) for output in outputs])
