"""Where a fragment's next replica is: near, or where its state is already. What happens to it: test_failover.py."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from daemon.fragments.replicating import DETOUR_MS, Replicating, _Stay
from daemon.fragments.state_copies import StateCopies
from sbon.ownership.replication import Replication

RTT_MS = {"near": 10.0, "left": 10.0 + DETOUR_MS, "far": 11.0 + DETOUR_MS}


@pytest.mark.parametrize(
    ("came_from", "chosen"),
    [(None, "near"), ("left", "left"), ("far", "near"), ("gone", "near"), ("weak", "near"), ("here", "near")],
)
async def test_a_replica_is_near_or_where_the_state_is(came_from: str | None, chosen: str) -> None:
    members = [SimpleNamespace(node_id=node_id, accepts_operators=node_id != "weak") for node_id in [*RTT_MS, "weak"]]
    replicating = Replicating.__new__(Replicating)
    replicating._peers = cast(
        Any,
        SimpleNamespace(
            node_id="here",
            overlay=SimpleNamespace(members=lambda: members),
            cost_view=lambda _: SimpleNamespace(rtt_ms=lambda _, node_id: RTT_MS[node_id]),
        ),
    )
    stay = _Stay(Replication((), -1), StateCopies(), 0)
    assert replicating._choose(stay, came_from) == chosen
    stay.avoid_until_s = {"near": float("inf"), "left": float("inf"), "far": float("inf")}
    assert replicating._choose(stay, came_from) is None
