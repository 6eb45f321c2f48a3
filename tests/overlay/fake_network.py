"""A network of overlay nodes in one process and in virtual time: a heap of deliveries and wake-ups.

The nodes' sessions are real ones over a fake cipher suite. After every step the node concerned is validated.
"""

from __future__ import annotations

import heapq
import itertools
import random
from collections import Counter
from collections.abc import Callable, Sequence
from typing import TypeVar

import msgspec

from daemon.simulation.plain_suite import FakeSuite
from overlay.config import OverlayConfig
from overlay.events import Event, SearchFinished
from overlay.identity import NodeId
from overlay.messages import KIND_OF, Message
from overlay.node import Overlay
from overlay.records import Address, NodeRecord
from overlay.session_wire import MAX_SEALED_BYTES
from overlay.sessions import Sessions
from sbon.coordinate import origin
from sbon.objectives import Objective

#: Settings like those of a demonstration on one machine.
FAST = OverlayConfig(probe_interval_s=0.25)

E = TypeVar("E", bound=Event)


def fake_record(
    index: int, *, boot_id: int = 1, port: int | None = None, dimensions: int = OverlayConfig().dimensions
) -> NodeRecord:
    return NodeRecord(
        node_id=f"{index + 1:032x}",
        name=f"n{index}",
        host="10.0.0.1",
        port=port if port is not None else 7000 + index,
        boot_id=boot_id,
        coordinate=origin(dimensions),
    )


def id_of(index: int) -> NodeId:
    return fake_record(index).node_id


def fake_sessions(record: NodeRecord, rng: random.Random, now: float) -> Sessions:
    suite = FakeSuite(record.node_id, record.boot_id, random.Random(rng.random()))
    return Sessions(suite, record.node_id, record.boot_id, random.Random(rng.random()), now)


def fake_overlay(
    record: NodeRecord,
    config: OverlayConfig = FAST,
    rng: random.Random | None = None,
    now: float = 0.0,
    kind: type[Overlay] = Overlay,
) -> Overlay:
    rng = rng or random.Random(int(record.node_id, 16))
    return kind(record, config, random.Random(rng.random()), now, fake_sessions(record, rng, now))


class FakeNetwork:
    """Delivers datagrams after half the round trip of a matrix; everything else is drawn from one seed.

    ``loss`` and ``duplication`` are probabilities, ``jitter_ms`` the mean of what is added to each delay (so datagrams
    overtake each other); ``cut`` holds pairs that do not hear each other, ``deaf`` pairs (from, to) of one direction,
    ``path_loss`` more loss for such a direction.
    """

    def __init__(self, rtt_ms: Sequence[Sequence[float]], seed: int = 1, loss: float = 0.0, jitter_ms: float = 0.0):
        self.rtt_ms = [list(row) for row in rtt_ms]
        self.loss = loss
        self.duplication = 0.0
        self.jitter_ms = jitter_ms
        self.now = 0.0
        self.rng = random.Random(seed)
        self.nodes: dict[int, Overlay] = {}
        self.timed_events: dict[int, list[tuple[float, Event]]] = {}
        self.cut: set[frozenset[int]] = set()
        self.deaf: set[tuple[int, int]] = set()
        self.path_loss: dict[tuple[int, int], float] = {}
        self.frozen: set[int] = set()
        self.sent_by: Counter[int] = Counter()
        self._owner: dict[Address, int] = {}
        self._wake_at: dict[int, float | None] = {}
        self._heap: list[tuple[float, int, int, Overlay, tuple[bytes, Address] | None]] = []
        self._order = itertools.count()

    def start(
        self,
        index: int,
        config: OverlayConfig = FAST,
        *,
        boot_id: int = 1,
        port: int | None = None,
        kind: type[Overlay] = Overlay,
        name: str = "",
    ) -> Overlay:
        record = fake_record(index, boot_id=boot_id, port=port, dimensions=config.dimensions)
        record = msgspec.structs.replace(record, name=name or record.name)
        node = fake_overlay(record, config, self.rng, self.now, kind)
        self.nodes[index] = node
        self.timed_events.setdefault(index, [])
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

    def leave(self, index: int) -> None:
        self.nodes[index].leave(self.now)
        self.settle(index)

    def say(self, index: int, to: int, body: Message) -> None:
        """Have a node send what it would not say itself. A session has to be open."""
        self.nodes[index]._send(id_of(to), body)
        self.settle(index)

    def search(self, index: int, objective: Objective, k: int) -> SearchFinished:
        """Run until a search has ended."""
        search_id = self.nodes[index].search(objective, k, self.now)
        self.settle(index)
        for _ in range(300):
            for event in self.happened(index, SearchFinished):
                if event.search_id == search_id:
                    return event
            self.run(0.1)
        raise AssertionError("the search does not end")

    def freeze(self, index: int, seconds: float) -> None:
        """Its process stands still: what comes meanwhile waits for it, and so does its timer."""
        self.frozen.add(index)
        self.run(seconds)
        self.frozen.discard(index)

    def settle(self, index: int) -> None:
        """After any call into a node: send what it wants sent, note what happened, and wake it when it asks."""
        node = self.nodes[index]
        for data, address in node.datagrams_to_send(self.now):
            assert len(data) <= MAX_SEALED_BYTES
            self.sent_by[index] += 1
            self._send(index, data, address)
        self.timed_events[index] += [(self.now, event) for event in node.events()]
        timer = node.next_timer()
        if timer is not None and timer != self._wake_at.get(index):
            self._push(timer, index, node, None)
        self._wake_at[index] = timer
        node.validate()

    def _send(self, index: int, data: bytes, address: Address) -> None:
        target = self._owner.get(address)
        if target is None or frozenset((index, target)) in self.cut or (index, target) in self.deaf:
            return
        copies = 1 + (self.rng.random() < self.duplication)
        for _ in range(copies):
            if self.rng.random() < self.loss or self.rng.random() < self.path_loss.get((index, target), 0.0):
                continue
            delay_s = (self.rtt_ms[index][target] / 2 + self.rng.expovariate(1.0) * self.jitter_ms) / 1000.0
            self._push(self.now + delay_s, target, self.nodes[target], (data, self.nodes[index].record.address))

    def _push(self, at: float, index: int, node: Overlay, datagram: tuple[bytes, Address] | None) -> None:
        heapq.heappush(self._heap, (at, next(self._order), index, node, datagram))

    def run(self, seconds: float) -> None:
        end, waiting = self.now + seconds, []
        while self._heap and self._heap[0][0] <= end:
            step = heapq.heappop(self._heap)
            if step[2] in self.frozen:
                waiting.append(step)
            else:
                self._do(*step)
        self.now = end
        for _, order, index, node, datagram in waiting:
            heapq.heappush(self._heap, (end, order, index, node, datagram))
            if datagram is None and self._wake_at[index] is not None:
                self._wake_at[index] = end

    def _do(self, at: float, _: int, index: int, node: Overlay, datagram: tuple[bytes, Address] | None) -> None:
        self.now = at
        if self.nodes.get(index) is not node:
            return  # for a process that is no more
        if datagram is not None:
            node.receive(*datagram, at)
        else:
            if self._wake_at[index] != at:
                return  # it has asked for another time since
            self._wake_at[index] = None
            node.handle_timer(at)
        self.settle(index)

    def run_until(self, condition: Callable[[], bool], at_most_s: float, step_s: float = 0.25) -> float:
        """How many seconds it took. Fails after ``at_most_s``."""
        start = self.now
        while not condition():
            assert self.now - start < at_most_s, f"not within {at_most_s} s"
            self.run(step_s)
        return self.now - start

    # --- reading

    def names_seen_by(self, index: int) -> list[str]:
        return [record.name for record in self.nodes[index].members()]

    def is_complete(self, among: set[int] | None = None) -> bool:
        """Whether all of ``among`` see each other, and nobody else."""
        expected = set(self.nodes) if among is None else among
        return all(
            set(self.names_seen_by(index)) == {f"n{other}" for other in expected - {index}} for index in expected
        )

    @property
    def events(self) -> dict[int, list[Event]]:
        return {index: [event for _, event in happened] for index, happened in self.timed_events.items()}

    def happened(self, index: int, kind: type[E]) -> list[E]:
        return [event for _, event in self.timed_events[index] if isinstance(event, kind)]

    def dropped(self, index: int) -> int:
        return self.nodes[index].counters["dropped.malformed"]


def full_mesh(rtt_ms: Sequence[Sequence[float]], config: OverlayConfig = FAST, seed: int = 1) -> FakeNetwork:
    """A network in which everybody has joined the first node, and ten seconds have passed."""
    network = FakeNetwork(rtt_ms, seed)
    for index in range(len(rtt_ms)):
        network.start(index, config)
    for index in range(1, len(rtt_ms)):
        network.join(index, 0)
    network.run(10.0)
    return network


def with_port(record: NodeRecord, port: int) -> NodeRecord:
    return msgspec.structs.replace(record, port=port)


def kinds() -> set[str]:
    return set(KIND_OF.values())
