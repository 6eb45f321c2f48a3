from __future__ import annotations

from typing import Any

from daemon.config import PlacementConfig
from daemon.peering.host_messages import MeasuredPaths, TellMeasuredPaths
from daemon.placing import Placing
from sbon.placement.questions import Known, TellKnownPaths
from tests.daemon.fake_network import FakeNetwork


async def test_only_what_a_node_says_of_itself_counts() -> None:
    network = FakeNetwork()
    me, *others = (network.add(name) for name in ("me", "honest", "liar"))
    honest = others[0].overlay.record

    async def tell(_message: TellMeasuredPaths, _sender: str) -> MeasuredPaths:
        return MeasuredPaths(honest, ())

    for peers in others:
        peers.handle(TellMeasuredPaths, tell)
    answer: Any = await Placing(me, PlacementConfig())._answer(TellKnownPaths(("honest", "liar")))
    assert answer == {"honest": Known(honest, ())}
