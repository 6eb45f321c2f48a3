"""One query with two sinks over whole daemons, engines of the fake kind."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from daemon.control.messages import Operators
from tests.daemon.test_queries import Cluster, eventually, running_cluster

SQL = (
    "INSERT INTO out SELECT ts, k FROM lefts UNION ALL SELECT ts, k FROM rights; "
    "INSERT INTO more SELECT k FROM (SELECT ts, k FROM rights UNION ALL SELECT ts, k FROM lefts) WHERE k <> 'x'"
)


async def kinds(cluster: Cluster, query_id: str) -> Counter[str]:
    async with cluster.client("left") as client:
        found = (await client.request(Operators())).operators
    return Counter(each.kind for each in found if each.query_id == query_id and each.state == "running")


async def test_a_query_with_two_sinks_runs_its_union_once_and_ends_with_both(tmp_path: Path) -> None:
    async with running_cluster(tmp_path) as cluster:
        query_id = await cluster.submit(SQL)

        async def runs() -> bool:
            return await kinds(cluster, query_id) == {"source": 2, "union": 1, "sink": 2}

        await eventually(runs)

        # Both sinks are on one node, so what the union puts out goes there once.
        union = f"{query_id}-union1"
        if union not in cluster.folders()["hub"]:
            await cluster.migrate(union, "hub")

        async def one_reads_through_the_other() -> bool:
            fragments = cluster.daemons["sink"].query_service.hosting.fragments
            return [[*each.relays] for each in fragments if "sink" in each.fragment_id] == [[], [union]]

        await eventually(one_reads_through_the_other)
        cluster.steer("sink", finish=True)

        async def has_finished() -> bool:
            return (await cluster.query(query_id)).state == "finished" and not any(cluster.folders().values())

        await eventually(has_finished)
