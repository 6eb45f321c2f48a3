"""The rules by which a running query gets a new plan, on records alone."""

from __future__ import annotations

import msgspec
import pytest

from daemon.peering import query_rules
from daemon.peering.query_messages import FragmentReport, QueryStatus, Reader
from daemon.peering.query_record import QueryRecord, new_record
from daemon.queries import sharing, switching
from sbon.engine_messages import FlightAddress, FragmentState, FragmentStatus, PortStatus, cursor_name
from sbon.errors import SbonError
from sbon.fragment import Start
from sbon.sql.catalog import Catalog
from sbon.sql.plan import prepare_query
from sbon.sql.query_plan import QueryPlan
from sbon.streams import SinkSpec
from tests.sbon.sql import streams

CATALOG = Catalog(streams.CATALOG.streams, {**streams.CATALOG.sinks, "board": (SinkSpec("board", "console"), "node")})
SQL = (
    "INSERT INTO result SELECT f.ts, f.origin, w.visib, b.owner.name FROM flights f [RANGE 1 HOUR], "
    "weather w [RANGE 1 HOUR], bags b [RANGE 1 HOUR] "
    "WHERE f.origin = w.origin AND w.origin = b.airport AND w.visib < 5"
)
KEEPERS = ("k1", "k2", "k3")
SCHEMA = '{"schema": {"fields": [{"name": "ts", "type": "timestamp", "nullable": true}]}}'
OLD = {"q1-join1", "q1-join2"}
ADDRESS = FlightAddress("host", 1)


def running(sql: str = SQL) -> QueryRecord:
    plan = prepare_query(sql, CATALOG).cut("q1")
    hosts = {spec.fragment_id: "host" for spec in plan.fragments}
    record = new_record(plan, hosts, (), keepers=KEEPERS, submitted_at_s=0.0)
    for fragment_id in record.fragments:
        record = query_rules.started(record, "host", fragment_id, 1, ADDRESS, SCHEMA)
    return query_rules.running(record, 1.0)


def other_plan(record: QueryRecord, order: object = (0, (1, 2)), name: str = "q1-new") -> QueryPlan:
    """The same query in another order of joins, over the sources that run."""
    sources = {
        fragment_id: each.spec.computes
        for fragment_id, each in record.fragments.items()
        if each.spec.stream is not None and each.spec.computes is not None
    }
    prepared = prepare_query(record.sql, CATALOG).beside(sources, name)
    return prepared.cut("q1", lambda _: order, dict.fromkeys(sources, Start(7, 5000)))  # type: ignore[arg-type, return-value]


def subscribed(record: QueryRecord, plan: QueryPlan) -> QueryRecord:
    for spec in plan.fragments:
        for port in spec.ports:
            for producer in port.producers:
                if producer in record.fragments:
                    reader = Reader(producer, "q1", KEEPERS)
                    record = sharing.subscribe(record, (cursor_name(spec.fragment_id, port.name),), reader)
    return record


def begun(record: QueryRecord | None = None, name: str = "q1-new") -> QueryRecord:
    record = running() if record is None else record
    plan = other_plan(record, name=name)
    hosts = {spec.fragment_id: "other" for spec in plan.fragments}
    return switching.begin(subscribed(record, plan), plan, hosts, {}, (), ())


def started(record: QueryRecord, schema: str = SCHEMA) -> QueryRecord:
    assert record.new_plan is not None
    for fragment_id in record.new_plan.fragments:
        record = query_rules.started(record, "other", fragment_id, 1, ADDRESS, schema)
    return record


def alive(record: QueryRecord) -> set[str]:
    return {fragment_id for fragment_id, each in record.fragments.items() if not each.released}


def report(fragment_id: str, *ports: PortStatus, state: FragmentState = FragmentState.RUNNING) -> FragmentReport:
    return FragmentReport(fragment_id, 1, ADDRESS, FragmentStatus(fragment_id, 1, state, ports))


def passed(producer: str = "q1-join2", *, is_passed: bool = True, sink: str = "q1-sink1") -> FragmentReport:
    return report(sink, PortStatus("in0", producer, 1.0, 1.0, 1, passed=is_passed))


def test_the_new_plan_stands_beside_the_old_one_and_nobody_reads_it() -> None:
    before = running()
    record = begun(before)
    plan = record.new_plan
    assert plan is not None
    assert plan.fragments == ("q1-new-join1", "q1-new-join2")
    assert [change.switch.from_ms for change in plan.changes] == [5000 + 3_600_000]
    assert alive(record) == before.fragments.keys() | {*plan.fragments}
    assert record.consumer == "host", "the sink stays the last one"
    assert record.readers == {}, "what reads the sources is now of the query itself"
    assert set(record.cursors("q1-source2")) == {"q1-join1:in1", "q1-new-join1:in0"}
    assert record.cursors("q1-new-join2") == ()
    assert record.fragment("q1-new-join1").spec.ports[0].first_batches == {"q1-source2": 7}
    assert ("q1-new-join2", "q1-sink1") in {(link.source, link.target) for link in record.links}
    with pytest.raises(SbonError, match="is being planned anew"):
        query_rules.announce(record, "host", "q1-join1", 1, "elsewhere")
    with pytest.raises(SbonError, match="is being changed now"):
        switching.sinks_of(record)


def test_what_was_called_off_leaves_the_old_plan_as_it_was() -> None:
    before = running()
    record = switching.called_off(begun(before), "q1-new-join2")
    assert alive(record) == before.fragments.keys()
    assert record.links == before.links
    assert record.fragment("q1-sink1").spec == before.fragment("q1-sink1").spec
    assert record.cursors("q1-source2") == ("q1-join1:in1",)
    assert switching.called_off(record, "q1-new-join2") is record
    with pytest.raises(SbonError, match="was called off"):
        switching.decided(record, "q1-new-join2", 9.0)
    again = begun(record, "q1-newer")
    assert alive(again) == again.fragments.keys(), "what was released is forgotten"


def test_it_is_called_off_when_one_of_its_fragments_fails_and_not_after_it_was_decided() -> None:
    record = started(begun())
    assert switching.heard(record, report("q1-new-join1")) is record
    assert switching.heard(record, report("q1-join1", state=FragmentState.FAILED)) is record
    failed = report("q1-new-join1", state=FragmentState.FAILED)
    assert alive(switching.heard(record, failed)) == running().fragments.keys()
    decided = switching.decided(record, "q1-new-join2", 9.0)
    assert switching.heard(decided, failed) is decided
    assert switching.called_off(decided, "q1-new-join2") is decided


def test_once_decided_the_sink_reads_both_until_it_has_all_of_the_old_one() -> None:
    record = switching.decided(started(begun()), "q1-new-join2", 9.0)
    assert switching.decided(record, "q1-new-join2", 10.0) is record
    (port,) = record.fragment("q1-sink1").spec.ports
    assert port.producers == ("q1-join2", "q1-new-join2")
    assert record.fragment("q1-sink1").spec.signature() == running().fragment("q1-sink1").spec.signature()
    assert record.cursors("q1-new-join2") == ("q1-sink1:in0",)
    assert record.fragment("q1-sink1").spec.port_changes == 1
    assert [each.fragment_id for each in record.assignment("q1-sink1").producers] == ["q1-join2", "q1-new-join2"]
    assert record.last_move_at_s == 9.0
    assert switching.heard(record, passed(is_passed=False)) is record
    assert switching.heard(record, passed("q1-new-join2")) is record

    over = switching.heard(record, passed())
    assert over.new_plan is None
    assert alive(over) == {"q1-source1", "q1-source2", "q1-source3", "q1-new-join1", "q1-new-join2", "q1-sink1"}
    (port,) = over.fragment("q1-sink1").spec.ports
    assert (port.producers, port.changes) == (("q1-new-join2",), 2)
    assert port.switch is not None
    assert not OLD & {end for link in over.links for end in (link.source, link.target)}
    assert not query_rules.owns(over, "host", "q1-join1", 1)
    assert query_rules.ended(over, QueryStatus.CANCELLED).is_over


def test_several_sinks_change_each_when_it_has_all_of_the_old_plan_and_one_that_reads_a_stream_stays() -> None:
    of_join = SQL.replace("result", "alerts").replace("w.visib, ", "") + " AND w.visib > 1"
    before = running(f"{SQL}; {of_join}; INSERT INTO board SELECT origin FROM flights")
    plan = other_plan(before)
    record = started(begun(before))
    assert record.new_plan is not None
    assert [each.consumer for each in record.new_plan.changes] == ["q1-sink1", "q1-sink2"]
    assert [*record.fragments][-3:] == ["q1-sink1", "q1-sink2", "q1-sink3"]
    assert record.fragment("q1-sink3").spec == before.fragment("q1-sink3").spec
    assert record.readers == {}
    record = switching.decided(record, plan.fragments[1].fragment_id, 9.0)
    for sink in ("q1-sink1", "q1-sink2"):
        assert record.fragment(sink).spec.ports[0].producers == ("q1-join2", "q1-new-join2")
    assert switching.heard(record, passed(sink="q1-sink3")) is record

    half = switching.heard(record, passed(sink="q1-sink2"))
    assert half.new_plan is not None
    assert [each.consumer for each in half.new_plan.changes] == ["q1-sink1"]
    assert alive(half) == alive(record)
    assert half.fragment("q1-sink2").spec.ports[0].producers == ("q1-new-join2",)
    over = switching.heard(half, passed())
    assert over.new_plan is None
    assert not alive(over) & OLD
    links = {(link.source, link.target) for link in over.links}
    assert {("q1-new-join2", "q1-sink1"), ("q1-new-join2", "q1-sink2"), ("q1-source1", "q1-sink3")} <= links


def test_what_others_read_of_the_old_plan_stays() -> None:
    read = sharing.subscribe(running(), ("q2-sink1:in0",), Reader("q1-join1", "q2", KEEPERS))
    over = switching.heard(switching.decided(started(begun(read)), "q1-new-join2", 9.0), passed())
    assert alive(over) & OLD == {"q1-join1"}
    assert alive(sharing.unsubscribe(over, ["q2-sink1:in0"])) & OLD == set()


def test_a_query_that_ends_meanwhile_takes_both_plans_with_it() -> None:
    for record in (begun(), switching.decided(started(begun()), "q1-new-join2", 9.0)):
        ended = query_rules.ended(record, QueryStatus.CANCELLED)
        assert ended.is_over
        assert ended.new_plan is None


def test_what_cannot_take_the_place_of_the_plan_is_refused() -> None:
    record = running()
    plan = other_plan(record)
    with pytest.raises(SbonError, match="a subscription has run out"):
        switching.begin(record, plan, {}, {}, (), ())
    with pytest.raises(SbonError, match="is deploying"):
        switching.sinks_of(msgspec.structs.replace(record, status=QueryStatus.DEPLOYING))
    with pytest.raises(SbonError, match="does not put out the same columns"):
        switching.decided(started(begun(), SCHEMA.replace("timestamp", "string")), "q1-new-join2", 9.0)
    as_new = prepare_query(SQL, CATALOG).cut("q1-new")
    with pytest.raises(SbonError, match="a source that runs does not put out what is needed"):
        switching.new_plan(record, as_new)
    other_event_time = msgspec.structs.replace(plan.fragments[1], event_time="w__ts")
    changed = msgspec.structs.replace(plan, fragments=(plan.fragments[0], other_event_time, plan.fragments[2]))
    with pytest.raises(SbonError, match="event time of the result would be another one"):
        switching.new_plan(record, changed)
    other_sink = msgspec.structs.replace(plan.fragments[-1], sql="SELECT origin FROM in0")
    changed = msgspec.structs.replace(plan, fragments=(*plan.fragments[:-1], other_sink))
    with pytest.raises(SbonError, match="the sink would have to read something else"):
        switching.new_plan(record, changed)
    with pytest.raises(SbonError, match="read what cannot be changed"):
        switching.sinks_of(running("INSERT INTO result SELECT ts FROM flights"))


def test_the_links_of_what_is_forgotten_are_forgotten_too() -> None:
    """They are looked at for as long as the query runs, and nobody knows any more where their ends are."""
    read = sharing.subscribe(running(), ("q2-sink1:in0",), Reader("q1-join2", "q2", KEEPERS))
    over = switching.heard(switching.decided(started(begun(read)), "q1-new-join2", 9.0), passed())
    again = begun(sharing.unsubscribe(over, ["q2-sink1:in0"]), "q1-newer")
    assert not OLD & again.fragments.keys()
    assert {end for link in again.links for end in (link.source, link.target)} <= again.placement.keys()


@pytest.mark.parametrize(
    "schema", ["", "[]", "{", '{"schema": 1}', '{"schema": {"fields": [1]}}', pytest.param("[" * 100_000, id="deep")]
)
def test_a_host_that_does_not_tell_the_columns_of_its_fragment_has_the_plan_refused(schema: str) -> None:
    record = begun()
    fragment = msgspec.structs.replace(record.fragment("q1-new-join2"), output_schema=schema)
    record = msgspec.structs.replace(record, fragments={**record.fragments, "q1-new-join2": fragment})
    with pytest.raises(SbonError, match="does not say which columns"):
        switching.decided(record, "q1-new-join2", 9.0)


def test_a_record_with_another_sink_than_its_text_is_not_planned_anew() -> None:
    record = running()
    sink = record.fragment("q1-sink1")
    spec = msgspec.structs.replace(sink.spec, sink=SinkSpec("elsewhere", "console"))
    fragments = {**record.fragments, "q1-sink1": msgspec.structs.replace(sink, spec=spec)}
    with pytest.raises(SbonError, match="is not what its text says"):
        switching.new_plan(msgspec.structs.replace(record, fragments=fragments), other_plan(record))
