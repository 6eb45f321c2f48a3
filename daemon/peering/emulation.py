"""A wide-area network on one machine: what is sent to a peer is held back for half of a pretended round trip.

Both ends hold back their own half, so a probe and its answer take the whole of it, and so do a request and its reply.
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Callable, Iterable, Mapping

import trio

from overlay.records import Address, NodeRecord

#: Datagrams held back at once; past it new ones are dropped, as a full router would.
MAX_HELD = 10_000


class Emulation:
    """The round trips, in ms, from this node to peers, by node name or "HOST:PORT". Unnamed peers are not delayed."""

    def __init__(self, rtt_ms: Mapping[str, float], members: Callable[[], Iterable[NodeRecord]]) -> None:
        """``members`` tells who is there now, so that addresses and ids can be turned into names."""
        self._rtt_ms = dict(rtt_ms)
        self._members = members

    def set_rtt_ms(self, peer: NodeRecord, rtt_ms: float) -> None:
        """From now on, whatever name ``peer`` had here before."""
        self._rtt_ms.pop(_text(peer.address), None)
        self._rtt_ms[peer.name] = rtt_ms

    def one_way_s_to_address(self, address: Address) -> float:
        """How long to hold back what is sent to ``address``."""
        own = self._rtt_ms.get(_text(address))
        if own is not None:
            return own / 2000.0
        name = next((record.name for record in self._members() if record.address == address), None)
        return 0.0 if name is None else self._rtt_ms.get(name, 0.0) / 2000.0

    def one_way_s_to_node(self, node_id: str) -> float:
        record = next((record for record in self._members() if record.node_id == node_id), None)
        return 0.0 if record is None else self.one_way_s_to_address(record.address)


def _text(address: Address) -> str:
    return f"{address[0]}:{address[1]}"


class DelayLine:
    """Datagrams on their way: a heap by due time, emptied by :meth:`run`."""

    def __init__(self, send: Callable[[bytes, Address], None]) -> None:
        self._send = send
        self._held: list[tuple[float, int, bytes, Address]] = []
        self._order = itertools.count()
        self._sleep = trio.CancelScope()

    def put(self, data: bytes, address: Address, delay_s: float) -> bool:
        """Send after ``delay_s``; False if it was dropped because too much is held already."""
        if len(self._held) >= MAX_HELD:
            return False
        due = trio.current_time() + delay_s
        heapq.heappush(self._held, (due, next(self._order), data, address))
        if due < self._sleep.deadline:
            self._sleep.deadline = due
        return True

    async def run(self) -> None:
        """Send what is due, until cancelled."""
        while True:
            due = self._held[0][0] if self._held else math.inf
            with trio.CancelScope(deadline=due) as self._sleep:
                await trio.sleep_forever()
            while self._held and self._held[0][0] <= trio.current_time():
                _, _, data, address = heapq.heappop(self._held)
                self._send(data, address)
