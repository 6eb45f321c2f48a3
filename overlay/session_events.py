"""What sessions hand back: what was received, and what became of handshakes."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from overlay.identity import NodeId
from overlay.records import Address


class Received(msgspec.Struct, frozen=True, gc=False):  # a struct: the one object made per datagram must be cheap
    """An authentic datagram."""

    sender: NodeId
    boot_id: int
    body: bytes


#: Why a handshake failed that was given up.
NO_ANSWER = "it does not answer"


@dataclass(frozen=True, slots=True)
class SessionOpened:
    """The node at ``address`` can be talked to. Comes again when its keys were renewed."""

    node_id: NodeId
    boot_id: int
    address: Address


@dataclass(frozen=True, slots=True)
class SessionFailed:
    """A handshake was given up, or a session had to be closed; ``reason`` is for the user."""

    address: Address
    node_id: NodeId | None
    reason: str


SessionEvent = SessionOpened | SessionFailed
