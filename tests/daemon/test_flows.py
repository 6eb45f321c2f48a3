"""What is measured takes the place of what was estimated; whole daemons, and engines of the fake kind."""

from __future__ import annotations

from pathlib import Path

import pytest

from daemon.control.messages import Explain, LinkInfo, Links, Status, Streams
from tests.daemon.test_queries import Cluster, eventually, running_cluster
from tests.daemon.test_reserving import ONE_EACH, cancel, room_at, union_of


async def links(cluster: Cluster) -> dict[str, LinkInfo]:
    """By the kind of the producer's stream; the union's own link is "union"."""
    async with cluster.client("hub") as client:
        return {link.source.partition("-")[2]: link for link in (await client.request(Links())).links}


async def test_placement_goes_by_estimates_until_all_links_are_measured(tmp_path: Path) -> None:
    async with running_cluster(tmp_path) as cluster:
        cluster.steer("hub", unmeasured="-source2")
        query_id = await cluster.submit()

        async def all_but_one() -> bool:
            return [link.bytes_per_s for link in (await links(cluster)).values()] == [1000.0, None, 1000.0]

        await eventually(all_but_one)
        before = await links(cluster)
        assert {(link.source_node, link.target_node) for link in before.values()} == {
            ("left", "hub"),
            ("right", "hub"),
            ("hub", "sink"),
        }
        assert not any(link.is_measured for link in before.values())
        for link in before.values():
            assert link.in_transit_bytes == pytest.approx(link.estimated_bytes_per_s * link.rtt_ms / 2000.0)
        cluster.steer("hub")

        async def all_of_them() -> bool:
            return all(link.is_measured for link in (await links(cluster)).values())

        await eventually(all_of_them)
        for link in (await links(cluster)).values():
            assert link.rows_per_s == 10.0
            assert link.in_transit_bytes == pytest.approx(1000.0 * link.rtt_ms / 2000.0)
        async with cluster.client("left") as client:
            explained = await client.request(Explain(query_id))
        assert explained.network_usage == pytest.approx(sum(link.in_transit_bytes for link in explained.links))
        await cancel(cluster, query_id)
        assert await links(cluster) == {}


async def test_a_stream_that_was_read_has_its_measured_rate_and_queries_to_come_start_from_that(tmp_path: Path) -> None:
    async with running_cluster(tmp_path) as cluster:
        cluster.steer("left", stream_rows_per_s=7.0)

        async def declared_or_measured() -> dict[str, tuple[float | None, bool]]:
            async with cluster.client("hub") as client:
                streams = (await client.request(Streams())).streams
            return {each.name: (each.rate_bytes_per_s, each.rate_is_measured) for each in streams}

        assert (await declared_or_measured())["lefts"] == (10_000.0, False)
        first = await cluster.submit()
        await eventually(cluster.all_running)
        estimated = (await links(cluster))["source1"].estimated_bytes_per_s

        async def is_measured() -> bool:
            return (await declared_or_measured())["lefts"] == (700.0, True)

        await eventually(is_measured)
        await cancel(cluster, first)
        await cluster.submit()
        anew = await links(cluster)
        assert anew["source1"].estimated_bytes_per_s == pytest.approx(0.07 * estimated)
        assert anew["source2"].estimated_bytes_per_s == pytest.approx(estimated)


async def test_what_operators_use_of_the_processors_is_what_they_take_of_a_host(tmp_path: Path) -> None:
    async with running_cluster(tmp_path, capacity=ONE_EACH) as cluster:
        first = await cluster.submit()
        assert await room_at(cluster, "hub") == pytest.approx(0.05)
        cluster.steer("hub", cpu_cores={"union": 0.03})

        async def has_more_room() -> bool:
            return await room_at(cluster, "hub") > 0.1

        await eventually(has_more_room)
        async with cluster.client("hub") as client:
            assert (await client.request(Status())).operators_cpu_cores == pytest.approx(0.03)

        async def is_reported() -> bool:
            return (await cluster.operators())["union"].cpu_cores == 0.03

        await eventually(is_reported)
        second = await cluster.submit(
            "INSERT INTO out SELECT ts, upper(k) AS k FROM lefts UNION ALL SELECT ts, k FROM rights"
        )
        assert {(await union_of(cluster, query_id))[1] for query_id in (first, second)} == {"hub"}
