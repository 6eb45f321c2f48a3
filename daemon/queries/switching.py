"""The rules by which a running query gets a new plan, sans-I/O (docs/decisions/planning.md).

The new plan is put beside the old one: its fragments read the sources of the query that run already, and nobody reads
them. Once all of them run it is *decided* that the ports of the sinks change their producers, and before that it may be
called off. When each sink has all that it needs of the old plan, that is released. Whatever dies in between, one of the
two plans goes on, because each step is one change of the record that its keepers agree on.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from daemon.peering.query_messages import FragmentReport, NewPlan, PortChange, QueryStatus, Reused
from daemon.peering.query_record import FragmentRecord, QueryRecord
from daemon.peering.query_rules import counted, without_unneeded
from sbon.engine_messages import FragmentState, cursor_name
from sbon.errors import SbonError
from sbon.fragment import FragmentKind, FragmentSpec, PortSpec, Switch
from sbon.frames import DECODING_ERRORS
from sbon.network_usage import Link
from sbon.placement.capacity import Demand
from sbon.placement.choice import OperatorChoice
from sbon.sql.query_plan import QueryPlan


def sinks_of(record: QueryRecord) -> tuple[FragmentSpec, ...]:
    """Those sinks of a query that a new plan can feed now. Raises SbonError, with the reason, if there are none."""
    if record.status is not QueryStatus.RUNNING:
        raise SbonError(f"query {record.query_id} is {record.status}")
    if record.move is not None or record.new_plan is not None:
        raise SbonError(f"query {record.query_id} is being changed now")
    sinks = (each.spec for each in record.fragments.values() if each.spec.sink is not None and not each.finished)
    found = tuple(sink for sink in sinks if _can_change(record, sink))
    if not found:
        raise SbonError(f"the sinks of query {record.query_id} read what cannot be changed for something else")
    return found


def _can_change(record: QueryRecord, sink: FragmentSpec) -> bool:
    top = record.fragments.get(sink.ports[0].producers[0])
    return top is not None and not top.spec.pinned and top.spec.event_time is not None


def new_plan(record: QueryRecord, plan: QueryPlan) -> NewPlan:
    """What ``plan``, the same query over its own sources, is to do in the place of what runs.

    Raises SbonError if a sink would need to be another one, or a source.
    """
    can_change = {sink.fragment_id for sink in sinks_of(record)}
    inner = {spec.fragment_id: spec for spec in plan.fragments if spec.sink is None}
    changes = []
    for old_id, new_sink in same_sinks(record, plan).items():
        sink, (new_port,) = record.fragment(old_id).spec, new_sink.ports
        (port,) = sink.ports
        if new_port.producers == port.producers:
            continue
        old, new = record.fragments.get(port.producers[0]), inner.get(new_port.producers[0])
        changes_nothing = new_sink.signature() == sink.signature()
        if old_id not in can_change or old is None or new is None or new.computes is None or not changes_nothing:
            raise SbonError("the sink would have to read something else")
        if new.event_time is None or new.event_time != old.spec.event_time:
            raise SbonError("the event time of the result would be another one")
        switch = Switch(old.spec.fragment_id, new.fragment_id, new.event_time, new.computes.from_ms)
        changes.append(PortChange(old_id, port.name, switch))
    if any(spec.kind is FragmentKind.SOURCE for spec in inner.values()):
        raise SbonError("a source that runs does not put out what is needed")
    return NewPlan(tuple(changes), tuple(inner))


def same_sinks(record: QueryRecord, plan: QueryPlan) -> dict[str, FragmentSpec]:
    """Those of ``plan`` by the id of the one that runs. Raises SbonError if one that runs is not among them."""
    new = {spec.sink.name: spec for spec in plan.fragments if spec.sink is not None}
    running = {each.spec.fragment_id: each.spec.sink.name for each in record.fragments.values() if each.spec.sink}
    if not new.keys() >= set(running.values()):
        raise SbonError(f"what query {record.query_id} writes to is not what its text says")
    return {fragment_id: new[name] for fragment_id, name in running.items()}


def begin(
    record: QueryRecord,
    plan: QueryPlan,
    hosts: Mapping[str, str],
    taken: Mapping[str, Demand],
    choices: tuple[OperatorChoice, ...],
    reused: Iterable[Reused],
) -> QueryRecord:
    """With the fragments of ``plan`` beside those that run. Its cursors on the query's own sources were subscribed
    before; raises SbonError if they have run out, or if a new plan cannot begin now."""
    begun = new_plan(record, plan)
    inner = [spec for spec in plan.fragments if spec.fragment_id in begun.fragments]
    own, of_sinks = _cursors(record, inner), _cursors(record, same_sinks(record, plan).values())
    if not own <= record.readers.keys():
        raise SbonError("it took too long: a subscription has run out")
    # What was released before is forgotten now: whoever still has it is told that there is no such fragment.
    record = _without_released(record)
    sinks = {fragment_id: record.fragment(fragment_id) for fragment_id in same_sinks(record, plan)}
    others = {fragment_id: each for fragment_id, each in record.fragments.items() if fragment_id not in sinks}
    running = {fragment_id: each for fragment_id, each in others.items() if not each.released}
    still_read = {fragment_id: each for fragment_id, each in record.reused.items() if record.cursors(fragment_id)}
    new = {
        spec.fragment_id: FragmentRecord(spec, hosts[spec.fragment_id], taken=taken.get(spec.fragment_id, Demand()))
        for spec in inner
    }
    return counted(
        record,
        msgspec.structs.replace(
            record,
            fragments={**running, **new, **sinks},
            links=record.links + links_of(record, plan, begun),
            choices=record.choices + choices,
            reused=still_read | {each.fragment_id: each for each in reused},
            readers={cursor: reader for cursor, reader in record.readers.items() if cursor not in own | of_sinks},
            new_plan=begun,
        ),
    )


def links_of(record: QueryRecord, plan: QueryPlan, begun: NewPlan) -> tuple[Link, ...]:
    """The new links of a new plan; its sinks are the running ones."""
    changed = {change.consumer for change in begun.changes}
    sinks = {spec.fragment_id: old for old, spec in same_sinks(record, plan).items() if old in changed}
    targets = {**sinks, **{fragment_id: fragment_id for fragment_id in begun.fragments}}
    return tuple(Link(source, targets[target], rate) for source, target, rate in plan.links if target in targets)


def _cursors(record: QueryRecord, specs: Iterable[FragmentSpec]) -> set[str]:
    """With which they read what the query has already."""
    return {
        cursor_name(spec.fragment_id, port.name)
        for spec in specs
        for port in spec.ports
        if record.fragments.keys() & set(port.producers)
    }


def decided(record: QueryRecord, name: str, at_s: float) -> QueryRecord:
    """The sinks are to read the new plan from now on. Raises SbonError if it was called off, or if it cannot be."""
    plan = record.new_plan
    if plan is None or plan.name != name:
        raise SbonError(f"the new plan of query {record.query_id} was called off")
    if plan.decided:
        return record
    for change in plan.changes:
        switch = change.switch
        old_rows, new_rows = (_rows(record.fragment(each).output_schema) for each in (switch.old, switch.new))
        if new_rows is None or old_rows != new_rows:
            raise SbonError(f"{switch.new} does not put out the same columns as {switch.old}")
        record = _with_port(record, change, (switch.old, switch.new))
    return msgspec.structs.replace(record, new_plan=msgspec.structs.replace(plan, decided=True), last_move_at_s=at_s)


def called_off(record: QueryRecord, name: str) -> QueryRecord:
    """What runs goes on as it is; the same record if it is decided, or over."""
    plan = record.new_plan
    if plan is None or plan.decided or plan.name != name:
        return record
    return _without_released(without_unneeded(msgspec.structs.replace(record, new_plan=None)))


def heard(record: QueryRecord, report: FragmentReport) -> QueryRecord:
    """What a report on one of the query's fragments leads to: a sink does not need the old plan any more, or the new
    one is called off because a fragment of it failed before it was decided."""
    plan = record.new_plan
    if plan is None:
        return record
    ports = () if report.status is None else report.status.ports
    for change in plan.changes if plan.decided else ():
        passed = any(each.passed for each in ports if (each.port, each.producer) == (change.port, change.switch.old))
        if report.fragment_id == change.consumer and passed:
            return _completed(record, plan, change)
    if report.fragment_id in plan.fragments and has_failed(report):
        return called_off(record, plan.name)
    return record


def has_failed(report: FragmentReport) -> bool:
    return report.error is not None or (report.status is not None and report.status.state is FragmentState.FAILED)


def _completed(record: QueryRecord, plan: NewPlan, change: PortChange) -> QueryRecord:
    """One sink reads the new plan alone; with the last one the new plan is the plan."""
    record = _with_port(record, change, (change.switch.new,))
    left = tuple(each for each in plan.changes if each != change)
    new_plan = msgspec.structs.replace(plan, changes=left) if left else None
    return _without_released(without_unneeded(msgspec.structs.replace(record, new_plan=new_plan)))


def _with_port(record: QueryRecord, change: PortChange, producers: tuple[str, ...]) -> QueryRecord:
    sink = record.fragment(change.consumer)

    def fed(port: PortSpec) -> PortSpec:
        if port.name != change.port:
            return port
        return msgspec.structs.replace(port, producers=producers, switch=change.switch, changes=port.changes + 1)

    spec = msgspec.structs.replace(sink.spec, ports=tuple(fed(port) for port in sink.spec.ports))
    fragments = {**record.fragments, change.consumer: msgspec.structs.replace(sink, spec=spec)}
    return counted(record, msgspec.structs.replace(record, fragments=fragments))


def _without_released(record: QueryRecord) -> QueryRecord:
    """Without links and choices of what runs no longer."""
    gone = {fragment_id for fragment_id, fragment in record.fragments.items() if fragment.released}
    return msgspec.structs.replace(
        record,
        links=tuple(link for link in record.links if not gone & {link.source, link.target}),
        choices=tuple(choice for choice in record.choices if choice.operator not in gone),
    )


class _Column(msgspec.Struct, frozen=True):
    name: str
    type: Any


class _Schema(msgspec.Struct, frozen=True):
    fields: tuple[_Column, ...] = ()


class _Output(msgspec.Struct, frozen=True):
    schema: _Schema = _Schema()


def _rows(output_schema: str | None) -> tuple[_Column, ...] | None:
    """Names and types of an output's columns, in order; None while they are not known. Raises SbonError for what is no
    schema: it is the word of a host."""
    if output_schema is None:
        return None
    try:
        return msgspec.json.decode(output_schema, type=_Output).schema.fields
    except DECODING_ERRORS as error:
        raise SbonError(f"a fragment does not say which columns it puts out: {error}") from error
