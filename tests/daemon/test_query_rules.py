"""The rules of ownership: single cases, and a model of keeper and hosts under lost messages and crashes."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from daemon.fragments.hosted_fragment import HostingRecord, Phase
from daemon.peering import query_record, query_rules
from daemon.peering.query_messages import Assignment, MoveReport, QueryStatus
from daemon.peering.query_record import QueryRecord
from sbon.engine_messages import FlightAddress
from sbon.errors import SbonError, StaleGenerationError
from sbon.sql.catalog import Catalog
from sbon.sql.plan import plan_query
from sbon.streams import SinkSpec, StreamSpec

HOSTS = ("a", "b", "c")
CATALOG = Catalog(
    {
        "left": (StreamSpec("left", "replay", "ts TIMESTAMP, k STRING", "ts"), "a"),
        "right": (StreamSpec("right", "replay", "ts TIMESTAMP, k STRING", "ts"), "b"),
    },
    {"out": (SinkSpec("out", "parquet", {"path": "/out"}), "c")},
)
SQL = "INSERT INTO out SELECT ts, k FROM left UNION ALL SELECT ts, k FROM right"


def deploying() -> QueryRecord:
    plan = plan_query(SQL, "q1", CATALOG)
    union = next(spec.fragment_id for spec in plan.fragments if not spec.pinned)
    return query_record.new_record(plan, {**plan.owners, union: "a"}, (), keepers=("c",), submitted_at_s=0.0)


def running() -> QueryRecord:
    record = deploying()
    for fragment_id, fragment in record.fragments.items():
        record = query_rules.started(
            record, fragment.owner, fragment_id, 1, FlightAddress("127.0.0.1", 1), output_schema="{}"
        )
    return query_rules.running(record, 1.0)


UNION = next(fragment_id for fragment_id, fragment in deploying().fragments.items() if not fragment.spec.pinned)
SINK = next(fragment_id for fragment_id, fragment in deploying().fragments.items() if fragment.spec.sink)


def test_a_move_is_committed_by_the_claim_of_its_target() -> None:
    record = query_rules.announce(running(), "a", UNION, 1, "b")
    record, granted = query_rules.claim(record, "b", UNION, 2)
    assert granted
    assert record.location(UNION).node_id == "b"
    assert record.location(UNION).generation == 2
    assert query_rules.claim(record, "a", UNION, 1)[1] is False
    assert record.move is not None  # the query stays locked until it runs there
    record = query_rules.started(record, "b", UNION, 2, FlightAddress("127.0.0.1", 2))
    assert query_rules.unlocked(record, UNION, 2).move is None


def test_a_claim_of_the_owner_revokes_a_move_for_good() -> None:
    record = query_rules.announce(running(), "a", UNION, 1, "b")
    record, granted = query_rules.claim(record, "a", UNION, 1)
    assert granted
    assert query_rules.claim(record, "b", UNION, 2)[1] is False
    record = query_rules.announce(record, "a", UNION, 1, "b")
    assert record.move is not None
    assert record.move.generation == 3  # 2 is never granted again
    assert query_rules.claim(record, "b", UNION, 2)[1] is False


def test_moves_that_cannot_be_are_refused_with_their_reason() -> None:
    record = running()
    with pytest.raises(SbonError, match="pinned"):
        query_rules.announce(record, "c", SINK, 1, "a")
    with pytest.raises(SbonError, match="runs there already"):
        query_rules.announce(record, "a", UNION, 1, "a")
    with pytest.raises(StaleGenerationError):
        query_rules.announce(record, "b", UNION, 1, "a")
    with pytest.raises(SbonError, match="is deploying"):
        query_rules.announce(deploying(), "a", UNION, 1, "b")
    with pytest.raises(SbonError, match="has no fragment"):
        query_rules.announce(record, "a", "q1-join7", 1, "b")
    moving = query_rules.announce(record, "a", UNION, 1, "b")
    with pytest.raises(SbonError, match="is moving now"):
        query_rules.announce(moving, "a", UNION, 1, "c")


def test_a_query_is_finished_with_its_sink_and_then_belongs_to_nobody() -> None:
    record = query_rules.finished(running(), "a", UNION, 1)
    assert record.status is QueryStatus.RUNNING
    record = query_rules.finished(record, "c", SINK, 1)
    assert record.status is QueryStatus.FINISHED
    assert query_rules.claim(record, "a", UNION, 1)[1] is False
    assert not query_rules.owns(record, "a", UNION, 1)
    assert query_rules.ended(record, QueryStatus.CANCELLED).status is QueryStatus.FINISHED


def test_an_assignment_has_everything_a_host_needs() -> None:
    assignment = running().assignment(UNION)
    assert assignment.keepers == ("c",)
    assert [location.node_id for location in assignment.producers] == ["a", "b"]
    assert len(assignment.consumers) == 1
    assert assignment.consumers[0].startswith(f"{SINK}:")
    with pytest.raises(SbonError, match="has not started yet"):
        deploying().assignment(UNION)


def test_moves_are_remembered_once() -> None:
    report = MoveReport("q1", UNION, 2, "a", "b", "why", 10, 1.0, {})
    record = query_rules.moved(query_rules.moved(running(), report, 5.0), report, 6.0)
    assert record.moves == (report,)
    assert record.last_move_at_s == 5.0


def test_a_record_survives_the_disk() -> None:
    record = query_rules.announce(running(), "a", UNION, 1, "b")
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(record), type=QueryRecord) == record


def test_what_has_not_started_is_not_taken_over() -> None:
    """A new plan is begun beside a query that runs, and its engines may be cold."""
    record = msgspec.structs.replace(running(), keepers=HOSTS)
    fragment = record.fragment(UNION)
    assert query_rules.is_leased(record, fragment)
    assert not query_rules.is_leased(record, msgspec.structs.replace(fragment, output_schema=None))


def _fragment(raw: Any) -> Any:
    return raw["fragments"][UNION]


MALFORMED: dict[str, Callable[[Any], object]] = {
    "no keepers": lambda raw: raw.update(keepers=[]),
    "too many keepers": lambda raw: raw.update(keepers=[str(number) for number in range(17)]),
    "no fragments": lambda raw: raw.update(fragments={}, links=[]),
    "another name": lambda raw: raw["fragments"].update(other=raw["fragments"].pop(UNION)),
    "another query": lambda raw: raw.update(query_id="q2"),
    "a path": lambda raw: raw["fragments"].update({"../x": _fragment(raw) | {"spec": _spec("../x")}}),
    "nothing to read": lambda raw: _fragment(raw)["spec"]["ports"][0].update(producers=[]),
    "a producer that is nowhere": lambda raw: _fragment(raw)["spec"]["ports"][0].update(producers=["q1-join9"]),
    "a sink that reads nothing": lambda raw: raw["fragments"][SINK]["spec"].update(ports=[]),
    "a link from nowhere": lambda raw: raw["links"][0].update(source="q1-join9"),
    "a link to nowhere": lambda raw: raw["links"][0].update(target="q1-join9"),
    "a rate that is none": lambda raw: raw["links"][0].update(rate_bytes_per_s=math.nan),
    "a reader of nothing": lambda raw: raw.update(readers={"q2-sink1:in0": _reader("q1-join9", "c")}),
    "a reader without keepers": lambda raw: raw.update(readers={"q2-sink1:in0": _reader(UNION)}),
    "a plan without fragments": lambda raw: raw.update(new_plan={"changes": [], "fragments": []}),
    "the last generation": lambda raw: _fragment(raw).update(granted=2**64 - 1),
    "a negative generation": lambda raw: _fragment(raw).update(generation=-1),
}


def _spec(fragment_id: str) -> dict[str, object]:
    return {"fragment_id": fragment_id, "query_id": "q1", "kind": "filter", "sql": ""}


def _reader(fragment_id: str, *keepers: str) -> dict[str, object]:
    return {"fragment_id": fragment_id, "query_id": "q2", "keepers": keepers}


@pytest.mark.parametrize("how", MALFORMED)
def test_a_record_that_does_not_hang_together_is_refused_where_it_is_decoded(how: str) -> None:
    """A member may send one to any node, and have it named as a keeper: what works with records has no way out."""
    raw = msgspec.msgpack.decode(msgspec.msgpack.encode(running()))
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(raw), type=QueryRecord) == running()
    MALFORMED[how](raw)
    with pytest.raises(msgspec.ValidationError):
        msgspec.msgpack.decode(msgspec.msgpack.encode(raw), type=QueryRecord)


def test_a_change_that_would_make_a_record_malformed_is_refused_like_any_other() -> None:
    record = running()
    with pytest.raises(SbonError, match="cannot be kept"):
        query_rules.with_keepers(record, (), 0)
    last = msgspec.structs.replace(record.fragment(UNION), granted=2**53 - 1)
    record = msgspec.structs.replace(record, fragments={**record.fragments, UNION: last})
    with pytest.raises(SbonError, match="out of range"):
        query_rules.announce(record, "a", UNION, 1, "b")


MOSTLY = st.sampled_from((True, True, True, False))


class Host:
    """A host as far as ownership goes: what is on its disk, and what it knows since its start."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.disk: HostingRecord | None = None
        self.confirmed = False
        self.granted: Assignment | None = None  # of a move that it conducts
        self.target = ""

    @property
    def runs(self) -> bool:
        return self.disk is not None and self.disk.phase is Phase.RUNNING and self.confirmed

    @property
    def generation(self) -> int:
        assert self.disk is not None
        return self.disk.assignment.generation

    def has_it(self) -> bool:
        return self.disk is not None

    def may_settle(self) -> bool:
        return self.disk is not None and not self.runs

    def may_announce(self) -> bool:
        return self.runs and self.granted is None

    def may_stop(self) -> bool:
        return self.runs and self.granted is not None

    def may_ship(self) -> bool:
        return self.disk is not None and self.disk.phase is Phase.STOPPING and self.granted is not None


class Ownership(RuleBasedStateMachine):
    """One fragment, three hosts, one keeper. Any message or answer may be lost, late or doubled; any host may crash.

    The steps are those of :mod:`daemon.fragments.hosting` and :mod:`daemon.fragments.migration`, one at a time.
    """

    @initialize()
    def deploy(self) -> None:
        self.record = running()
        self.hosts = {name: Host(name) for name in HOSTS}
        self.late_claims: list[tuple[str, int]] = []
        self.late_folders: list[tuple[str, Assignment]] = []
        self.hosts["a"].disk = HostingRecord("a", self.record.assignment(UNION))
        self._claim(self.hosts["a"], answered=True)

    def _claim(self, host: Host, answered: bool) -> None:
        assert host.disk is not None
        self.record, granted = query_rules.claim(self.record, host.name, UNION, host.generation)
        self.late_claims.append((host.name, host.generation))
        if not answered:
            return
        if granted:
            host.disk = host.disk.to(Phase.RUNNING, self.record.assignment(UNION))
            host.confirmed = True
        else:
            host.disk, host.confirmed, host.granted = None, False, None

    def _those(self, condition: Callable[[Host], bool]) -> list[Host]:
        return [host for host in self.hosts.values() if condition(host)]

    @precondition(lambda self: self._those(Host.may_settle))
    @rule(data=st.data(), answered=MOSTLY)
    def claim(self, data: st.DataObject, answered: bool) -> None:
        """Settling, after a restart or a failed move; not while it runs."""
        host = data.draw(st.sampled_from(self._those(Host.may_settle)))
        host.granted = None
        self._claim(host, answered)

    @rule(data=st.data())
    def late_claim(self, data: st.DataObject) -> None:
        """A claim that was sent before arrives (again); nobody waits for its answer any more."""
        name, generation = data.draw(st.sampled_from(self.late_claims))
        self.record, _ = query_rules.claim(self.record, name, UNION, generation)

    @precondition(lambda self: self.record.move is None and self._those(Host.may_announce))
    @rule(data=st.data(), answered=MOSTLY)
    def announce(self, data: st.DataObject, answered: bool) -> None:
        host = data.draw(st.sampled_from(self._those(Host.may_announce)))
        to = data.draw(st.sampled_from([name for name in HOSTS if name != host.name]))
        self.record = query_rules.announce(self.record, host.name, UNION, host.generation, to)
        assert self.record.move is not None
        if answered:
            host.granted = self.record.assignment(UNION, self.record.move.generation)
            host.target = to

    @precondition(lambda self: self._those(Host.may_stop))
    @rule(data=st.data())
    def stop(self, data: st.DataObject) -> None:
        host = data.draw(st.sampled_from(self._those(Host.may_stop)))
        assert host.disk is not None
        host.disk = host.disk.to(Phase.STOPPING)
        host.confirmed = False

    @precondition(lambda self: self._those(Host.may_ship))
    @rule(data=st.data())
    def ship(self, data: st.DataObject) -> None:
        """The folder leaves; it may arrive now, late, twice or never."""
        host = data.draw(st.sampled_from(self._those(Host.may_ship)))
        assert host.granted is not None
        self.late_folders.append((host.target, host.granted))

    @precondition(lambda self: self.late_folders)
    @rule(data=st.data(), answered=MOSTLY)
    def accept(self, data: st.DataObject, answered: bool) -> None:
        target, assignment = data.draw(st.sampled_from(self.late_folders[-2:]))
        host = self.hosts[target]
        if host.disk is not None:
            if host.generation >= assignment.generation or host.granted is not None:
                return
            host.confirmed = False
            self._claim(host, answered=True)  # making way
            if host.disk is not None:
                return
        host.disk = HostingRecord(target, assignment)
        self._claim(host, answered)

    @precondition(lambda self: self._those(Host.has_it))
    @rule(data=st.data())
    def crash(self, data: st.DataObject) -> None:
        host = data.draw(st.sampled_from(self._those(Host.has_it)))
        host.confirmed = False
        host.granted = None

    @precondition(lambda self: self.record.move is not None)
    @rule(expires=st.booleans())
    def unlock(self, expires: bool) -> None:
        """The keeper hears that a move has arrived, or waits no longer, or is restarted."""
        self.record = msgspec.msgpack.decode(msgspec.msgpack.encode(self.record), type=QueryRecord)
        self.record = query_rules.unlocked(self.record, UNION, self.record.fragment(UNION).generation)
        if expires:
            self.record = query_rules.expired(self.record)

    @invariant()
    def runs_at_most_once_and_where_the_keeper_says(self) -> None:
        runners = [host for host in self.hosts.values() if host.runs]
        assert len(runners) <= 1
        owner = self.record.fragment(UNION)
        for host in runners:
            assert (host.name, host.generation) == (owner.owner, owner.generation)

    @invariant()
    def is_never_lost(self) -> None:
        """Whoever the keeper says is the owner has the folder."""
        owner = self.record.fragment(UNION)
        host = self.hosts[owner.owner]
        assert host.disk is not None
        assert host.generation == owner.generation


Ownership.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestOwnership = Ownership.TestCase
