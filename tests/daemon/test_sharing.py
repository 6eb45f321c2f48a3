"""The rules by which fragments of one query are read by others, on records alone."""

from __future__ import annotations

import msgspec
import pytest

from daemon.peering import query_rules
from daemon.peering.query_messages import KeptBy, Location, QueryStatus, Reader, Reused
from daemon.peering.query_record import QueryRecord, new_record
from daemon.queries import sharing
from sbon.errors import SbonError
from sbon.fragment import Start
from sbon.sql.plan import plan_query
from tests.sbon.sql.streams import CATALOG

SQL = (
    "INSERT INTO result SELECT window.end AS e, count(*) AS n FROM flights f JOIN weather w "
    "ON f.origin = w.origin AND f.ts BETWEEN w.ts AND w.ts + INTERVAL 1 HOUR GROUP BY window(f.ts, '1 hour')"
)
KEEPERS = ("k1", "k2", "k3")


def record(query_id: str = "q1", status: QueryStatus = QueryStatus.RUNNING) -> QueryRecord:
    plan = plan_query(SQL, query_id, CATALOG)
    hosts = {spec.fragment_id: "host" for spec in plan.fragments}
    new = new_record(plan, hosts, (), keepers=KEEPERS, submitted_at_s=0.0)
    started = {name: msgspec.structs.replace(each, output_schema="{}") for name, each in new.fragments.items()}
    return msgspec.structs.replace(new, status=status, fragments=started)


def subscribed(of: QueryRecord, fragment_id: str = "q1-join1", by: str = "q2") -> QueryRecord:
    return sharing.subscribe(of, (f"{by}-sink1:in0",), Reader(fragment_id, by, KEEPERS))


def alive(of: QueryRecord) -> set[str]:
    return {fragment_id for fragment_id, fragment in of.fragments.items() if not fragment.released}


def test_who_does_not_read_is_left_behind_if_another_query_waits_for_it() -> None:
    own, other, third = "q1-aggregate1:in0", "q2-sink1:in0", "q3-sink1:in0"
    shared = subscribed(record())
    assert sharing.left_behind(shared, "q1-join1", [other]) == {other}
    assert sharing.left_behind(shared, "q1-join1", [own]) == {own}
    assert sharing.left_behind(shared, "q1-join1", [own, other]) == set(), "nobody waits"
    assert sharing.left_behind(subscribed(shared, by="q3"), "q1-join1", [own, other]) == {own, other}
    assert sharing.left_behind(shared, "q1-join1", [third]) == set(), "it does not read it"
    both = sharing.subscribe(record(), ("q2-join1:in0", "q2-join1:in1"), Reader("q1-join1", "q2", KEEPERS))
    ended = query_rules.ended(both, QueryStatus.CANCELLED)
    assert sharing.left_behind(ended, "q1-join1", ["q2-join1:in0"]) == set(), "only its own query waits"


def test_what_is_read_outlives_its_query_and_ends_with_its_last_reader() -> None:
    shared = subscribed(subscribed(record()), by="q3")
    assert shared.cursors("q1-join1") == ("q1-aggregate1:in0", "q2-sink1:in0", "q3-sink1:in0")
    assert shared.fragment("q1-join1").consumer_changes == 2
    assert sharing.subscribe(shared, ("q2-sink1:in0",), Reader("q1-join1", "q2", KEEPERS)) is shared

    ended = query_rules.ended(shared, QueryStatus.CANCELLED)
    assert alive(ended) == {"q1-source1", "q1-source2", "q1-join1"}
    assert ended.cursors("q1-join1") == ("q2-sink1:in0", "q3-sink1:in0")
    assert ended.fragment("q1-join1").consumer_changes == 3
    assert not ended.is_over
    assert query_rules.owns(ended, "host", "q1-join1", 1)
    assert not query_rules.owns(ended, "host", "q1-sink1", 1)
    assert query_rules.is_leased(ended, ended.fragment("q1-join1"))
    moving = query_rules.announce(ended, "host", "q1-join1", 1, "other")
    assert query_rules.claim(moving, "other", "q1-join1", 2)[1]

    one_left = sharing.unsubscribe(ended, ["q2-sink1:in0"])
    assert alive(one_left) == alive(ended)
    assert sharing.unsubscribe(one_left, ["q2-sink1:in0"]) is one_left
    assert sharing.unsubscribe(one_left, ["q3-sink1:in0"]).is_over


def test_readers_of_a_query_that_goes_on_may_come_and_go() -> None:
    left = sharing.unsubscribe(subscribed(record()), ["q2-sink1:in0"])
    assert alive(left) == record().fragments.keys()
    assert left.cursors("q1-join1") == ("q1-aggregate1:in0",)
    assert query_rules.ended(left, QueryStatus.FINISHED).is_over


def test_what_does_not_run_cannot_be_read() -> None:
    join = msgspec.structs.replace(record().fragment("q1-join1"), output_schema=None)
    not_started = msgspec.structs.replace(record(), fragments={**record().fragments, "q1-join1": join})
    for of in (not_started, query_rules.ended(record(), QueryStatus.CANCELLED)):
        with pytest.raises(SbonError, match="does not run now"):
            subscribed(of)
    full = record()
    for number in range(sharing.MAX_READERS):
        full = subscribed(full, by=f"r{number}")
    with pytest.raises(SbonError, match="readers already"):
        subscribed(full)


def test_what_is_read_of_a_query_that_is_being_deployed_stays_when_that_fails() -> None:
    failed = query_rules.ended(subscribed(record(status=QueryStatus.DEPLOYING)), QueryStatus.FAILED)
    assert alive(failed) == {"q1-source1", "q1-source2", "q1-join1"}
    assert not failed.is_over


def test_what_is_broken_takes_those_with_it_that_it_feeds_and_no_others() -> None:
    shared = subscribed(subscribed(record()), "q1-aggregate1", by="q3")
    assert sharing.broken(shared, "q1-source2").readers == {}
    assert sharing.broken(shared, "q1-aggregate1").readers.keys() == {"q2-sink1:in0"}
    assert sharing.broken(shared, "q1-sink1") is shared


def reading() -> QueryRecord:
    """A query whose aggregate reads the join of ``q0``."""
    own = record()
    aggregate = own.fragment("q1-aggregate1")
    port = msgspec.structs.replace(aggregate.spec.ports[0], producers=("q0-join1",))
    spec = msgspec.structs.replace(aggregate.spec, ports=(port,))
    fragments = {
        "q1-aggregate1": msgspec.structs.replace(aggregate, spec=spec, output_schema="a"),
        "q1-sink1": own.fragment("q1-sink1"),
    }
    reused = Reused("q0", KEEPERS, "f JOIN w", "schema", Location("q0-join1", 3, "far"), Start(4, 5000))
    return msgspec.structs.replace(own, fragments=fragments, links=(), reused={"q0-join1": reused})


def test_a_reader_knows_what_it_reads_as_long_as_it_needs_it() -> None:
    own = reading()
    assert sharing.subscriptions(own) == {"q0-join1": ("q1-aggregate1:in0",)}
    assignment = own.assignment("q1-aggregate1")
    assert assignment.port_schemas == ("schema",)
    assert assignment.producers == (Location("q0-join1", 3, "far"),)
    assert own.placement["q0-join1"] == "far"

    kept = sharing.read_from_keepers(own, "q0", KeptBy(("k1", "k2", "k4"), 2))
    assert kept.reused["q0-join1"].keepers == ("k1", "k2", "k4")
    assert sharing.read_from_keepers(kept, "q0", KeptBy(KEEPERS, 1)) is kept
    assert sharing.read_from_keepers(kept, "q9", KeptBy(KEEPERS, 9)) is kept

    moved = sharing.located(own, Location("q0-join1", 4, "near"))
    assert moved.location("q0-join1").node_id == "near"
    assert sharing.located(moved, Location("q0-join1", 3, "far")) is moved
    assert sharing.located(moved, Location("q9-join1", 9, "far")) is moved

    read_on = query_rules.ended(subscribed(own, "q1-aggregate1"), QueryStatus.CANCELLED)
    assert sharing.subscriptions(read_on) == {"q0-join1": ("q1-aggregate1:in0",)}
    assert sharing.broken(read_on, "q0-join1").is_over
    assert sharing.subscriptions(query_rules.ended(own, QueryStatus.CANCELLED)) == {}
