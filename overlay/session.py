"""One session with its replay window, and what handshakes leave behind while they are under way."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

from overlay.identity import NodeId
from overlay.records import Address
from overlay.session_events import NO_ANSWER
from overlay.suite import Channel, Claims

#: How far a datagram may be overtaken by others.
WINDOW: Final = 1024
_WINDOW_MASK: Final = (1 << WINDOW) - 1


class Session:
    """Keys, counters and a replay window; ``previous`` is the one that it replaced, for what is on its way."""

    __slots__ = (
        "address",
        "boot_id",
        "channel",
        "expires_at",
        "highest",
        "index",
        "missing",
        "name",
        "node_id",
        "previous",
        "remote_index",
        "renew_at",
        "sent",
        "tentative",
        "used_at",
    )

    def __init__(self, index: int, remote_index: int, address: Address, claims: Claims, channel: Channel) -> None:
        self.index = index
        self.remote_index = remote_index
        self.address = address
        self.node_id = claims.node_id
        self.boot_id = claims.boot_id
        self.name = claims.name
        self.expires_at = claims.expires_at
        self.channel = channel
        self.sent = 0
        #: Replay window: bit k of ``missing`` is set if the counter ``highest - k`` was not seen. It is mostly 0.
        self.highest = 0
        self.missing = 0
        self.used_at = -math.inf
        self.renew_at = -math.inf
        self.tentative = True
        self.previous: Session | None = None

    def mark(self, ahead: int) -> None:
        """Note that the counter ``highest + ahead`` was seen; it is within the window and was not seen before."""
        if ahead > 0:
            self.highest += ahead
            if ahead >= WINDOW:
                self.missing = _WINDOW_MASK - 1
            else:
                self.missing = (self.missing << ahead | (1 << ahead) - 2) & _WINDOW_MASK
            if self.highest < WINDOW:  # there were no counters below 1
                self.missing &= (1 << self.highest) - 1
        else:
            self.missing ^= 1 << -ahead


@dataclass(slots=True)
class Attempt:
    """A HELLO of ours. ``expected`` is whom we mean to meet, None for whoever is there."""

    index: int
    address: Address
    expected: NodeId | None
    hello: bytes
    salt: bytes
    give_up_at: float
    retry_at: float
    retry_after_s: float
    bad_answers: int = 0
    reason: str = NO_ANSWER


@dataclass(slots=True)
class Answer:
    """A HELLO of theirs, what it was answered with, and the tentative session."""

    hello: bytes
    welcome: bytes
    session: Session
    forget_at: float
