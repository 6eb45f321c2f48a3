"""Room on hosts, over whole daemons with real sockets and engines of the fake kind."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
import trio

from daemon.config import CapacityConfig
from daemon.control.messages import Cancel, Operators
from daemon.peering.host_messages import Reserve, Reserved, RoomLeft, TellRoomLeft
from sbon.errors import SbonError, UnavailableError
from sbon.placement.capacity import Demand
from tests.daemon.test_queries import STAY, Cluster, eventually, running_cluster

#: For one operator each (0.1), and not for two.
ONE_EACH = {name: CapacityConfig(cpu_cores=0.15) for name in ("hub", "sink")}


def union_sql(number: int) -> str:
    """A query with a union that no other number's can be read for."""
    left, right = (f"SELECT ts, concat(k, '{number}') AS k FROM {name}" for name in ("lefts", "rights"))
    return f"INSERT INTO out {left} UNION ALL {right}"


async def union_of(cluster: Cluster, query_id: str) -> tuple[str, str]:
    """Fragment id and node."""
    async with cluster.client("sink") as client:
        operators = (await client.request(Operators())).operators
    return next((one.fragment_id, one.node) for one in operators if one.query_id == query_id and one.kind == "union")


async def cancel(cluster: Cluster, query_id: str) -> None:
    async with cluster.client("sink") as client:
        await client.request(Cancel(query_id))


async def room_at(cluster: Cluster, name: str) -> float:
    requests = cluster.daemons["left"].requests
    record = cluster.daemons[name].overlay.record
    return (await requests.request(record, TellRoomLeft(), RoomLeft)).room.cpu_cores


async def test_a_full_host_is_passed_over_until_something_has_left(tmp_path: Path) -> None:
    async with running_cluster(tmp_path, capacity=ONE_EACH) as cluster:
        first = await cluster.submit(union_sql(1))
        assert (await union_of(cluster, first))[1] == "hub"
        second = await cluster.submit(union_sql(2))
        fragment, node = await union_of(cluster, second)
        assert node == "sink"
        with pytest.raises(SbonError, match="hub has no room"):
            await cluster.migrate(fragment, "hub")
        assert await union_of(cluster, second) == (fragment, "sink")
        with pytest.raises(UnavailableError, match="room"):
            await cluster.submit(union_sql(3))
        await cancel(cluster, first)

        async def is_free() -> bool:
            return await room_at(cluster, "hub") > 0.1

        await eventually(is_free)
        await cluster.migrate(fragment, "hub")
        assert await union_of(cluster, second) == (fragment, "hub")

        async def has_left() -> bool:
            return abs(await room_at(cluster, "sink") - 0.15) < 1e-9

        await eventually(has_left)


async def test_under_optimal_they_are_counted_too(tmp_path: Path) -> None:
    placement = msgspec.structs.replace(STAY, strategy="optimal")
    async with running_cluster(tmp_path, placement, capacity=ONE_EACH) as cluster:
        nodes = [(await union_of(cluster, await cluster.submit(union_sql(number))))[1] for number in range(2)]
        assert nodes == ["hub", "sink"]


async def test_what_is_reserved_by_somebody_who_is_gone_ends_by_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sbon.placement.reservations.RESERVED_S", 1.0)
    async with running_cluster(tmp_path, capacity=ONE_EACH) as cluster:
        requests = cluster.daemons["left"].requests
        hub = cluster.daemons["hub"].overlay.record
        held = await requests.request(hub, Reserve("q1", {"q1-a": Demand(cpu_cores=0.1)}), Reserved)
        assert not held.refusal
        refused = await requests.request(hub, Reserve("q2", {"q2-a": Demand(cpu_cores=0.1)}), Reserved)
        assert "hub has no room for q2-a" in refused.refusal
        assert refused.room.cpu_cores < 0.1

        async def is_free() -> bool:
            return await room_at(cluster, "hub") > 0.1

        await eventually(is_free)
        cluster.steer("hub", refuse="union")
        with pytest.raises(SbonError, match="on hub: Spark refuses this"):
            await cluster.submit()
        cluster.steer("hub")
        await eventually(is_free)  # long before a committed reservation ends
        with trio.fail_after(60.0):
            assert (await union_of(cluster, await cluster.submit()))[1] == "hub"
