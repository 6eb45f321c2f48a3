"""The operators of a running query, looked at together by its keeper; real daemons, engines of the fake kind."""

from __future__ import annotations

from pathlib import Path

import pytest

from daemon.config import PlacementConfig
from daemon.fragments.local_optimizer import LocalOptimizer
from tests.daemon.real_daemons import PATIENCE_S
from tests.daemon.test_queries import eventually, running_cluster
from tests.daemon.test_reuse import SECOND, operators

#: However much paths tremble on a busy machine, a saving that is being confirmed is not forgotten.
AT_ONCE = PlacementConfig(replan_period_s=PATIENCE_S, rest_s=0.0, displacement_threshold_ms=1000.0)


async def test_the_keeper_moves_operators_that_hosts_leave_where_they_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def look_away(_: LocalOptimizer) -> None:
        pass

    monkeypatch.setattr(LocalOptimizer, "_evaluate_all", look_away)
    async with running_cluster(tmp_path, AT_ONCE) as cluster:
        query_id = await cluster.submit(SECOND)
        began = await operators(cluster, query_id)
        assert {began[kind].node for kind in ("join", "aggregate")} == {"hub"}
        service = cluster.daemons["sink"].query_service
        await service.replanning.look_at_all()
        assert "query-replanned" not in cluster.events("sink")

        await cluster.migrate(began["join"].fragment_id, "sink")

        async def join_is_back() -> bool:
            await service.replanning.look_at_all()
            return (await operators(cluster, query_id))["join"].node == "hub"

        await eventually(join_is_back)
        assert cluster.events("sink")["query-replanned"] == 1
