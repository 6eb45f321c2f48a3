"""Three real daemons, real Spark, a real month of flights: moved, killed, and still exactly the batch result."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio

from daemon.control_messages import OperatorInfo
from daemon.demo.check import compare_with_reference
from daemon.demo.scenario import FLIGHTS_SCHEMA, QUERY, WEATHER_SCHEMA, Scenario, replay
from sbon.streams import SinkSpec
from tests.end_to_end.cluster import Role, make_cluster_scenario, running_cluster

pytestmark = pytest.mark.spark

#: The month in some 90 s: a slow machine starts the operators and moves two of them meanwhile.
SPEEDUP = 30_000.0


@pytest.fixture
def scenario(tmp_path: Path) -> Scenario:
    """``airport`` owns both streams and has no room, ``hub`` is near and has, ``office`` owns the sink."""
    flights = replay("flights", FLIGHTS_SCHEMA, SPEEDUP, rate_bytes_per_s=40_000, row_bytes=40)
    weather = replay("weather", WEATHER_SCHEMA, SPEEDUP, rate_bytes_per_s=4_000, row_bytes=48)
    sink = SinkSpec("delays", "parquet", {"path": str(tmp_path / "result")})
    roles = (
        Role("office", sinks=(sink,)),
        Role("hub"),
        Role("airport", accepts_operators=False, streams=(flights, weather)),
    )
    rtt_ms = ((0.0, 60.0, 60.0), (60.0, 0.0, 20.0), (60.0, 20.0, 0.0))
    return make_cluster_scenario(tmp_path, roles, rtt_ms)


def flowing(operators: dict[str, OperatorInfo]) -> bool:
    """Rows have come out of the aggregate."""
    return any(operator.kind == "aggregate" and operator.output_rows > 0 for operator in operators.values())


async def test_a_join_and_an_aggregate_moved_by_hand_lose_and_double_nothing(
    scenario: Scenario, tmp_path: Path
) -> None:
    with trio.fail_after(400):
        async with running_cluster(scenario) as cluster:
            query_id = await cluster.submit(QUERY)
            placed = await cluster.operators(query_id)
            unpinned = [operator for operator in placed.values() if operator.kind in ("join", "aggregate")]
            assert {operator.node for operator in unpinned} == {"hub"}
            await cluster.wait_for(query_id, flowing)
            for operator in unpinned:
                await cluster.migrate(operator.fragment_id, "office")
            moved = await cluster.operators(query_id)
            for operator in unpinned:
                assert moved[operator.fragment_id].node == "office"
                assert moved[operator.fragment_id].generation > operator.generation
            await cluster.wait_until_finished(query_id)
        verdict = await compare_with_reference(scenario.result, QUERY, scenario.streams, tmp_path)
    assert verdict.difference is None
    assert verdict.rows == 148


async def test_the_host_of_the_operators_is_killed_and_started_again(scenario: Scenario, tmp_path: Path) -> None:
    with trio.fail_after(400):
        async with running_cluster(scenario) as cluster:
            query_id = await cluster.submit(QUERY)
            await cluster.wait_for(query_id, flowing)
            await cluster.kill("hub")
            await trio.sleep(3)
            await cluster.start("hub")
            await cluster.wait_until_finished(query_id)
        verdict = await compare_with_reference(scenario.result, QUERY, scenario.streams, tmp_path)
    assert verdict.difference is None
    assert verdict.rows == 148
