"""What a placement strategy asks while it decides, and how it is answered.

A strategy knows no sockets and no clock: :meth:`Strategy.place` is a generator that yields questions and is sent the
answers, so that the daemon, which searches an overlay and measures paths, and the simulator, which does so in virtual
time or merely looks into its matrix, run the same code.
"""

from __future__ import annotations

from collections.abc import Collection, Generator, Mapping
from dataclasses import dataclass, field
from random import Random
from typing import Any, Protocol

import msgspec

from sbon.coordinate import Coordinate
from sbon.network_usage import network_usage, placement_cost
from sbon.objectives import Host, Objective
from sbon.placement.capacity import Demand, Resources
from sbon.placement.choice import Placement
from sbon.placement.problem import CostView, PlacementProblem

#: Two node ids, the one that measures first.
Pair = tuple[str, str]


class FindHosts(msgspec.Struct, frozen=True):
    """The hosts of least ``objective``, at most ``k``. Answered by a sequence of hosts, best first."""

    objective: Objective
    k: int


class MeasurePaths(msgspec.Struct, frozen=True):
    """The round trips of ``pairs``. Answered by a mapping from those that could be measured to ms.

    ``candidates`` are the (operator, node id) that the pairs are measured for: each is one candidate that measures all
    links of one operator, the unit in which the work is counted. ``afresh``: what was known before does not count.
    """

    pairs: tuple[Pair, ...]
    candidates: tuple[tuple[str, str], ...] = ()
    afresh: bool = False


class KnownPath(msgspec.Struct, frozen=True):
    """A path that a node has measured anyway: the other end, where that is, and the filtered round trip in ms."""

    node_id: str
    place: Coordinate
    rtt_ms: float


class TellKnownPaths(msgspec.Struct, frozen=True):
    """What have these nodes measured lately? Answered by a mapping from those that answer to a :class:`Known`."""

    node_ids: tuple[str, ...]


class Known(msgspec.Struct, frozen=True):
    """The answer of one node: itself as a host, and its paths."""

    host: Any  # a Host
    paths: tuple[KnownPath, ...]


class TellRoutes(msgspec.Struct, frozen=True):
    """By which nodes do data travel? Answered by a mapping from pairs to node ids, both ends among them.

    Only who knows the routers can say more than the two ends.
    """

    pairs: tuple[Pair, ...]


class TellRoom(msgspec.Struct, frozen=True):
    """What have these nodes left for operators? Answered by a mapping from those that answer to their resources."""

    node_ids: tuple[str, ...]


class SurveyHosts(msgspec.Struct, frozen=True):
    """Every host that is known where this is asked. Answered by a sequence of hosts."""


class SurveyAll(msgspec.Struct, frozen=True):
    """Every host and every round trip. Answered by a :class:`sbon.placement.optimum.Truth`."""


Question = FindHosts | MeasurePaths | TellKnownPaths | TellRoutes | TellRoom | SurveyHosts | SurveyAll
#: A placement in the making.
Course = Generator[Question, Any, Placement]


@dataclass(frozen=True)
class Task:
    """What a strategy is given: a plan, and what is known before anything is asked.

    ``candidates``: how many hosts may be measured for each operator. ``keep``: hosts that are to be among them, by
    operator: where it runs now. ``tried``: hosts that need not be measured, by operator: they were, and are not
    better. No more is measured when the plan may be expected to gain less than ``least_gain``, a share of its cost.
    ``demand``: what each operator takes of its host's processor and memory; without any, hosts have room for all.
    ``room``: what some hosts are known to have left, by node id. ``rng`` is for strategies that draw.
    """

    problem: PlacementProblem
    view: CostView
    rng: Random
    candidates: int = 10
    keep: Mapping[str, Host] = field(default_factory=dict)
    tried: Mapping[str, Collection[str]] = field(default_factory=dict)
    least_gain: float = 0.0
    demand: Mapping[str, Demand] = field(default_factory=dict)
    room: Mapping[str, Resources] = field(default_factory=dict)


class Strategy(Protocol):
    """One way to place plans."""

    def place(self, task: Task) -> Course:
        """Hosts for all operators. Raises UnavailableError if no host takes them."""


def placement_without_choices(problem: PlacementProblem, hosts: Mapping[str, str], view: CostView) -> Placement:
    """For strategies that compare nothing."""
    everything = dict(problem.pinned) | dict(hosts)
    cost = placement_cost(problem.links, everything, problem.unpinned, view.rtt_ms, view.load_ms)
    return Placement(everything, cost, network_usage(problem.links, everything, view.rtt_ms), ())
