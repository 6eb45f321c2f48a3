"""Where a fragment's next replica is: near, or where its state is already. What happens to it: test_failover.py."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest
import trio
import trio.testing

from daemon.fragments.replicating import DETOUR_MS, LOOK_PERIOD_S, Replicating, _Stay
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


async def test_a_snapshot_that_comes_while_one_is_shipped_does_not_wait_for_the_next_look(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """Windows close in a batch that follows at once on the one that has moved the watermark."""
    fragment = SimpleNamespace(fragment_id="f", up=True, confirmed=True, replication=Replication((), -1), snapshot="1")
    replicating = Replicating.__new__(Replicating)
    replicating._hosting = cast(Any, SimpleNamespace(fragments=[fragment]))
    replicating._busy, replicating._news, replicating._stays = set(), trio.Event(), {}
    shipped: dict[str, float] = {}

    async def look_after(fragment: Any, _stay: object) -> None:
        snapshot = fragment.snapshot
        await trio.sleep(0.1)
        shipped.setdefault(snapshot, trio.current_time())

    async def come() -> None:
        await trio.sleep(LOOK_PERIOD_S + 0.05)
        fragment.snapshot = "2"
        replicating._news.set()

    for name, fake in (("_look_after", look_after), ("_stay", lambda _: None), ("_sweep", trio.sleep_forever)):
        setattr(replicating, name, fake)
    with trio.move_on_after(3.0):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(replicating.run)
            nursery.start_soon(come)
    assert shipped["2"] - shipped["1"] == pytest.approx(0.1)


async def test_what_was_known_of_a_fragment_is_forgotten_when_it_has_gone(
    autojump_clock: trio.testing.MockClock,
) -> None:
    replicating = Replicating.__new__(Replicating)
    fragments = [SimpleNamespace(fragment_id=name, up=False) for name in ("stays", "goes")]
    replicating._hosting = cast(Any, SimpleNamespace(fragments=fragments))
    stays = {name: _Stay(Replication((), -1), StateCopies(), 0) for name in ("stays", "goes")}
    replicating._busy, replicating._news, replicating._stays = set(), trio.Event(), stays
    setattr(replicating, "_sweep", trio.sleep_forever)  # noqa: B010 (mypy: a method)
    del fragments[1]
    with trio.move_on_after(2.0 * LOOK_PERIOD_S):
        await replicating.run()
    assert replicating._stays.keys() == {"stays"}
