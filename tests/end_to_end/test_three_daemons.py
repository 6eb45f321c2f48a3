"""Three real daemons, real Spark, a real month of flights: moved, killed, and still exactly the batch result.

The month arrives as files that the test puts into folders, a part at a time, so that nothing here depends on how fast
the machine is.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
import trio

from daemon.demo.check import compare_with_reference, read_rows
from daemon.demo.scenario import FLIGHTS_SCHEMA, QUERY, WEATHER_SCHEMA, Scenario, replay
from sbon.streams import SinkSpec, StreamSpec
from tests.end_to_end.cluster import Cluster, Role, make_cluster_scenario, running_cluster
from tests.end_to_end.feed import JOINED, SENTINELS, Feed

pytestmark = pytest.mark.spark

EXPECTED_ROWS = 148
JOINED_SINK = ("joined", "joined")


@pytest.fixture
def feed(tmp_path: Path) -> Feed:
    for name in SENTINELS:
        (tmp_path / name).mkdir()
    return Feed(tmp_path)


@pytest.fixture
def scenario(tmp_path: Path, feed: Feed) -> Scenario:
    """``airport`` owns both streams and has no room, ``hub`` is near and has, ``office`` owns the sink."""

    def files(name: str, schema: str, rate_bytes_per_s: float) -> StreamSpec:
        options = {"path": str(tmp_path / name), "header": "true"}
        return StreamSpec(name, "csv", schema, "ts", options, rate_bytes_per_s=rate_bytes_per_s)

    sinks = tuple(
        SinkSpec(name, "parquet", {"path": str(tmp_path / path)}) for name, path in (("delays", "result"), JOINED_SINK)
    )
    streams = (files("flights", FLIGHTS_SCHEMA, 40_000), files("weather", WEATHER_SCHEMA, 4_000))
    roles = (Role("office", sinks=sinks), Role("hub"), Role("airport", accepts_operators=False, streams=streams))
    return make_cluster_scenario(tmp_path, roles, ((0.0, 60.0, 60.0), (60.0, 0.0, 20.0), (60.0, 20.0, 0.0)))


async def wait_for_rows(cluster: Cluster, query_id: str, count: int, folder: str = "result") -> None:
    """Until the sink has written ``count`` rows. SbonError if the query fails meanwhile."""
    while len(read_rows(cluster.scenario.result.with_name(folder))) < count:
        await cluster.check_runs(query_id)
        await trio.sleep(0.3)


async def check_result(scenario: Scenario, scratch: Path) -> None:
    whole = [
        replay("flights", FLIGHTS_SCHEMA, {}, rate_bytes_per_s=1, row_bytes=1),
        replay("weather", WEATHER_SCHEMA, {}, rate_bytes_per_s=1, row_bytes=1),
    ]
    verdict = await compare_with_reference(scenario.result, QUERY, whole, scratch)
    assert verdict.difference is None
    assert verdict.rows == EXPECTED_ROWS


async def read_the_join(cluster: Cluster, first: str) -> tuple[str, int | None]:
    """Submit a second query with the same join. Its id, and from when on it reads the first one's."""
    second = await cluster.submit(JOINED)
    assert {operator.kind for operator in (await cluster.operators(second)).values()} == {"sink"}
    reused = (await cluster.explain(second)).reused
    assert [(each.fragment_id, each.query_id) for each in reused] == [(f"{first}-join1", first)]
    return second, reused[0].from_ms


async def test_a_join_that_two_queries_read_and_an_aggregate_are_moved_and_lose_and_double_nothing(
    scenario: Scenario, feed: Feed, tmp_path: Path
) -> None:
    with trio.fail_after(500):
        async with running_cluster(scenario) as cluster:
            feed.put(1, 8)
            query_id = await cluster.submit(QUERY)
            placed = await cluster.operators(query_id)
            unpinned = [operator for operator in placed.values() if operator.kind in ("join", "aggregate")]
            assert {operator.node for operator in unpinned} == {"hub"}
            await wait_for_rows(cluster, query_id, 1)
            reader, from_ms = await read_the_join(cluster, query_id)
            for operator, days in zip(unpinned, ((8, 16), (16, 24)), strict=True):
                feed.put(*days)
                await cluster.migrate(operator.fragment_id, "office")
            moved = await cluster.operators(query_id)
            for operator in unpinned:
                assert moved[operator.fragment_id].node == "office"
                assert moved[operator.fragment_id].generation > operator.generation
            feed.put(24, 33, last=True)
            await wait_for_rows(cluster, query_id, EXPECTED_ROWS)
            await check_result(scenario, tmp_path)
            await cluster.cancel(query_id)
            # The other query goes on, and with it what it reads.
            feed.put_later()
            expected = feed.joined(from_ms)
            await wait_for_rows(cluster, reader, expected.total(), "joined")
            await until(lambda: has_operators(cluster, query_id, "join", "source", "source"))
            assert Counter(read_rows(tmp_path / "joined")) == expected
            assert from_ms is None or from_ms < max(at.timestamp() * 1000 for *_, at in expected)
            await cluster.cancel(reader)
            await until(lambda: has_operators(cluster, query_id))


async def has_operators(cluster: Cluster, query_id: str, *kinds: str) -> bool:
    return tuple(sorted(operator.kind for operator in (await cluster.operators(query_id)).values())) == kinds


async def until(condition: Callable[[], Awaitable[bool]]) -> None:
    while not await condition():
        await trio.sleep(0.5)


async def test_the_host_of_the_operators_is_lost_others_go_on_and_it_is_fenced_when_it_is_back(
    scenario: Scenario, feed: Feed, tmp_path: Path
) -> None:
    def folders(name: str, kind: str) -> set[str]:
        return {path.name for path in (scenario.site(name).folder / "state" / kind).iterdir()}

    with trio.fail_after(500):
        async with running_cluster(scenario) as cluster:
            feed.put(1, 12)
            query_id = await cluster.submit(QUERY)
            placed = await cluster.operators(query_id)
            unpinned = {fragment_id for fragment_id, at in placed.items() if at.kind in ("join", "aggregate")}
            await wait_for_rows(cluster, query_id, 1)

            async def are_replicated() -> bool:
                return {name.partition(".")[0] for name in folders("office", "replicas")} >= unpinned

            await until(are_replicated)
            feed.put(12, 22)
            await cluster.kill("hub")

            async def have_been_taken_over() -> bool:
                now = await cluster.operators(query_id)
                return all(now[fragment_id].node == "office" for fragment_id in unpinned)

            await until(have_been_taken_over)
            feed.put(22, 33, last=True)
            await wait_for_rows(cluster, query_id, EXPECTED_ROWS)
            await cluster.start("hub")

            async def is_fenced() -> bool:
                return folders("hub", "fragments") == set()

            await until(is_fenced)
            await cluster.cancel(query_id)
        await check_result(scenario, tmp_path)
