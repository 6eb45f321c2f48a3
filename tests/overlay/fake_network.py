"""A network of overlay nodes in one process and in virtual time: a heap of deliveries and wake-ups."""

from __future__ import annotations

import heapq
import itertools
import random
from collections.abc import Sequence

import msgspec

from overlay.config import OverlayConfig
from overlay.events import Event
from overlay.node import Overlay
from overlay.records import Address, NodeRecord
from sbon.coordinate import origin

#: Settings like those of a demonstration on one machine.
FAST = OverlayConfig(probe_interval_s=0.25)


def fake_record(index: int, *, boot_id: int = 1, port: int | None = None) -> NodeRecord:
    return NodeRecord(
        node_id=f"{index + 1:032x}",
        name=f"n{index}",
        host="10.0.0.1",
        port=port if port is not None else 7000 + index,
        boot_id=boot_id,
        coordinate=origin(),
    )


class FakeNetwork:
    """Delivers datagrams after half the round trip of a matrix, jitter and loss drawn from one seed."""

    def __init__(self, rtt_ms: Sequence[Sequence[float]], seed: int = 1, loss: float = 0.0, jitter_ms: float = 0.0):
        self.rtt_ms = [list(row) for row in rtt_ms]
        self.loss = loss
        self.jitter_ms = jitter_ms
        self.now = 0.0
        self.rng = random.Random(seed)
        self.nodes: dict[int, Overlay] = {}
        self.events: dict[int, list[Event]] = {}
        self.cut: set[frozenset[int]] = set()
        self._owner: dict[Address, int] = {}
        self._wake_at: dict[int, float | None] = {}
        self._heap: list[tuple[float, int, int, Overlay, tuple[bytes, Address] | None]] = []
        self._order = itertools.count()

    def start(self, index: int, config: OverlayConfig = FAST, *, boot_id: int = 1, port: int | None = None) -> Overlay:
        record = fake_record(index, boot_id=boot_id, port=port)
        node = Overlay(record, config, random.Random(self.rng.random()), self.now)
        self.nodes[index] = node
        self.events.setdefault(index, [])
        self._owner[record.address] = index
        self._wake_at[index] = None
        self.settle(index)
        return node

    def kill(self, index: int) -> None:
        """Without a word; its address goes dead, too."""
        node = self.nodes.pop(index)
        self._owner.pop(node.record.address, None)

    def join(self, index: int, other: int) -> None:
        self.nodes[index].join(self.nodes[other].record.address, self.now)
        self.settle(index)

    def settle(self, index: int) -> None:
        """After any call into a node: send what it wants sent, note what happened, and wake it when it asks."""
        node = self.nodes[index]
        for data, address in node.datagrams_to_send(self.now):
            assert len(data) <= 1200
            self._send(index, data, address)
        self.events[index] += node.events()
        timer = node.next_timer()
        if timer is not None and timer != self._wake_at.get(index):
            self._push(timer, index, node, None)
        self._wake_at[index] = timer
        node.validate()

    def _send(self, index: int, data: bytes, address: Address) -> None:
        target = self._owner.get(address)
        if target is None or frozenset((index, target)) in self.cut or self.rng.random() < self.loss:
            return
        delay_s = (self.rtt_ms[index][target] / 2 + self.rng.expovariate(1.0) * self.jitter_ms) / 1000.0
        self._push(self.now + delay_s, target, self.nodes[target], (data, self.nodes[index].record.address))

    def _push(self, at: float, index: int, node: Overlay, datagram: tuple[bytes, Address] | None) -> None:
        heapq.heappush(self._heap, (at, next(self._order), index, node, datagram))

    def run(self, seconds: float) -> None:
        end = self.now + seconds
        while self._heap and self._heap[0][0] <= end:
            at, _, index, node, datagram = heapq.heappop(self._heap)
            self.now = at
            if self.nodes.get(index) is not node:
                continue  # for a process that is no more
            if datagram is not None:
                node.receive(*datagram, at)
            else:
                if self._wake_at[index] != at:
                    continue  # it has asked for another time since
                self._wake_at[index] = None
                node.handle_timer(at)
            self.settle(index)
        self.now = end

    def names_seen_by(self, index: int) -> list[str]:
        return [record.name for record in self.nodes[index].members()]

    def happened(self, index: int, kind: type[Event]) -> list[Event]:
        return [event for event in self.events[index] if isinstance(event, kind)]


def full_mesh(rtt_ms: Sequence[Sequence[float]], config: OverlayConfig = FAST, seed: int = 1) -> FakeNetwork:
    """A network in which everybody has joined the first node, and a second has passed."""
    network = FakeNetwork(rtt_ms, seed)
    for index in range(len(rtt_ms)):
        network.start(index, config)
    for index in range(1, len(rtt_ms)):
        network.join(index, 0)
    network.run(1.0)
    return network


def with_port(record: NodeRecord, port: int) -> NodeRecord:
    return msgspec.structs.replace(record, port=port)
