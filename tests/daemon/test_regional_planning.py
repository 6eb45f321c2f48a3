"""Queries planned by the coordinators of the hierarchy; real daemons, engines of the fake kind."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest
import trio

from daemon.config import Config, PlacementConfig, RegionsConfig
from daemon.queries.regional_planning import PartPlanned, PlanFromTop, PlanPart, RegionalPlanning
from overlay.records import NodeRecord
from overlay.regions import Regions
from sbon.coordinate import Coordinate
from sbon.errors import SbonError, UnavailableError
from sbon.planning.part import Given, Part, Spot, TakenLeaf
from tests.daemon import real_daemons, test_queries
from tests.daemon.fake_network import FakeNetwork
from tests.daemon.test_queries import Cluster, eventually, running_cluster
from tests.daemon.test_regions import regions

THREE = (
    "INSERT INTO out SELECT a.ts, b.k FROM lefts a [RANGE 1 MINUTE], rights b [RANGE 1 MINUTE], "
    "lefts c [RANGE 1 MINUTE] WHERE a.k = b.k AND b.k = c.k AND c.k = 'x'"
)
TOP_DOWN = PlacementConfig(period_s=1000.0, minimum_migration_saving=0.99, planner="top-down")


@asynccontextmanager
async def led_by_hub(folder: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Cluster]:
    """One cluster of all, led by the node in the middle, which owns no stream and no sink."""

    def make_config(folder: Path, name: str) -> Config:
        return msgspec.structs.replace(real_daemons.make_config(folder, name), regions=RegionsConfig(period_s=3.0))

    def middle(records: Sequence[NodeRecord]) -> NodeRecord:
        return next((record for record in records if record.name == "hub"), records[0])

    # Whatever a busy machine makes of the paths.
    monkeypatch.setattr("overlay.regions.medoid", middle)
    monkeypatch.setattr("overlay.regions.total_ms", lambda place, _: float(place.name != "hub"))
    monkeypatch.setattr("overlay.regions.REST", 0.5)
    monkeypatch.setattr(test_queries, "make_config", make_config)
    async with running_cluster(folder, TOP_DOWN) as cluster:

        async def hub_leads() -> bool:
            replies = [await regions(cluster, name) for name in cluster.daemons]
            return all(
                reply is not None and (reply.hosts, reply.regions[-1].coordinator) == (4, "hub") for reply in replies
            )

        await eventually(hub_leads)
        yield cluster


def stuck_at(monkeypatch: pytest.MonkeyPatch, name: str, method: str) -> trio.Event:
    """Planning never ends there; set when it has begun."""
    begun = trio.Event()
    original = getattr(RegionalPlanning, method)

    async def stuck(self: RegionalPlanning, *arguments: Any) -> PartPlanned:
        if self._peers.overlay.record.name == name:
            begun.set()
            await trio.sleep_forever()
        planned: PartPlanned = await original(self, *arguments)
        return planned

    monkeypatch.setattr(RegionalPlanning, method, stuck)
    return begun


def deciders(cluster: Cluster) -> list[object]:
    events = cluster.daemons["sink"].events.history()
    return [event.fields["decided_by"] for event in events if event.kind == "query-planned"]


async def stop_when(cluster: Cluster, begun: trio.Event, name: str) -> None:
    await begun.wait()
    await cluster.stop(name)


async def test_coordinators_and_owners_of_sinks_may_be_lost_while_they_plan(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with led_by_hub(tmp_path, monkeypatch) as cluster:
        hub_plans = stuck_at(monkeypatch, "hub", "_decide")
        roster = cluster.daemons["sink"].query_service.region_service.regions.roster(1)
        assert roster is not None
        assert roster.standby is not None
        async with trio.open_nursery() as nursery:
            nursery.start_soon(stop_when, cluster, hub_plans, "hub")
            query_id = await cluster.submit(THREE)
        assert deciders(cluster) == [[roster.standby.name]]

        async def runs() -> bool:
            query = await cluster.query(query_id)
            return (query.state, query.fragments) == ("running", 6)

        await eventually(runs)
        folders = cluster.folders()
        assert folders["hub"] == []

        sink_plans = stuck_at(monkeypatch, "sink", "plan")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(stop_when, cluster, sink_plans, "sink")
            with pytest.raises(SbonError, match="sink"):
                await cluster.submit(THREE.replace("'x'", "'y'"), at="left")
        assert cluster.folders() == folders


#: One stream, for a reader beside it.
PART = Part(1, (0.0, 1.0), (Spot("there", Coordinate((0.0, 0.0), 1.0, 0.1), takes=True),), (Given(1, 0),), 0, 1.0)


async def test_a_part_that_cannot_be_is_refused() -> None:
    network = FakeNetwork()
    asker, coordinator = network.add("asker"), network.add("coordinator")
    regions = Regions(lambda: coordinator.overlay.record, list, 4, 1.0, Random(1), 0.0)
    RegionalPlanning(coordinator, regions, 4, PlacementConfig())
    flat = Spot("there", Coordinate((0.0,), 1.0, 0.1), takes=True)
    for message in (PlanFromTop(PART), PlanPart(PART, 1)):
        planned = await asker.ask("coordinator", message, PartPlanned)
        assert planned.tree == TakenLeaf(0)
        for bad in ({"mask": 1 << 60}, {"target": -1}, {"spots": (flat,)}):
            part = msgspec.structs.replace(PART, **bad)
            with pytest.raises(UnavailableError, match="cannot be planned with"):
                await asker.ask("coordinator", msgspec.structs.replace(message, part=part), PartPlanned)


async def test_who_answers_with_what_is_no_plan_is_done_without() -> None:
    network = FakeNetwork()
    here, liar, standby = (network.add(name) for name in ("here", "liar", "standby"))

    async def lie(_message: PlanFromTop, _sender: str) -> PartPlanned:
        return PartPlanned(TakenLeaf(-1), 0.0, ("liar",))

    async def plan(message: PlanFromTop, _sender: str) -> PartPlanned:
        return PartPlanned(TakenLeaf(0), float(message.stands_in), ("standby",))

    liar.handle(PlanFromTop, lie)
    standby.handle(PlanFromTop, plan)
    roster = SimpleNamespace(coordinator=liar.overlay.record, standby=standby.overlay.record, level=1)
    regions = SimpleNamespace(is_top=False, led=0, roster=lambda _level: roster)
    planned = await RegionalPlanning(here, cast(Any, regions), 4, PlacementConfig()).plan(PART)
    assert planned == PartPlanned(TakenLeaf(0), 1.0, ("standby",))
