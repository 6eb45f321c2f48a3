"""The bodies of datagrams, one type per kind. Unknown fields are skipped, so that newer nodes may say more."""

from __future__ import annotations

import msgspec

from overlay.records import NodeRecord
from sbon.coordinate import Coordinate

MAX_REASON_LENGTH = 200


class Ping(msgspec.Struct, frozen=True):
    """A probe. It carries the sender's own record, so that probing alone already spreads fresh news."""

    nonce: int
    record: NodeRecord


class Pong(msgspec.Struct, frozen=True):
    """The answer to a ping. ``coordinate`` is the raw one, not rounded off for advertising.

    ``held_ms``: how long the ping waited in the answering process; it is no part of the path's round trip.
    """

    nonce: int
    record: NodeRecord
    coordinate: Coordinate
    held_ms: float


class Gossip(msgspec.Struct, frozen=True):
    """News about members, the sender perhaps among them."""

    records: tuple[NodeRecord, ...]


class Join(msgspec.Struct, frozen=True):
    """A wish to become a member, sent until it is answered with the same nonce."""

    nonce: int
    record: NodeRecord


class JoinAccepted(msgspec.Struct, frozen=True):
    """Welcome; gossip about the other members follows in datagrams of its own."""

    nonce: int
    record: NodeRecord


class JoinRefused(msgspec.Struct, frozen=True):
    """The joining node cannot be a member as it is configured; ``reason`` is one line for its user."""

    nonce: int
    reason: str


Message = Ping | Pong | Gossip | Join | JoinAccepted | JoinRefused

#: Name on the wire -> type of the body.
KINDS: dict[str, type[Message]] = {
    "ping": Ping,
    "pong": Pong,
    "gossip": Gossip,
    "join": Join,
    "join-accepted": JoinAccepted,
    "join-refused": JoinRefused,
}
KIND_OF: dict[type[Message], str] = {body_type: kind for kind, body_type in KINDS.items()}
