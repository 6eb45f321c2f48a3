"""The rules by which a running query gets a new plan, sans-I/O (docs/decisions/planning.md).

The new plan is put beside the old one: its fragments read the sources of the query that run already, and nobody reads
them. Once all of them run it is *decided* that the sink's port changes its producer, and before that it may be called
off. When the sink has all that it needs of the old plan, that is released. Whatever dies in between, one of the two
plans goes on, because each step is one change of the record that its keepers agree on.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping

import msgspec

from daemon.peering.query_messages import FragmentReport, NewPlan, QueryStatus, Reused
from daemon.peering.query_record import FragmentRecord, QueryRecord, counted, without_unneeded
from sbon.engine_messages import FragmentState, cursor_name
from sbon.errors import SbonError
from sbon.fragment import FragmentKind, FragmentSpec, PortSpec, Switch
from sbon.network_usage import Link
from sbon.placement.capacity import Demand
from sbon.placement.choice import OperatorChoice
from sbon.sql.query_plan import QueryPlan


def sink_of(record: QueryRecord) -> FragmentSpec:
    """The one sink of a query, if a new plan can feed it now. Raises SbonError, with the reason, if not."""
    sinks = [fragment.spec for fragment in record.fragments.values() if fragment.spec.sink is not None]
    if record.status is not QueryStatus.RUNNING:
        raise SbonError(f"query {record.query_id} is {record.status}")
    if record.move is not None or record.new_plan is not None:
        raise SbonError(f"query {record.query_id} is being changed now")
    if len(sinks) != 1:
        raise SbonError(f"query {record.query_id} has several sinks")
    (port,) = sinks[0].ports
    top = record.fragments.get(port.producers[0])
    if top is None or top.spec.pinned or top.spec.event_time is None:
        raise SbonError(f"the sink of query {record.query_id} reads what cannot be changed for something else")
    return sinks[0]


def new_plan(record: QueryRecord, plan: QueryPlan) -> NewPlan:
    """What ``plan``, the same query over its own sources, is to do in the place of what runs.

    Raises SbonError if the sink would need to be another one, or a source.
    """
    sink = sink_of(record)
    *inner, new_sink = plan.fragments
    (port,), (new_port,) = sink.ports, new_sink.ports
    old = record.fragment(port.producers[0]).spec
    new = next((spec for spec in inner if spec.fragment_id in new_port.producers), None)
    if new is None or new.computes is None or new_sink.signature() != sink.signature():
        raise SbonError("the sink would have to read something else")
    if new.event_time is None or new.event_time != old.event_time:
        raise SbonError("the event time of the result would be another one")
    if any(spec.kind is FragmentKind.SOURCE for spec in inner):
        raise SbonError("a source that runs does not put out what is needed")
    switch = Switch(old.fragment_id, new.fragment_id, new.event_time, new.computes.from_ms)
    return NewPlan(sink.fragment_id, port.name, switch, tuple(spec.fragment_id for spec in inner))


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
    own = {
        cursor_name(spec.fragment_id, port.name)
        for spec in inner
        for port in spec.ports
        if record.fragments.keys() & set(port.producers)
    }
    if not own <= record.readers.keys():
        raise SbonError("it took too long: a subscription has run out")
    # What was released before is forgotten now: whoever still has it is told that there is no such fragment.
    running = {fragment_id: each for fragment_id, each in record.fragments.items() if not each.released}
    still_read = {fragment_id: each for fragment_id, each in record.reused.items() if record.cursors(fragment_id)}
    sink = running.pop(begun.consumer)
    new = {
        spec.fragment_id: FragmentRecord(spec, hosts[spec.fragment_id], taken=taken.get(spec.fragment_id, Demand()))
        for spec in inner
    }
    return counted(
        record,
        msgspec.structs.replace(
            record,
            fragments={**running, **new, begun.consumer: sink},
            links=record.links + links_of(plan, begun.consumer),
            choices=record.choices + choices,
            reused=still_read | {each.fragment_id: each for each in reused},
            readers={cursor: reader for cursor, reader in record.readers.items() if cursor not in own},
            new_plan=begun,
        ),
    )


def links_of(plan: QueryPlan, sink: str) -> tuple[Link, ...]:
    """The links of a new plan; its sink is the running one."""
    return tuple(
        Link(source, sink if target == plan.fragments[-1].fragment_id else target, rate)
        for source, target, rate in plan.links
    )


def decided(record: QueryRecord, new: str, at_s: float) -> QueryRecord:
    """The sink is to read ``new`` from now on. Raises SbonError if that was called off, or if it cannot be."""
    plan = record.new_plan
    if plan is None or plan.switch.new != new:
        raise SbonError(f"the new plan of query {record.query_id} was called off")
    if plan.decided:
        return record
    switch = plan.switch
    old_rows, new_rows = (_rows(record.fragment(each).output_schema) for each in (switch.old, switch.new))
    if new_rows is None or old_rows != new_rows:
        raise SbonError(f"{switch.new} does not put out the same columns as {switch.old}")
    record = _with_port(record, plan, (switch.old, switch.new))
    return msgspec.structs.replace(record, new_plan=msgspec.structs.replace(plan, decided=True), last_move_at_s=at_s)


def called_off(record: QueryRecord, new: str) -> QueryRecord:
    """What runs goes on as it is; the same record if it is decided, or over."""
    plan = record.new_plan
    if plan is None or plan.decided or plan.switch.new != new:
        return record
    return _without_released(without_unneeded(msgspec.structs.replace(record, new_plan=None)))


def heard(record: QueryRecord, report: FragmentReport) -> QueryRecord:
    """What a report on one of the query's fragments leads to: the old plan is not needed any more, or the new one is
    called off because a fragment of it failed before it was decided."""
    plan = record.new_plan
    if plan is None:
        return record
    ports = () if report.status is None else report.status.ports
    if plan.decided and report.fragment_id == plan.consumer:
        passed = any(each.passed for each in ports if (each.port, each.producer) == (plan.port, plan.switch.old))
        return _completed(record, plan) if passed else record
    if report.fragment_id in plan.fragments and has_failed(report):
        return called_off(record, plan.switch.new)
    return record


def has_failed(report: FragmentReport) -> bool:
    return report.error is not None or (report.status is not None and report.status.state is FragmentState.FAILED)


def _completed(record: QueryRecord, plan: NewPlan) -> QueryRecord:
    record = _with_port(record, plan, (plan.switch.new,))
    return _without_released(without_unneeded(msgspec.structs.replace(record, new_plan=None)))


def _with_port(record: QueryRecord, plan: NewPlan, producers: tuple[str, ...]) -> QueryRecord:
    sink = record.fragment(plan.consumer)

    def fed(port: PortSpec) -> PortSpec:
        if port.name != plan.port:
            return port
        changes = port.changes + 1
        return msgspec.structs.replace(port, producers=producers, switch=plan.switch, changes=changes)

    spec = msgspec.structs.replace(sink.spec, ports=tuple(fed(port) for port in sink.spec.ports))
    changed = msgspec.structs.replace(sink, spec=spec)
    fragments = {**record.fragments, plan.consumer: changed}
    return counted(record, msgspec.structs.replace(record, fragments=fragments))


def _without_released(record: QueryRecord) -> QueryRecord:
    """Without links and choices of what runs no longer."""
    gone = {fragment_id for fragment_id, fragment in record.fragments.items() if fragment.released}
    return msgspec.structs.replace(
        record,
        links=tuple(link for link in record.links if not gone & {link.source, link.target}),
        choices=tuple(choice for choice in record.choices if choice.operator not in gone),
    )


def _rows(output_schema: str | None) -> object:
    """Names and types of an output's columns, in order; None while they are not known."""
    if output_schema is None:
        return None
    fields = json.loads(output_schema).get("schema", {}).get("fields", ())
    return [(field["name"], field["type"]) for field in fields]
