"""A running query gets another plan; real daemons, engines of the fake kind."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from daemon.config import PlacementConfig
from daemon.control.messages import OperatorInfo, Operators
from daemon.peering.query_messages import QueryView
from daemon.queries.join_planning import JoinPlanning
from daemon.queries.plan_changing import PlanChanging
from sbon.errors import SbonError
from sbon.fragment import Switch
from sbon.planning.problem import Join, Tree, Use
from tests.daemon.real_daemons import PATIENCE_S
from tests.daemon.test_queries import Cluster, eventually, running_cluster
from tests.daemon.test_reuse import consumers, spec

SQL = (
    "INSERT INTO out SELECT a.ts, b.k FROM lefts a [RANGE 1 MINUTE], rights b [RANGE 1 MINUTE], "
    "lefts c [RANGE 1 MINUTE] WHERE a.k = b.k AND b.k = c.k AND c.k = 'x'"
)
#: With a second sink.
SQL = f"{SQL}; {SQL.replace('INTO out', 'INTO more')} AND b.k <> 'y'"
#: Nothing moves by itself.
STAY = PlacementConfig(period_s=1000.0, minimum_migration_saving=0.99, rest_s=0.0, replan_period_s=PATIENCE_S)


class Orders:
    """Instead of the planner: joins the streams in an order that is told."""

    def __init__(self) -> None:
        self.last = 2

    async def choose(self, _planning: JoinPlanning, problem: Any) -> tuple[Tree, float, list[str]]:
        first, second = (number for number in range(3) if number != self.last)
        hosts = problem.query.hosts
        inner = Join(1 << first | 1 << second, 0, Use(1 << first, hosts[first]), Use(1 << second, hosts[second]))
        return Join(7, 0, inner, Use(1 << self.last, hosts[self.last])), 0.0, []


@pytest.fixture
def orders(monkeypatch: pytest.MonkeyPatch) -> Orders:
    orders = Orders()
    monkeypatch.setattr(JoinPlanning, "_choose", lambda *arguments: orders.choose(*arguments))
    # Whatever is new is cheaper.
    monkeypatch.setattr(PlanChanging, "_cost_now", lambda *_: 1e12)
    return orders


async def operators(cluster: Cluster) -> dict[str, OperatorInfo]:
    async with cluster.client("sink") as client:
        return {each.fragment_id: each for each in (await client.request(Operators())).operators}


async def view(cluster: Cluster, query_id: str) -> QueryView:
    return await cluster.daemons["sink"].query_service.view(query_id)


async def submitted(cluster: Cluster) -> str:
    query_id = await cluster.submit(SQL)

    async def measured() -> bool:
        return (await view(cluster, query_id)).is_measured

    await eventually(measured)
    return query_id


async def look(cluster: Cluster) -> None:
    await cluster.daemons["sink"].query_service.replanning.look_at_all()


async def look_until(cluster: Cluster, condition: Callable[[], bool]) -> None:
    """A busy machine does not answer in time now and then: then nothing comes of a look."""

    async def looked() -> bool:
        if not condition():
            await look(cluster)
        return condition()

    await eventually(looked)


async def connected(cluster: Cluster, producers: tuple[str, ...]) -> bool:
    """As the sink's engine says."""
    statuses = cluster.daemons["sink"].query_service.supervisor
    found = [statuses.status(each) for each in cluster.folders()["sink"] if "sink" in each]
    return any(status is not None and {port.producer for port in status.ports} == {*producers} for status in found)


async def test_a_running_query_gets_another_plan_or_keeps_its_own_whatever_is_killed(
    tmp_path: Path, orders: Orders, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running_cluster(tmp_path, STAY) as cluster:
        query_id = await submitted(cluster)
        sink_id, old = f"{query_id}-sink1", {f"{query_id}-join1", f"{query_id}-join2"}
        before = await operators(cluster)
        await look(cluster)
        assert cluster.events("sink")["query-replanned"] == 0, "the same plan once more is no other plan"

        async def all_as_before() -> bool:
            now = await view(cluster, query_id)
            hosted = {each for folders in cluster.folders().values() for each in folders}
            readers = consumers(cluster, "right", f"{query_id}-source2")
            return (
                now.new_plan is None
                and (await operators(cluster)).keys() == before.keys() == hosted
                and readers == (f"{query_id}-join1:in1",)
            )

        # It does not start.
        orders.last = 0
        for name in ("hub", "sink"):
            cluster.steer(name, refuse="join")
        await look_until(cluster, lambda: cluster.events("sink")["plan-failed"] > 0)
        await eventually(all_as_before)
        for name in ("hub", "sink"):
            cluster.steer(name)

        # It runs, and before that was decided the daemon ends.
        keeper = cluster.daemons["sink"].query_service.keeper
        with monkeypatch.context() as patch:
            patch.setattr(keeper, "decide_plan", ended)
            patch.setattr(keeper, "call_off_plan", ended)
            await look_until(cluster, lambda: keeper.record(query_id).new_plan is not None)
        begun = keeper.record(query_id).new_plan
        assert begun is not None
        assert {*begun.fragments} < (await operators(cluster)).keys()
        with pytest.raises(SbonError, match="is being planned anew"):
            await cluster.migrate(min(old), "sink")
        await cluster.stop("sink")
        await cluster.start("sink")

        async def called_off() -> bool:
            await look(cluster)
            return (await view(cluster, query_id)).new_plan is None

        orders.last = 2
        await eventually(called_off)
        await eventually(all_as_before)

        async def measured() -> bool:
            return (await view(cluster, query_id)).is_measured

        # It is decided, and then the daemon ends, and the engine. Both plans run, over the same sources.
        await eventually(measured)
        cluster.steer("sink", lagging=True)
        orders.last = 0
        keeper = cluster.daemons["sink"].query_service.keeper
        await look_until(cluster, lambda: keeper.record(query_id).new_plan is not None)
        plan = keeper.record(query_id).new_plan
        assert plan is not None
        assert plan.decided
        new = plan.fragments[-1]
        switch = Switch(f"{query_id}-join2", new, "ts", 61_000)  # a minute after the start
        assert [(each.consumer, each.switch) for each in plan.changes] == [
            (sink_id, switch),
            (f"{query_id}-sink2", switch),
        ]
        await eventually(lambda: reads(cluster, sink_id, f"{query_id}-join2", new))
        assert sum("source" in each for each in await operators(cluster)) == 3
        await cluster.stop("sink")
        await cluster.start("sink")
        await eventually(lambda: reads(cluster, sink_id, f"{query_id}-join2", new))
        cluster.steer("sink")
        await eventually(lambda: reads(cluster, sink_id, new))
        hello = cluster.daemons["sink"].query_service.supervisor.hello
        assert hello is not None
        os.kill(hello.pid, signal.SIGKILL)

        async def runs() -> bool:
            now = await view(cluster, query_id)
            links = {(link.source, link.target) for link in now.links}
            left = [each for each in now.fragments if not each.released]
            # Two of the joined streams are one: its source is read twice now.
            fed = len(links) == 6 and len(left) == 6 and all(old.isdisjoint(link) for link in links)
            return fed and now.new_plan is None and now.is_measured and all(each.state == "running" for each in left)

        await eventually(runs)
        await eventually(lambda: is_rid_of(cluster, old))

        # And once more, back to the first order.
        orders.last = 2
        keeper = cluster.daemons["sink"].query_service.keeper
        await look_until(cluster, lambda: keeper.record(query_id).fragment(sink_id).spec.port_changes == 4)
        await eventually(lambda: is_rid_of(cluster, {*plan.fragments}))
        await cluster.daemons["sink"].query_service.cancel(query_id)

        async def nothing_is_left() -> bool:
            return not any(cluster.folders().values())

        await eventually(nothing_is_left)


async def ended(*_: object) -> None:
    raise SbonError("the daemon has ended")


async def reads(cluster: Cluster, sink_id: str, *producers: str) -> bool:
    return spec(cluster, "sink", sink_id).ports[0].producers == producers and await connected(cluster, producers)


async def is_rid_of(cluster: Cluster, gone: set[str]) -> bool:
    return not gone & {each for folders in cluster.folders().values() for each in folders}
