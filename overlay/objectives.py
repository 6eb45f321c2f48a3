"""What a search minimises. An objective is data: it travels with the search, and every host asked evaluates it."""

from __future__ import annotations

import math
from typing import Protocol

import msgspec

from overlay.records import NodeRecord
from sbon.coordinate import Coordinate
from sbon.cost_space import LOAD_SCALE_MS, load_ms
from sbon.errors import RemoteProtocolError

MAX_ENDPOINTS = 16
MAX_RATE_BYTES_PER_S = 1e15
#: A node whose coordinate is no better than this has not found its place yet: nobody can say what it would cost.
LOST_ERROR = 0.9


class Objective(Protocol):
    """The cost of a node for the purpose at hand; infinity rules it out."""

    def cost(self, record: NodeRecord) -> float: ...

    def check(self, dimensions: int) -> None:
        """Raise RemoteProtocolError if this came from outside and cannot be evaluated."""


class NearestTo(msgspec.Struct, frozen=True, array_like=True, tag=0):
    """Least predicted round trip, in ms, to a place: a node's coordinate, or a point with a height of 0."""

    place: Coordinate
    #: A node that is not meant: the one whose place it is.
    but: str = ""

    def cost(self, record: NodeRecord) -> float:
        if record.node_id == self.but or record.coordinate.error >= LOST_ERROR:
            return math.inf
        return self.place.rtt_ms(record.coordinate)

    def check(self, dimensions: int) -> None:
        self.place.check(dimensions)


class Endpoint(msgspec.Struct, frozen=True, array_like=True):
    """The other end of an operator's stream. ``penalty_bytes`` is added on any other host than ``node_id``."""

    place: Coordinate
    rate_bytes_per_s: float
    node_id: str = ""


class LeastUsage(msgspec.Struct, frozen=True, array_like=True, tag=1):
    """Least predicted network usage (bytes in transit) of an operator with streams to ``endpoints``, plus its load.

    The load part is input rate x load (DESIGN: Cost space). Hosts that take no operators are ruled out.
    """

    endpoints: tuple[Endpoint, ...]
    input_rate_bytes_per_s: float = 0.0
    load_scale_ms: float = LOAD_SCALE_MS

    def cost(self, record: NodeRecord) -> float:
        if not record.accepts_operators or record.coordinate.error >= LOST_ERROR:
            return math.inf
        coordinate, node_id = record.coordinate, record.node_id
        one_way = sum(
            end.rate_bytes_per_s * end.place.rtt_ms(coordinate) for end in self.endpoints if end.node_id != node_id
        )
        load = self.input_rate_bytes_per_s * load_ms(record.load, self.load_scale_ms)
        return (one_way / 2.0 + load) / 1000.0

    def check(self, dimensions: int) -> None:
        if not 0 < len(self.endpoints) <= MAX_ENDPOINTS:
            raise RemoteProtocolError(f"an objective with {len(self.endpoints)} endpoints")
        for end in self.endpoints:
            end.place.check(dimensions)
        rates = [end.rate_bytes_per_s for end in self.endpoints]
        if not all(0.0 <= rate <= MAX_RATE_BYTES_PER_S for rate in [*rates, self.input_rate_bytes_per_s]):
            raise RemoteProtocolError("a rate that cannot be")
        if not 0.0 <= self.load_scale_ms <= 1e6:
            raise RemoteProtocolError(f"a load scale of {self.load_scale_ms} ms")


class HasProperty(msgspec.Struct, frozen=True, array_like=True, tag=2):
    """Hosts with a property, the nearest to ``place`` first: a name (empty: any), and whether they take operators."""

    place: Coordinate
    name: str = ""
    accepts_operators: bool = False

    def cost(self, record: NodeRecord) -> float:
        if (self.name and record.name != self.name) or (self.accepts_operators and not record.accepts_operators):
            return math.inf
        return self.place.rtt_ms(record.coordinate)

    def check(self, dimensions: int) -> None:
        self.place.check(dimensions)


AnyObjective = NearestTo | LeastUsage | HasProperty
