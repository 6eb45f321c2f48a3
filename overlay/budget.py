"""How many bytes a node may send of each kind of traffic, whatever others ask of it.

At rest a node sends some 1 kB/s in all. These limits are for what is not rest: a flood of requests, an overlay that
starts as a whole, an error of ours. Each kind has a token bucket of its own, so that searches, say, never take away
from signs of life. What is over the budget is dropped and counted, as if the network had lost it: all protocols here
bear that.
"""

from __future__ import annotations

from typing import Final

from overlay.bucket import Bucket
from overlay.messages import (
    Beat,
    Exchange,
    ExchangeReply,
    Join,
    JoinReply,
    Leave,
    LinkReply,
    LinkRequest,
    Message,
    Newcomer,
    Ping,
    Pong,
    Relay,
    Relayed,
    SearchReply,
    SearchRequest,
    Surroundings,
    Unlink,
)

#: In bytes per second, sealing included: probes and checks, news of ourselves and of others, searches.
BYTES_PER_S: dict[str, float] = {"probing": 16_000.0, "membership": 16_000.0, "search": 64_000.0}
#: A bucket holds what comes together in so long a time: checks of all neighbours at once need 40 kB.
BURST_S: Final = 8.0

TRAFFIC_OF: dict[type[Message], str] = {
    Ping: "probing",
    Pong: "probing",
    Relay: "probing",
    Relayed: "probing",
    Beat: "membership",
    Join: "membership",
    JoinReply: "membership",
    LinkRequest: "membership",
    LinkReply: "membership",
    Unlink: "membership",
    Leave: "membership",
    Exchange: "membership",
    ExchangeReply: "membership",
    Newcomer: "membership",
    Surroundings: "membership",
    SearchRequest: "search",
    SearchReply: "search",
}


class Budget:
    """All buckets of one node."""

    def __init__(self, now: float) -> None:
        buckets = {traffic: Bucket(rate, rate * BURST_S, now) for traffic, rate in BYTES_PER_S.items()}
        self._bucket_of = {kind: buckets[traffic] for kind, traffic in TRAFFIC_OF.items()}

    def take(self, kind: type[Message], size_bytes: int, now: float) -> bool:
        """Whether a message of this kind may be sent now. Heartbeats need not ask: the links bound their number."""
        return self._bucket_of[kind].take(size_bytes, now)
