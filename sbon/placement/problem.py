"""What is placed, and what is known about the hosts: the common ground of the full and the local optimizer."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from sbon.coordinate import Coordinate
from sbon.cost_space import LOAD_SCALE_MS, LoadScaling, load_ms
from sbon.network_usage import Link, input_rate_bytes_per_s


@dataclass(frozen=True)
class PlacementProblem:
    """A plan's links and the hosts of its pinned operators (operator -> node id); all others are to be placed.

    Raises ValueError if nothing is pinned.
    """

    links: tuple[Link, ...]
    pinned: Mapping[str, str]
    #: The operators to be placed, in the order in which the links name them.
    unpinned: tuple[str, ...] = field(init=False)

    def __post_init__(self) -> None:
        if not self.pinned:
            raise ValueError("a plan without pinned operators has no best placement")
        ends = (end for link in self.links for end in (link.source, link.target))
        object.__setattr__(self, "unpinned", tuple(dict.fromkeys(end for end in ends if end not in self.pinned)))

    def input_rate_bytes_per_s(self, operator: str) -> float:
        return input_rate_bytes_per_s(self.links, operator)

    def neighbours(self, operator: str) -> list[tuple[str, float]]:
        """The other ends of the operator's links, with the links' rates in bytes/s."""
        return [
            (link.target if link.source == operator else link.source, link.rate_bytes_per_s)
            for link in self.links
            if operator in (link.source, link.target)
        ]


@dataclass(frozen=True)
class CostView:
    """What the deciding node knows about nodes and paths, by node id.

    ``measured_rtt_ms(a, b)`` is None where nothing was measured; both directions are asked. ``load_of`` is the load
    average per core.
    """

    coordinate_of: Callable[[str], Coordinate]
    measured_rtt_ms: Callable[[str, str], float | None]
    load_of: Callable[[str], float]
    load_scale_ms: float = LOAD_SCALE_MS
    load_scaling: LoadScaling = LoadScaling.LINEAR

    def measured(self, a: str, b: str) -> float | None:
        """Mean of what was measured in the two directions; 0 from a node to itself."""
        if a == b:
            return 0.0
        known = [rtt for rtt in (self.measured_rtt_ms(a, b), self.measured_rtt_ms(b, a)) if rtt is not None]
        return sum(known) / len(known) if known else None

    def predicted(self, a: str, b: str) -> float:
        return 0.0 if a == b else self.coordinate_of(a).rtt_ms(self.coordinate_of(b))

    def rtt_ms(self, a: str, b: str) -> float:
        """The measured round trip, or else the predicted one."""
        measured = self.measured(a, b)
        return self.predicted(a, b) if measured is None else measured

    def load_ms(self, node_id: str) -> float:
        return load_ms(self.load_of(node_id), self.load_scale_ms, self.load_scaling)
