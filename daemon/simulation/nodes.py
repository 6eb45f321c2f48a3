"""Making the nodes of a simulation, and reading them: the one place that knows how an Overlay is put together."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable
from dataclasses import dataclass

from daemon.simulation.plain_suite import FakeSuite
from overlay.config import OverlayConfig
from overlay.identity import NODE_ID_LENGTH, NodeId
from overlay.node import Overlay
from overlay.records import Address, NodeRecord
from overlay.sessions import Sessions
from sbon.coordinate import Coordinate, origin

#: What makes a node of what an Overlay is made of: Overlay itself, or a liar in its place.
Kind = Callable[[NodeRecord, OverlayConfig, random.Random, float, Sessions], Overlay]


@dataclass(frozen=True, slots=True)
class Identity:
    """Who runs at an endpoint: the same through all its restarts."""

    node_id: NodeId
    name: str
    address: Address
    load: float


def make_identity(seed: int, endpoint: int, address: Address) -> Identity:
    """Ids as if drawn from a hash of a key; loads mostly small, as of hosts that are not bought for one purpose."""
    node_id = hashlib.blake2b(f"{seed}/node/{endpoint}".encode(), digest_size=NODE_ID_LENGTH // 2).hexdigest()
    load = round(random.Random(f"{seed}/load/{endpoint}").random() ** 2, 3)
    return Identity(node_id, f"n{endpoint}", address, load)


def make_node(
    identity: Identity, boot_id: int, config: OverlayConfig, seed: int, clock: float, kind: Kind = Overlay
) -> Overlay:
    """A node that has just started, with sessions that are not sealed. ``clock`` is what its own clock shows."""
    record = NodeRecord(
        node_id=identity.node_id,
        name=identity.name,
        host=identity.address[0],
        port=identity.address[1],
        boot_id=boot_id,
        coordinate=origin(config.dimensions),
        load=identity.load,
    )
    rng = random.Random(f"{seed}/{identity.name}/{boot_id}")
    suite = FakeSuite(identity.node_id, boot_id, rng)
    sessions = Sessions(suite, identity.node_id, boot_id, rng, clock)
    return kind(record, config, rng, clock, sessions)


def advertised(node: Overlay) -> Coordinate:
    """The coordinate in the node's record as a third party has it: after its way over the wire."""
    coordinate = node.record.coordinate
    return Coordinate.from_bytes(coordinate.to_bytes(), coordinate.dimensions)
