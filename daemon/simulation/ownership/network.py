"""A network of nodes that call each other, in virtual time: calls get lost, late and doubled, paths are cut, nodes
crash and come back with what is on their disks."""

from __future__ import annotations

import heapq
import itertools
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

Answer = Callable[[Any], None]
#: Carries out a call at the node that is called, and answers it, now or later or never.
Handler = Callable[[Answer], None]


@dataclass(slots=True)
class Faults:
    """What can go wrong from now on. ``cut`` holds pairs (from, to) of names."""

    loss: float = 0.0
    duplication: float = 0.0
    late: float = 0.0
    cut: set[tuple[str, str]] = field(default_factory=set)


@dataclass(slots=True)
class Machine:
    """One host: whether it is up, how often it was started, and how fast its clock runs."""

    name: str
    rate: float
    boot: int = 1
    up: bool = True


class Network:
    """``now_s`` is true time, which no machine sees."""

    def __init__(self, rng: random.Random, names: list[str], max_drift: float) -> None:
        self.rng = rng
        self.now_s = 0.0
        self.faults = Faults()
        self.machines = {name: Machine(name, 1.0 + rng.uniform(-max_drift, max_drift)) for name in names}
        self._heap: list[tuple[float, int, Callable[[], None]]] = []
        self._order = itertools.count()

    def local_s(self, name: str) -> float:
        """What the clock of ``name`` shows."""
        return self.now_s * self.machines[name].rate

    def later(self, delay_s: float, action: Callable[[], None]) -> None:
        heapq.heappush(self._heap, (self.now_s + delay_s, next(self._order), action))

    def later_at(self, name: str, delay_s: float, action: Callable[[], None]) -> None:
        """``action`` of a machine that must still be up, and not have been restarted, by then."""
        boot = self.machines[name].boot

        def if_still_up() -> None:
            machine = self.machines[name]
            if machine.up and machine.boot == boot:
                action()

        self.later(delay_s, if_still_up)

    def run_until(self, end_s: float) -> None:
        while self._heap and self._heap[0][0] <= end_s:
            self.now_s, _, action = heapq.heappop(self._heap)
            action()
        self.now_s = end_s

    def call(
        self, source: str, target: str, handler: Handler, answered: Answer, silent: Callable[[], None], wait_s: float
    ) -> None:
        """Have ``handler`` carried out at ``target``; ``answered`` or ``silent`` follows at ``source``, never both."""
        is_over = False

        def end(action: Callable[[], None]) -> None:
            nonlocal is_over
            if not is_over:
                is_over = True
                action()

        def carry_out() -> None:
            if self.machines[target].up:
                handler(
                    lambda answer: self._send(target, source, lambda: self._at(source, boot, end, answered, answer))
                )

        boot = self.machines[source].boot
        self._send(source, target, carry_out)
        self.later_at(source, wait_s, lambda: end(silent))

    def _at(
        self, name: str, boot: int, end: Callable[[Callable[[], None]], None], answered: Answer, answer: Any
    ) -> None:
        machine = self.machines[name]
        if machine.up and machine.boot == boot:
            end(lambda: answered(answer))

    def _send(self, source: str, target: str, action: Callable[[], None]) -> None:
        if source == target:
            self.later(0.0, action)
            return
        for _ in range(2 if self.rng.random() < self.faults.duplication else 1):
            if (source, target) in self.faults.cut or self.rng.random() < self.faults.loss:
                continue
            delay_s = 0.002 + self.rng.expovariate(1.0) * 0.03
            if self.rng.random() < self.faults.late:
                delay_s += self.rng.uniform(0.0, 20.0)
            self.later(delay_s, action)
