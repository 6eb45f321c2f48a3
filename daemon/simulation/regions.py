"""The hierarchy of clusters (:mod:`overlay.regions`) in virtual time: many nodes, requests that take time and get lost.

The overlay under it is taken for granted: coordinates stand, and who keeps the beacons is known. What is looked at is
the protocol of the hierarchy itself.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable, Mapping, Sequence
from random import Random

from daemon.queries.region_service import ASK_TIMEOUT_S
from overlay.identity import NodeId
from overlay.records import NodeRecord
from overlay.region_messages import Reply
from overlay.regions import Outgoing, Regions
from overlay.shelves import HOLDERS
from sbon.coordinate import Coordinate


class RegionWorld:
    """Nodes at given places. ``period_s`` is that of reports; requests are lost with probability ``loss``."""

    def __init__(
        self, places: Mapping[str, Coordinate], *, max_cs: int, period_s: float = 10.0, loss: float = 0.0, seed: int = 1
    ) -> None:
        self.now_s = 0.0
        self.nodes: dict[NodeId, Regions] = {}
        self.records = {name: _record(name, place, number) for number, (name, place) in enumerate(places.items())}
        self.requests = 0
        self._max_cs = max_cs
        self._period_s = period_s
        self._loss = loss
        self._seed = seed
        self._rng = Random(f"{seed}/requests")
        self._queue: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = itertools.count()
        self._starts = itertools.count()

    def start(self, name: str) -> None:
        """As a process that has just begun: whatever it knew is gone."""
        record = self.records[name]
        rng = Random(f"{self._seed}/{name}/{next(self._starts)}")
        node = Regions(lambda: record, lambda: {f"of-{name}"}, self._max_cs, self._period_s, rng, self.now_s)
        self.nodes[name] = node
        self._at(self.now_s, lambda: self._wake(name, node))

    def kill(self, name: str) -> None:
        del self.nodes[name]

    def run(self, until_s: float) -> None:
        while self._queue and self._queue[0][0] <= until_s:
            self.now_s, _, action = heapq.heappop(self._queue)
            action()
        self.now_s = until_s

    def _at(self, at_s: float, action: Callable[[], None]) -> None:
        heapq.heappush(self._queue, (at_s, next(self._numbers), action))

    def _wake(self, name: str, node: Regions) -> None:
        if self.nodes.get(name) is not node:
            return
        for outgoing in node.due(self.now_s):
            self._send(name, node, outgoing)
        node.validate()
        self._at(max(node.next_timer(), self.now_s + 1e-3), lambda: self._wake(name, node))

    def _send(self, name: str, node: Regions, outgoing: Outgoing) -> None:
        for target in self._holders() if outgoing.node is None else [outgoing.node.node_id]:
            self.requests += 1
            rtt_s = self.records[name].coordinate.rtt_ms(self.records[target].coordinate) / 1000.0
            lost = self._rng.random() < self._loss

            def arrive(target: str = target, rtt_s: float = rtt_s) -> None:
                there = self.nodes.get(target)
                if there is not None:
                    reply = there.handle(outgoing.message, name, self.now_s)
                    self._wake_soon(target, there)
                    self._at(self.now_s + rtt_s / 2.0, lambda: self._answer(name, node, outgoing, reply))
                else:
                    self._at(self.now_s + ASK_TIMEOUT_S, lambda: self._answer(name, node, outgoing, None))

            if lost:
                self._at(self.now_s + ASK_TIMEOUT_S, lambda: self._answer(name, node, outgoing, None))
            else:
                self._at(self.now_s + rtt_s / 2.0, arrive)

    def _answer(self, name: str, node: Regions, outgoing: Outgoing, reply: Reply | None) -> None:
        if self.nodes.get(name) is node:
            node.answered(outgoing, reply, self.now_s)
            self._wake_soon(name, node)

    def _wake_soon(self, name: str, node: Regions) -> None:
        """There may be something to do earlier than was thought."""
        if node.next_timer() <= self.now_s:
            for outgoing in node.due(self.now_s):
                self._send(name, node, outgoing)

    def _holders(self) -> Sequence[NodeId]:
        """Who keeps the beacons: nodes nearest to where the first one stands, which is as good a place as any."""
        place = next(iter(self.records.values()))
        alive = [self.records[each] for each in self.nodes]
        alive.sort(key=lambda record: (place.coordinate.rtt_ms(record.coordinate), record.node_id))
        return [record.node_id for record in alive[:HOLDERS]]

    # --- looking at the whole, as no node can

    def tops(self) -> list[NodeId]:
        return [name for name, node in self.nodes.items() if node.is_top]

    def clusters(self) -> list[tuple[int, NodeId, list[NodeId]]]:
        """(level, coordinator, members) of all that are led."""
        return [
            (level, name, sorted(node.members(level)))
            for name, node in self.nodes.items()
            for level in range(1, node.led + 1)
        ]

    def faults(self) -> list[str]:
        """What is wrong, once all is quiet: there is one top, everybody is below it, once, in clusters not too big."""
        found = [] if len(self.tops()) == 1 else [f"tops: {', '.join(self.tops())}"]
        of_level: dict[int, list[NodeId]] = {}
        for level, name, members in self.clusters():
            of_level.setdefault(level, []).extend(members)
            if len(members) > self._max_cs:
                found.append(f"{name} leads {len(members)} on level {level}")
        for level, members in of_level.items():
            below = [name for name, node in self.nodes.items() if node.led >= level - 1]
            if sorted(members) != sorted(below):
                wrong = sorted(set(members) ^ set(below)) or "twice"
                found.append(f"level {level} has {len(members)} members of {len(below)}: {wrong}")
        return found


def _record(name: str, place: Coordinate, number: int) -> NodeRecord:
    return NodeRecord(
        node_id=name, name=name, host="192.0.2.1", port=number + 1, boot_id=1, coordinate=place, load=0.0,
        accepts_operators=True,
    )  # fmt: skip
