"""Virtual time: a heap of (time, order, target, source, payload) that drives real overlay nodes.

An *endpoint* is an address, with a place in the network and a clock; at most one node runs there at a time. All that is
random about the network comes from one generator, so that a run replays byte for byte: :attr:`World.digest` runs over
target, time and bytes of every delivery.

The loop is written for speed: tuples on one heap, plain lists, no object per event; a wake-up is pushed again only when
the node wants to be woken earlier than it will be.
"""

from __future__ import annotations

import heapq
import math
import random
from collections.abc import Callable
from typing import Final, Protocol
from zlib import crc32

from daemon.simulation.faults import Conditions
from daemon.simulation.latency import Network
from overlay.events import Event
from overlay.node import Overlay
from overlay.records import Address
from overlay.session_wire import MAX_SEALED_BYTES

Action = Callable[[], None]
#: Target of what is not for a node: the payload is an action.
_NOBODY: Final = -1
#: A node that asks to be woken at once is, after this: a loop of wake-ups must not stop virtual time.
_AT_ONCE_S: Final = 1e-6


class Observer(Protocol):
    """Hears what happens at nodes, as it happens."""

    def happened(self, endpoint: int, event: Event, at: float) -> None: ...

    def broke(self, what: str, at: float) -> None:
        """Something that must never happen did: one line."""


class World:
    """Endpoints, the nodes that run there, and what is on its way between them."""

    def __init__(self, network: Network, conditions: Conditions, seed: int, observer: Observer) -> None:
        self.network = network
        self.conditions = conditions
        self.now = 0.0
        self.nodes: list[Overlay | None] = []
        self.addresses: list[Address] = []
        self.digest = 0
        self.deliveries = 0
        self.wakes = 0
        #: By endpoint, over all nodes that ran there.
        self.sent_bytes: list[int] = []
        self.sent_messages: list[int] = []
        self.received_bytes: list[int] = []
        self.received_messages: list[int] = []
        self._observer = observer
        self._endpoint_of: dict[Address, int] = {}
        #: By endpoint: the earliest wake-up on the heap, and when the node there wants to be woken.
        self._wake_at: list[float] = []
        self._wanted_at: list[float] = []
        self._heap: list[tuple[float, int, int, int, bytes | Action | None]] = []
        self._order = 0
        self._rng = random.Random(f"{seed}/datagrams")
        self._lossy = self._disturbed = False

    # --- endpoints

    def add_endpoint(self, like: int | None = None, *, rate: float = 1.0, offset_s: float = 0.0) -> int:
        """A place for a node, of its own or the very place of ``like`` under a new address; returns its index."""
        index = self.network.add_host() if like is None else self.network.add_host_like(like)
        number = index + 1
        address = (f"10.{number >> 16 & 255}.{number >> 8 & 255}.{number & 255}", 7400)
        self.nodes.append(None)
        self.addresses.append(address)
        self._endpoint_of[address] = index
        self._wake_at.append(math.inf)
        self._wanted_at.append(math.inf)
        for counts in (self.sent_bytes, self.sent_messages, self.received_bytes, self.received_messages):
            counts.append(0)
        self.conditions.add_endpoint(like, rate=rate, offset_s=offset_s)
        self.conditions_changed()
        return index

    def endpoint_of(self, address: Address) -> int | None:
        return self._endpoint_of.get(address)

    def conditions_changed(self) -> None:
        """To be called whenever somebody has changed :attr:`conditions`."""
        self._lossy = self.conditions.lossy
        self._disturbed = self.conditions.disturbed

    def clock(self, endpoint: int) -> float:
        """What the clock at the endpoint shows now."""
        return self.now * self.conditions.rate[endpoint] + self.conditions.offset_s[endpoint]

    def start(self, endpoint: int, node: Overlay) -> None:
        """Let ``node`` run there. Whatever ran there before is no more."""
        self.nodes[endpoint] = node
        self._wake_at[endpoint] = math.inf
        self.settle(endpoint)

    def stop(self, endpoint: int) -> None:
        """Without a word; datagrams to it come to nothing."""
        self.nodes[endpoint] = None
        self._wake_at[endpoint] = math.inf

    def settle(self, endpoint: int) -> None:
        """To be called after any verb of a node: send what it wants sent, and so on."""
        node = self.nodes[endpoint]
        if node is not None:
            self._settle(endpoint, node, self.now, self.clock(endpoint))

    # --- time

    def call_at(self, at: float, action: Action) -> None:
        """Call ``action`` at that time, now at the earliest."""
        self._order += 1
        heapq.heappush(self._heap, (max(at, self.now), self._order, _NOBODY, _NOBODY, action))

    def run(self, until: float) -> None:
        """Let everything happen up to and including that time."""
        heap, nodes, addresses = self._heap, self.nodes, self.addresses
        wake_at, wanted_at = self._wake_at, self._wanted_at
        rates, offsets, held_until = self.conditions.rate, self.conditions.offset_s, self.conditions.held_until
        received_bytes, received_messages = self.received_bytes, self.received_messages
        pop, push, settle = heapq.heappop, heapq.heappush, self._settle
        digest, deliveries = self.digest, self.deliveries
        while heap and heap[0][0] <= until:
            at, order, target, source, payload = pop(heap)
            self.now = at
            if target < 0:
                payload()  # type: ignore[operator,misc]
                continue
            node = nodes[target]
            if node is None:
                continue
            if at < held_until[target]:
                if payload is None:
                    if wake_at[target] != at:
                        continue
                    wake_at[target] = held_until[target]
                push(heap, (held_until[target], order, target, source, payload))
                continue
            clock = at * rates[target] + offsets[target]
            if payload is None:
                if wake_at[target] != at:
                    continue  # it is another node, or asked to be woken earlier, and was
                wanted = wanted_at[target]
                if wanted > at:
                    wake_at[target] = wanted
                    if wanted < math.inf:
                        push(heap, (wanted, order, target, target, None))
                    continue
                wake_at[target] = math.inf
                self.wakes += 1
                node.handle_timer(clock)
            else:
                digest = crc32(payload, (digest + target + int(at * 1e6)) & 0xFFFFFFFF)  # type: ignore[arg-type]
                deliveries += 1
                received_messages[target] += 1
                received_bytes[target] += len(payload)  # type: ignore[arg-type]
                if not node.receive(payload, addresses[source], clock):  # type: ignore[arg-type]
                    continue
            settle(target, node, at, clock)
        self.now = until
        self.digest, self.deliveries = digest, deliveries

    def _settle(self, endpoint: int, node: Overlay, at: float, clock: float) -> None:
        datagrams = node.datagrams_to_send(clock)
        if datagrams:
            self._send(endpoint, datagrams, at)
        events = node.events()
        if events:
            for event in events:
                self._observer.happened(endpoint, event, at)
        timer = node.next_timer()
        self._wanted_at[endpoint] = math.inf
        if timer is not None:
            conditions = self.conditions
            wake = (timer - conditions.offset_s[endpoint]) / conditions.rate[endpoint]
            if wake <= at:
                wake = at + _AT_ONCE_S
            self._wanted_at[endpoint] = wake
            if wake < self._wake_at[endpoint]:
                self._wake_at[endpoint] = wake
                self._order += 1
                heapq.heappush(self._heap, (wake, self._order, endpoint, endpoint, None))

    def _send(self, source: int, datagrams: list[tuple[bytes, Address]], at: float) -> None:
        network, conditions, heap, order = self.network, self.conditions, self._heap, self._order
        delays = network.sites.one_way_s[network.site[source]]
        access, site = network.access_s, network.site
        leaves_at = at + access[source]
        find, lossy, disturbed, random = self._endpoint_of.get, self._lossy, self._disturbed, self._rng.random
        kept, keep_in, push = conditions.keep_out[source], conditions.keep_in, heapq.heappush
        size = 0
        for data, address in datagrams:
            size += len(data)
            if len(data) > MAX_SEALED_BYTES:
                self._observer.broke(f"endpoint {source} sent a datagram of {len(data)} bytes", at)
            target = find(address)
            if target is None or (lossy and random() >= kept * keep_in[target]):
                continue
            arrival = leaves_at + delays[site[target]] + access[target]
            if disturbed:
                for extra in conditions.delays_s(source, target, self._rng):
                    order += 1
                    push(heap, (arrival + extra, order, target, source, data))
            else:
                order += 1
                push(heap, (arrival, order, target, source, data))
        self.sent_messages[source] += len(datagrams)
        self.sent_bytes[source] += size
        self._order = order
