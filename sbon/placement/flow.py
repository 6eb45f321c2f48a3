"""Who feeds whom in a plan: the producers and consumers that an operator has, directly or not."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass

from sbon.placement.problem import PlacementProblem


@dataclass(frozen=True)
class Flow:
    """``above[o]`` feeds o, ``below[o]`` is fed by it; in the order of the links."""

    pinned: Mapping[str, str]
    above: Mapping[str, list[str]]
    below: Mapping[str, list[str]]

    @staticmethod
    def of(problem: PlacementProblem) -> Flow:
        above: dict[str, list[str]] = defaultdict(list)
        below: dict[str, list[str]] = defaultdict(list)
        for link in problem.links:
            above[link.target].append(link.source)
            below[link.source].append(link.target)
        return Flow(problem.pinned, above, below)

    def producers(self, operator: str) -> list[str]:
        """Node ids of the hosts of the nearest pinned operators up the stream; if there are none, down the stream."""
        return self._pinned_hosts(operator, self.above) or self._pinned_hosts(operator, self.below) or self._anywhere()

    def consumers(self, operator: str) -> list[str]:
        """Hosts of the nearest pinned operators down the stream; of those up the stream if there are none."""
        return self._pinned_hosts(operator, self.below) or self._pinned_hosts(operator, self.above) or self._anywhere()

    def _pinned_hosts(self, operator: str, edges: Mapping[str, list[str]]) -> list[str]:
        reached = dict.fromkeys([operator])
        hosts: dict[str, None] = {}
        waiting = [operator]
        for one in waiting:  # it grows while it is gone through
            for other in edges.get(one, ()):
                if other in self.pinned:
                    hosts[self.pinned[other]] = None
                elif other not in reached:
                    reached[other] = None
                    waiting.append(other)
        return list(hosts)

    def _anywhere(self) -> list[str]:
        return list(dict.fromkeys(self.pinned.values()))
