"""What hosts have left, and what operators take of it (DESIGN: Placement).

Processor, memory, and bytes per second in and out. Data between two operators on one host do not pass its network.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

import msgspec

from sbon.errors import SbonError
from sbon.placement.problem import PlacementProblem

#: Amounts closer than this, relative to the limit, are the same.
TOLERANCE = 1e-9
#: Of cores, bytes or bytes/s that one operator takes: sums of many stay finite.
MAX_AMOUNT = 1e18


class Demand(msgspec.Struct, frozen=True):
    """What an operator takes of its host. The bandwidth of one that is to be placed follows from its links."""

    cpu_cores: float = 0.0
    memory_bytes: float = 0.0
    in_bytes_per_s: float = 0.0
    out_bytes_per_s: float = 0.0

    def check(self) -> None:
        """Raise SbonError unless an operator can take that much. For what others ask for: a NaN would spread."""
        for name in self.__struct_fields__:
            if not 0.0 <= getattr(self, name) <= MAX_AMOUNT:  # false for NaN, too
                raise SbonError(
                    f"nothing can take {getattr(self, name)} {name}: what it takes is not negative, and finite"
                )


class Resources(msgspec.Struct, frozen=True):
    """What a host has left. Without a limit where nothing is said."""

    cpu_cores: float = math.inf
    memory_bytes: float = math.inf
    in_bytes_per_s: float = math.inf
    out_bytes_per_s: float = math.inf

    def covers(self, demand: Demand) -> bool:
        return not self.lacks(demand)

    def lacks(self, demand: Demand) -> tuple[str, ...]:
        """The fields of which there is less than ``demand`` asks for."""
        return tuple(
            name
            for name in self.__struct_fields__
            if getattr(demand, name) > max(0.0, getattr(self, name)) * (1.0 + TOLERANCE)
        )

    def without(self, taken: Iterable[Demand]) -> Resources:
        """What remains; below zero where more was taken than there was."""
        everything = total(taken)
        return Resources(*(getattr(self, name) - getattr(everything, name) for name in self.__struct_fields__))


def total(demands: Iterable[Demand]) -> Demand:
    demands = tuple(demands)
    return Demand(*(sum(getattr(one, name) for one in demands) for name in Demand.__struct_fields__))


def taken_by(
    problem: PlacementProblem, hosts: Mapping[str, str], demand: Mapping[str, Demand]
) -> dict[str, dict[str, Demand]]:
    """Node id -> operator -> what it takes there, if operators run on ``hosts`` (operator -> node id).

    ``demand`` has the processor and memory of those that are to be placed. Pinned ones take bandwidth only: they are
    where they are.
    """
    incoming: dict[str, float] = dict.fromkeys(hosts, 0.0)
    outgoing = dict(incoming)
    for link in problem.links:
        if hosts[link.source] != hosts[link.target]:
            outgoing[link.source] += link.rate_bytes_per_s
            incoming[link.target] += link.rate_bytes_per_s
    taken: dict[str, dict[str, Demand]] = {}
    for operator, node_id in hosts.items():
        own = Demand() if operator in problem.pinned else demand.get(operator, Demand())
        taken.setdefault(node_id, {})[operator] = Demand(
            own.cpu_cores, own.memory_bytes, incoming[operator], outgoing[operator]
        )
    return taken


def fits(
    problem: PlacementProblem,
    hosts: Mapping[str, str],
    demand: Mapping[str, Demand],
    room: Mapping[str, Resources],
) -> bool:
    """Whether the operators to be placed, and the plan's streams, fit into what hosts have left."""
    return all(
        room[node_id].covers(total(taken.values()))
        for node_id, taken in taken_by(problem, hosts, demand).items()
        if node_id in room
    )


def may_take(
    problem: PlacementProblem, operator: str, node_id: str, demand: Mapping[str, Demand], room: Resources
) -> bool:
    """Whether the operator alone fits on the host, if all that it is linked to and may be there, too, is there."""
    least = demand.get(operator, Demand())
    incoming = outgoing = 0.0
    for link in problem.links:
        if operator in (link.source, link.target):
            other = problem.pinned.get(link.target if link.source == operator else link.source, node_id)
            if other != node_id and link.target == operator:
                incoming += link.rate_bytes_per_s
            elif other != node_id:
                outgoing += link.rate_bytes_per_s
    return room.covers(Demand(least.cpu_cores, least.memory_bytes, incoming, outgoing))
