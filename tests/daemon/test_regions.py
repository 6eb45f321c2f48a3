"""The hierarchy of clusters among real daemons."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import trio

from daemon.config import RegionsConfig
from daemon.control.messages import Regions, RegionsReply
from sbon.errors import UnavailableError
from sbon.streams import StreamSpec
from tests.daemon.real_daemons import make_config
from tests.daemon.test_queries import Cluster, eventually

NAMES = ("a", "b", "c", "d")


@asynccontextmanager
async def cluster_of_four(folder: Path) -> AsyncIterator[Cluster]:
    """Each has a stream of its own."""
    configs = {
        name: msgspec.structs.replace(
            make_config(folder, name),
            regions=RegionsConfig(period_s=0.5),
            stream=(StreamSpec(f"{name}s", "replay", "ts TIMESTAMP", "ts"),),
        )
        for name in NAMES
    }
    async with trio.open_nursery() as nursery:
        cluster = Cluster(folder, configs, nursery)
        for name in NAMES:
            await cluster.start(name)
        await cluster.form()
        yield cluster
        nursery.cancel_scope.cancel()


async def regions(cluster: Cluster, at: str) -> RegionsReply | None:
    """None while it has no place."""
    async with cluster.client(at) as client:
        try:
            return await client.request(Regions())
        except UnavailableError:
            return None


async def test_all_are_in_one_cluster_and_the_standby_takes_over(tmp_path: Path) -> None:
    async with cluster_of_four(tmp_path) as cluster:

        async def formed() -> bool:
            replies = [await regions(cluster, name) for name in NAMES]
            return all(
                reply is not None
                and (reply.hosts, reply.height, reply.regions[-1].names) == (4, 1, ("as", "bs", "cs", "ds"))
                for reply in replies
            )

        await eventually(formed)
        before = await regions(cluster, "a")
        assert before is not None
        (region,) = before.regions
        assert region.takers == 4
        assert {member.name for member in region.members} == set(NAMES)
        await cluster.stop(region.coordinator)
        left = next(name for name in NAMES if name not in (region.coordinator, region.standby))

        async def taken_over() -> bool:
            reply = await regions(cluster, left)
            if reply is None:
                return False
            now = reply.regions[-1]
            return (now.coordinator, now.cluster, now.hosts) == (region.standby, region.cluster, 3)

        await eventually(taken_over)
