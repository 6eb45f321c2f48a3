"""FakeNetwork: requests between nodes of one process, delivered at once; nodes may be down and paths cut."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any, cast

from daemon.peering.peers import Peers
from overlay.records import NodeRecord
from sbon.coordinate import Coordinate
from sbon.errors import UnavailableError


class FakeNetwork:
    """``down`` are nodes, ``cut`` pairs of nodes (asker, asked)."""

    def __init__(self) -> None:
        self.nodes: dict[str, FakeRequests] = {}
        self.down: set[str] = set()
        self.cut: set[tuple[str, str]] = set()

    def add(self, node_id: str) -> Peers:
        """A node whose neighbours are all others."""
        place = Coordinate((0.0, 0.0), 1.0, 0.1)
        requests = FakeRequests(self, NodeRecord(node_id, node_id, "127.0.0.1", 1000, 1, place))
        self.nodes[node_id] = requests
        overlay = SimpleNamespace(
            record=requests.record,
            coordinate=place,
            members=lambda: [node.record for name, node in self.nodes.items() if name != node_id],
            find=lambda name: self.nodes[name].record if name in self.nodes else None,
        )
        return Peers(cast(Any, overlay), cast(Any, requests), cast(Any, None))


class FakeRequests:
    """One node's end."""

    def __init__(self, network: FakeNetwork, record: NodeRecord) -> None:
        self.record = record
        self._network = network
        self._handlers: dict[type, Callable[[Any, str], Awaitable[Any]]] = {}

    def handle(self, message_type: type, handler: Callable[[Any, str], Awaitable[Any]]) -> None:
        self._handlers[message_type] = handler

    async def request(self, node: NodeRecord, message: Any, _reply_type: type, _timeout_s: float = 0.0) -> Any:
        one, other, network = self.record.node_id, node.node_id, self._network
        if {one, other} & network.down or (one, other) in network.cut:
            raise UnavailableError(f"{other} does not answer")
        return await network.nodes[other]._handlers[type(message)](message, one)
