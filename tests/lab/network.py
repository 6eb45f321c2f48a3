"""What a wide-area network does to packets: delays, jitter, loss and cuts. Sans-I/O: time is an argument.

A packet from a to b takes half of the round trip of (a, b), so what a measures is the mean of both directions, which is
also the truth that predictions are compared with. Jitter is added to that: queues only ever delay. Packets of one
path keep their order, as they nearly always do in the Internet; TCP would take anything else for loss.
"""

from __future__ import annotations

import heapq
import math
import random
from collections import Counter
from collections.abc import Iterator, Sequence

#: All packets that are on their way at once: 150 ms at 4 Gbit/s. More are dropped, as a router would.
MAX_PACKETS = 50_000


class WideAreaNetwork:
    """Hosts are numbered from 0. ``counters``: packets "delivered", "lost", "cut" and "overflowed"."""

    def __init__(self, rtt_ms: Sequence[Sequence[float]], rng: random.Random) -> None:
        self._rtt_ms = [list(row) for row in rtt_ms]
        self._rng = rng
        self._jitter_ms = 0.0
        self._loss: dict[tuple[int, int], float] = {}
        self._cut: set[tuple[int, int]] = set()
        self._on_their_way: list[tuple[float, int, int, bytes]] = []
        self._sent = 0
        self._last_due: dict[tuple[int, int], float] = {}
        self.counters: Counter[str] = Counter()
        #: How much later than due packets were taken out, at most and in total: the fault of whoever drives this.
        self.late_s_max = 0.0
        self.late_s_total = 0.0

    # --- what can change

    def set_rtt(self, a: int, b: int, rtt_ms: float) -> None:
        """In both directions. Packets on their way are not affected."""
        self._rtt_ms[a][b] = self._rtt_ms[b][a] = rtt_ms

    def set_jitter(self, jitter_ms: float) -> None:
        """Mean of an exponential delay added to every packet, everywhere."""
        self._jitter_ms = jitter_ms

    def set_loss(self, a: int, b: int, probability: float) -> None:
        """From a to b only."""
        self._loss[a, b] = probability

    def cut(self, a: int, b: int) -> None:
        """Nothing passes between a and b any more. What is on its way still arrives."""
        self._cut |= {(a, b), (b, a)}

    def heal(self, a: int, b: int) -> None:
        self._cut -= {(a, b), (b, a)}

    # --- packets

    def send(self, packet: bytes, source: int, destination: int, now: float) -> None:
        path = source, destination
        if path in self._cut:
            self.counters["cut"] += 1
        elif self._rng.random() < self._loss.get(path, 0.0):
            self.counters["lost"] += 1
        elif len(self._on_their_way) >= MAX_PACKETS:
            self.counters["overflowed"] += 1
        else:
            delay_ms = self._rtt_ms[source][destination] / 2
            if self._jitter_ms:
                delay_ms += self._rng.expovariate(1 / self._jitter_ms)
            due = self._last_due[path] = max(now + delay_ms / 1000, self._last_due.get(path, -math.inf))
            self._sent += 1
            heapq.heappush(self._on_their_way, (due, self._sent, destination, packet))

    def next_due(self) -> float:
        """When the next packet arrives; infinity if none is on its way."""
        return self._on_their_way[0][0] if self._on_their_way else math.inf

    def arrived(self, now: float) -> Iterator[tuple[int, bytes]]:
        """Packets with their destinations, in the order of their arrival."""
        while self._on_their_way and self._on_their_way[0][0] <= now:
            due, _, destination, packet = heapq.heappop(self._on_their_way)
            late_s = now - due
            self.late_s_total += late_s
            self.late_s_max = max(self.late_s_max, late_s)
            self.counters["delivered"] += 1
            yield destination, packet
