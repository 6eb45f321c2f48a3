"""Subscriptions at the keepers of both sides, by a clock that jumps; requests are delivered by a fake network."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import pytest
import trio
import trio.testing

from daemon.events import Events
from daemon.peering import query_rules
from daemon.peering.host_messages import ConnectTo, DerivedStream, ReleaseFragment
from daemon.peering.query_messages import FragmentReport, Location, QueryStatus, Reader, Report, Reported
from daemon.peering.query_record import QueryRecord
from daemon.peering.requests import Done
from daemon.peering.subscription_messages import AskOffered, ConsumersSet, Offered, ReadThrough, SetConsumers
from daemon.queries.keeper import Keeper
from daemon.queries.offers import Offers
from daemon.queries.record_keeping import RecordKeeping
from daemon.queries.subscribing import LEASES, LONGEST_PAUSE_S, Subscriptions
from sbon.engine_messages import FlightAddress, FragmentState, FragmentStatus
from sbon.errors import SbonError, UnavailableError
from sbon.fragment import Start
from tests.daemon.fake_network import FakeNetwork
from tests.daemon.test_sharing import reading, record

LEASE_S = 3.0
LASTS_S = LEASES * LEASE_S
KEEPERS, READERS = ("k1", "k2", "k3"), ("r1", "r2", "r3")
JOIN = "q0-join1"
CURSOR = "q1-aggregate1:in0"


@dataclass(frozen=True)
class Node:
    keeping: RecordKeeping
    keeper: Keeper
    subscriptions: Subscriptions
    offers: Offers
    events: Events


@dataclass
class World:
    """``q0`` is kept by k1 to k3, ``q1``, which reads its join, by r1 to r3; all fragments are on ``host``."""

    network: FakeNetwork
    nodes: dict[str, Node]
    released: list[str]

    def q0(self, at: str = "k1") -> QueryRecord:
        found = self.nodes[at].keeping.find("q0")
        assert found is not None
        return found

    async def change(self, query: QueryRecord) -> None:
        await self.nodes[query.keepers[0]].keeping.change(query.query_id, query.keepers, lambda _: query)

    async def subscribe(self, cursor: str, by: str, at: str = "r1") -> None:
        offered = Reader(JOIN, "q0", KEEPERS)
        await self.nodes[at].subscriptions.subscribe(offered, (cursor,), by, READERS)


def kept_by(query: QueryRecord, keepers: tuple[str, ...]) -> QueryRecord:
    """Its fragments run on ``host``."""
    fragments = {
        fragment_id: msgspec.structs.replace(
            fragment, output_schema="schema", owner="host", flight_address=FlightAddress("127.0.0.1", 1)
        )
        for fragment_id, fragment in query.fragments.items()
    }
    return msgspec.structs.replace(query, keepers=keepers, fragments=fragments)


@asynccontextmanager
async def world(folder: Path) -> AsyncIterator[World]:
    network = FakeNetwork()
    nodes = {}
    for name in (*KEEPERS, *READERS):
        peers, events = network.add(name), Events(name)
        keeping = RecordKeeping(peers, folder / name, LEASE_S, trio.current_time)
        keeper = Keeper(peers, keeping, events)
        subscriptions = Subscriptions(peers, keeping, keeper, events, LEASE_S, trio.current_time)
        nodes[name] = Node(keeping, keeper, subscriptions, Offers(peers, keeping, events), events)
    found = World(network, nodes, [])
    host = network.add("host")

    async def set_consumers(message: SetConsumers, _sender: str) -> ConsumersSet:
        return ConsumersSet(dict.fromkeys(message.assignment.consumers, Start(1, 1000)))

    async def release(message: ReleaseFragment, _sender: str) -> Done:
        found.released.append(message.fragment_id)
        return Done()

    async def read_through(_message: ReadThrough, _sender: str) -> Done:
        return Done()

    async def connect(_message: ConnectTo, _sender: str) -> Done:
        return Done()

    host.handle(SetConsumers, set_consumers)
    host.handle(ReleaseFragment, release)
    host.handle(ConnectTo, connect)
    host.handle(ReadThrough, read_through)
    async with trio.open_nursery() as nursery:
        for node in nodes.values():
            await nursery.start(node.keeping.run)
            await nursery.start(node.keeper.run)
            nursery.start_soon(node.subscriptions.run)
        await found.change(kept_by(record("q0"), KEEPERS))
        await found.subscribe(CURSOR, "q1")
        reader = kept_by(reading(), READERS)
        join = msgspec.structs.replace(reader.reused[JOIN], keepers=KEEPERS, location=Location(JOIN, 1, "host"))
        await found.change(msgspec.structs.replace(reader, reused={JOIN: join}))
        yield found
        nursery.cancel_scope.cancel()


async def test_who_is_silent_loses_its_subscription_and_stops_nobody_else(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    async with world(tmp_path) as there:
        await there.subscribe("q3-sink1:in0", "q3")  # nobody renews it
        await trio.sleep(0.9 * LASTS_S)
        assert there.q0().readers.keys() == {CURSOR, "q3-sink1:in0"}
        await trio.sleep(0.1 * LASTS_S + 2 * LONGEST_PAUSE_S)
        for keeper in KEEPERS:
            assert there.q0(keeper).readers.keys() == {CURSOR}
        assert there.q0().cursors(JOIN) == ("q0-aggregate1:in0", CURSOR)
        await there.nodes["k1"].keeper.end("q0", QueryStatus.CANCELLED)
        await trio.sleep(3 * LASTS_S)
        assert there.q0().readers.keys() == {CURSOR}
        assert there.released.count(JOIN) == 0
        assert "q0-aggregate1" in there.released

        # Whoever read it is gone without a word: it is an orphan now, and ends.
        there.network.down.update(READERS)
        await trio.sleep(LASTS_S + 2 * LONGEST_PAUSE_S)
        assert there.q0().is_over
        assert JOIN in there.released


async def test_what_a_single_keeper_does_not_hear_of_goes_on(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    async with world(tmp_path) as there:
        there.network.cut.update((reader, "k3") for reader in READERS)
        await trio.sleep(3 * LASTS_S)
        assert there.q0("k3").readers.keys() == {CURSOR}
        there.network.cut.update((reader, "k2") for reader in READERS)
        await trio.sleep(LASTS_S + 2 * LONGEST_PAUSE_S)
        assert there.q0("k1").readers == {}
        # The query that read it hears that it is gone, from those whom it reaches again, and says why it ends.
        there.network.cut.clear()
        await trio.sleep(2 * LONGEST_PAUSE_S)
        failed = there.nodes["r1"].keeping.find("q1")
        assert failed is not None
        assert failed.status is QueryStatus.FAILED
        assert "subscription has run out" in (failed.error or "")


OWN_CURSOR = "q0-aggregate1:in0"


async def report_waiting(there: World, **waited_for_s: float) -> None:
    """The host of the join says for whom others wait."""
    cursors = {"own": OWN_CURSOR, "other": CURSOR}
    waiting = {cursors[name]: waited_s for name, waited_s in waited_for_s.items()}
    status = FragmentStatus(JOIN, 1, FragmentState.RUNNING, waited_for_s=waiting)
    report = Report("q0", (FragmentReport(JOIN, 1, FlightAddress("127.0.0.1", 1), status),))
    nodes = there.network.nodes
    await nodes["host"].request(nodes["k2"].record, report, Reported)
    await trio.sleep(2 * LONGEST_PAUSE_S)


async def test_a_reader_that_does_not_read_is_waited_for_for_so_long_and_then_fails(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    async with world(tmp_path) as there:
        await report_waiting(there, own=0.9 * LASTS_S, other=0.9 * LASTS_S)
        assert there.q0().readers.keys() == {CURSOR}
        await report_waiting(there, other=1.1 * LASTS_S)
        await report_waiting(there, other=1.2 * LASTS_S)  # its host has not heard yet
        assert there.q0().readers == {}
        assert there.q0().status is QueryStatus.RUNNING
        failed = there.nodes["r1"].keeping.find("q1")
        assert failed is not None
        assert failed.status is QueryStatus.FAILED
        assert "did not read while others had to wait" in (failed.error or "")


async def test_a_query_that_does_not_read_what_others_do_fails_and_they_go_on(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    async with world(tmp_path) as there:
        await report_waiting(there, own=1.1 * LASTS_S)
        assert there.q0().status is QueryStatus.FAILED
        assert "q0-aggregate1 did not read q0-join1" in (there.q0().error or "")
        assert there.q0().cursors(JOIN) == (CURSOR,)
        assert JOIN not in there.released


async def test_readers_hear_where_a_fragment_is_now(tmp_path: Path, autojump_clock: trio.testing.MockClock) -> None:
    async with world(tmp_path) as there:
        await trio.sleep(2 * LEASE_S)  # its owner has not been heard of
        await there.change(query_rules.take_over(with_replica(there.q0()), JOIN, 1))
        started = query_rules.started(there.q0(), "spare", JOIN, 2, FlightAddress("127.0.0.1", 2))
        await there.change(started)
        await trio.sleep(2 * LONGEST_PAUSE_S)
        for reader in READERS:
            known = there.nodes[reader].keeping.find("q1")
            assert known is not None
            assert known.location(JOIN) == Location(JOIN, 2, "spare", FlightAddress("127.0.0.1", 2))


def with_replica(query: QueryRecord) -> QueryRecord:
    fragment = msgspec.structs.replace(query.fragment(JOIN), replicas=("spare",))
    return msgspec.structs.replace(query, fragments={**query.fragments, JOIN: fragment})


def offer(query: QueryRecord, **changes: Any) -> DerivedStream:
    """What the host of the join says of it."""
    computes = query.fragment(JOIN).spec.computes
    assert computes is not None
    return msgspec.structs.replace(DerivedStream(JOIN, "q0", computes, query.keepers, 0.0), **changes)


async def test_what_a_host_offers_is_believed_if_the_keepers_say_so(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    async with world(tmp_path) as there:
        offers, honest = there.nodes["r1"].offers, offer(there.q0())
        await offers.confirm(honest, "host")
        there.network.down.add("k3")
        await offers.confirm(honest, "host")
        assert offers.lies == 0

        async def vouch(_message: AskOffered, _sender: str) -> Offered:
            return Offered(honest.computes, ("host",))

        there.network.nodes["host"].handle(AskOffered, vouch)
        lies = [
            offer(there.q0(), computes=msgspec.structs.replace(honest.computes, body="flights1")),
            offer(there.q0(), keepers=("host",)),  # it vouches for itself
            offer(there.q0(), keepers=("host", "host", "host")),
            offer(there.q0(), keepers=("r1", "r2", "r3")),  # they know nothing of it
            offer(there.q0(), fragment_id="q0-join9"),
        ]
        for number, lie in enumerate(lies, start=1):
            with pytest.raises(SbonError, match=r"nobody else says of .* what host says"):
                await offers.confirm(lie, "host")
            assert offers.lies == number
        assert [event.kind for event in there.nodes["r1"].events.history()].count("offer-denied") == len(lies)

        there.network.down.add("k2")  # now nobody can tell
        with pytest.raises(UnavailableError, match="too few of the keepers"):
            await offers.confirm(honest, "host")
        assert offers.lies == len(lies)
