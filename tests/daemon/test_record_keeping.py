"""Shares of records, and what was reported on the queries in them, by a clock that jumps and over a fake network."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import msgspec
import pytest
import trio
from trio.testing import MockClock

from daemon.events import Events
from daemon.peering.keeper_messages import ForgetRecord, PrepareRecord
from daemon.peering.query_messages import FragmentReport, QueryStatus, Report, Reported
from daemon.peering.query_record import QueryRecord
from daemon.peering.requests import Done
from daemon.queries import record_keeping
from daemon.queries.keeper import FORGET_PERIOD_S, Keeper
from daemon.queries.record_keeping import PROMISES_LAST_S, RecordKeeping
from sbon.engine_messages import FragmentState, FragmentStatus, PortStatus
from sbon.errors import SbonError, UnavailableError
from sbon.ownership.register import Ballot
from tests.daemon.fake_network import FakeNetwork
from tests.daemon.full_disk import full_disk
from tests.daemon.test_sharing import KEEPERS, record

LEASE_S = 3.0


@dataclass
class World:
    """Nodes k1 to k3, which keep what is asked for, and ``host``, which keeps nothing."""

    folder: Path
    network: FakeNetwork
    keeping: dict[str, RecordKeeping]
    keepers: dict[str, Keeper]

    def files(self) -> list[int]:
        return [len(list((self.folder / name).iterdir())) for name in KEEPERS]

    async def ask(self, one: str, other: str, message: msgspec.Struct) -> msgspec.Struct:
        nodes = self.network.nodes
        reply = await nodes[one].request(nodes[other].record, message, msgspec.Struct)
        assert isinstance(reply, msgspec.Struct)
        return reply

    async def change(self, query: QueryRecord) -> None:
        await self.keeping["k1"].change(query.query_id, KEEPERS, lambda _: query)


@asynccontextmanager
async def world(folder: Path) -> AsyncIterator[World]:
    network = FakeNetwork()
    found = World(folder, network, {}, {})
    network.add("host")
    for name in KEEPERS:
        peers = network.add(name)
        found.keeping[name] = RecordKeeping(peers, folder / name, LEASE_S, trio.current_time)
        found.keepers[name] = Keeper(peers, found.keeping[name], Events(name))
    async with trio.open_nursery() as nursery:
        for name in KEEPERS:
            await nursery.start(found.keeping[name].run)
            await nursery.start(found.keepers[name].run)
        yield found
        nursery.cancel_scope.cancel()


async def test_a_keeper_whose_disk_is_full_counts_as_one_that_does_not_answer(
    tmp_path: Path, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with world(tmp_path) as there:
        with full_disk(monkeypatch), pytest.raises(UnavailableError, match="no majority of the keepers"):
            await there.change(record())
        await there.change(record())
        assert there.keeping["k1"].find("q1") == record()


# --- queries that never began


async def test_a_query_that_could_not_be_kept_is_forgotten(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with world(tmp_path) as there:
        there.network.down.update(("k2", "k3"))
        with pytest.raises(UnavailableError):
            await there.keepers["k1"].add(record())
        assert there.files() == [0, 0, 0]
        there.network.down.clear()
        await there.ask("k1", "k2", PrepareRecord("q1", Ballot(9, "k1")))
        await there.ask("host", "k2", ForgetRecord("q1"))
        assert there.files() == [0, 1, 0], "only who proposed it knows that it does not begin"
        await there.ask("k1", "k2", ForgetRecord("q1"))
        assert there.files() == [0, 0, 0]
        await there.change(record())
        assert there.files() == [1, 1, 1]


async def test_promises_of_which_nothing_came_make_room_after_a_while(
    tmp_path: Path, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(record_keeping, "MAX_RECORDS", 3)
    async with world(tmp_path) as there:
        await there.change(record())
        for number in (2, 3):
            await there.ask("host", "k1", PrepareRecord(f"q{number}", Ballot(1, "host")))
        await trio.sleep(0.9 * PROMISES_LAST_S)
        with pytest.raises(SbonError, match="keeps 3 queries already"):
            await there.ask("host", "k1", PrepareRecord("q4", Ballot(1, "host")))
        await there.ask("host", "k1", PrepareRecord("q3", Ballot(2, "host")))
        await trio.sleep(0.2 * PROMISES_LAST_S)
        await there.ask("host", "k1", PrepareRecord("q4", Ballot(1, "host")))
        assert sorted(path.stem for path in (tmp_path / "k1").iterdir()) == ["q1", "q3", "q4"]
        peers = FakeNetwork().add("k1")
        again = RecordKeeping(peers, tmp_path / "k1", LEASE_S, trio.current_time)
        assert again.find("q1") == record()


async def test_what_has_a_record_is_not_forgotten_however_old(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with world(tmp_path) as there:
        await there.change(record())
        await trio.sleep(2 * PROMISES_LAST_S)
        await there.ask("host", "k1", PrepareRecord("q2", Ballot(1, "host")))
        assert isinstance(await there.ask("k2", "k1", ForgetRecord("q1")), Done)
        assert there.keeping["k1"].find("q1") == record()


# --- reports


def report_on(fragment_id: str, producer: str, **rtt_ms: float) -> Report:
    status = FragmentStatus(fragment_id, 1, FragmentState.RUNNING, (PortStatus("in0", producer, 8.0, 1.0, 1),))
    return Report("q1", (FragmentReport(fragment_id, 1, None, status),), rtt_ms)


async def test_only_owners_say_how_far_it_is_to_hosts_of_their_query(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with world(tmp_path) as there:
        fragments = record().fragments
        elsewhere = msgspec.structs.replace(fragments["q1-source1"], owner="k2")
        await there.change(msgspec.structs.replace(record(), fragments={**fragments, "q1-source1": elsewhere}))
        flows = there.keepers["k1"].flows
        said = report_on("q1-join1", "q1-source1", k2=7.0, k3=7.0)
        await there.ask("k3", "k1", said)  # it runs nothing
        assert flows._rtt_ms == {}
        for rtt_ms in (7.0, math.nan, math.inf, -1.0):
            await there.ask("host", "k1", msgspec.structs.replace(said, rtt_ms={"k2": rtt_ms, "k3": rtt_ms}))
        assert flows._rtt_ms == {("host", "k2"): 7.0}
        assert flows.cost_view().rtt_ms("host", "k2") == 7.0


async def test_what_was_reported_is_forgotten_with_the_fragment_and_the_query(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with world(tmp_path) as there:
        await there.change(record())
        keeper, other = there.keepers["k1"], there.keepers["k2"]
        for name in ("k1", "k2"):
            reported = await there.ask("host", name, report_on("q1-join1", "q1-source1", host=0.0))
            assert isinstance(reported, Reported)
            await there.ask("host", name, report_on("q1-aggregate1", "q1-join1"))
        await trio.sleep(FORGET_PERIOD_S + 1.0)
        assert keeper._reports.keys() == {"q1-join1", "q1-aggregate1"}
        assert keeper.flows.rate("q1-source1", "q1-join1") == 8.0

        # A new plan does without the join.
        fragments = dict(record().fragments)
        released = {**fragments, "q1-join1": msgspec.structs.replace(fragments["q1-join1"], released=True)}
        await there.change(msgspec.structs.replace(record(), fragments=released))
        await trio.sleep(FORGET_PERIOD_S + 1.0)
        assert keeper._reports.keys() == {"q1-aggregate1"}
        assert keeper.flows.rate("q1-source1", "q1-join1") is None
        assert keeper.flows._rtt_ms == {("host", "host"): 0.0}

        over = {name: msgspec.structs.replace(each, released=True) for name, each in fragments.items()}
        ended = msgspec.structs.replace(record(), fragments=over, status=QueryStatus.FINISHED)
        await there.change(ended)
        await trio.sleep(FORGET_PERIOD_S + 1.0)
        assert other._reports.keys() == {"q1-aggregate1"}  # it is still shown
        await there.keeping["k1"].forget(ended)
        await trio.sleep(FORGET_PERIOD_S + 1.0)
        for each in (keeper, other):
            known = (each._reports, each.flows._measured, each.flows._rtt_ms, each.flows._said_for)
            assert not any(known)
