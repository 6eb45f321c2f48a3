"""What a search for hosts minimises. An objective is data: it travels with the search, all hosts asked evaluate it."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Final, Protocol

import msgspec

from sbon.coordinate import MAX_ERROR, Coordinate
from sbon.cost_space import LOAD_SCALE_MS, LoadScaling, load_ms
from sbon.errors import RemoteProtocolError
from sbon.network_usage import link_usage, load_cost

MAX_ENDPOINTS: Final = 32
MOST_SEARCHED_ENDPOINTS: Final = 5
MAX_RATE_BYTES_PER_S: Final = 1e15
MAX_LOAD_SCALE_MS: Final = 1e6
MAX_OPTIMISM: Final = 10.0
#: Nobody can say how far away a node is that has not found its own place yet: further than all that have.
LOST_RTT_MS: Final = 10_000.0
#: Nothing is assumed to cost less than a tenth of what is predicted.
MOST_OPTIMISM: Final = 0.9


class Host(Protocol):
    """A node as a candidate; the overlay's records are such."""

    @property
    def node_id(self) -> str: ...
    @property
    def name(self) -> str: ...
    @property
    def coordinate(self) -> Coordinate: ...
    @property
    def load(self) -> float: ...
    @property
    def accepts_operators(self) -> bool: ...


class Guide(Protocol):
    """Whom to ask: a cost that leads to those who know the hosts that are looked for."""

    def cost(self, host: Host) -> float: ...


class AlikeTo(msgspec.Struct, frozen=True):
    """Hosts at places like those: with the same distances to all others, they have the same neighbours, and know them.

    The nearest are none such. With heights and factors a node far behind an access line of its own is nearest to hubs,
    which know few of those behind such lines; and the node at the very place is not near to itself by the formula. Nor
    are the hosts of least usage, mostly hubs, of which there may be several groups between the ends of the streams.
    Unlike round trips, unlikeness is a metric: whoever walks to ever more alike hosts gets there.
    """

    #: Each with its weight.
    places: tuple[tuple[Coordinate, float], ...]

    def cost(self, host: Host) -> float:
        if host.coordinate.error >= MAX_ERROR:
            return math.inf
        return sum([weight * place.unlike_ms(host.coordinate) for place, weight in self.places])


class NearestTo(msgspec.Struct, frozen=True, array_like=True, tag=0):
    """Least predicted round trip, in ms, to a place: a node's coordinate, or a point with a height of 0.

    A node that has not found its own place yet is ruled out: nobody can say how near it is.
    """

    place: Coordinate
    #: A node that is not meant: the one whose place it is.
    but: str = ""

    def cost(self, host: Host) -> float:
        if host.node_id == self.but or host.coordinate.error >= MAX_ERROR:
            return math.inf
        return self.place.rtt_ms(host.coordinate)

    def guide(self) -> AlikeTo:
        return AlikeTo(((self.place, 1.0),))

    def check(self, dimensions: int) -> None:
        self.place.check(dimensions)


class Endpoint(msgspec.Struct, frozen=True, array_like=True):
    """The other end of a stream of an operator: ``node_id`` at ``place``, or nobody yet (empty).

    An end that is still to be placed itself is at its virtual point, without heights: both may end on one host.
    """

    place: Coordinate
    rate_bytes_per_s: float
    node_id: str = ""

    def rtt_ms(self, host: Host) -> float:
        """Predicted round trip from ``host``; 0 to itself, and very long from one that has not found its place yet."""
        if host.coordinate.error >= MAX_ERROR and self.node_id != host.node_id:
            return LOST_RTT_MS
        if not self.node_id:
            return self.place.distance_ms(host.coordinate.vector_ms)
        return 0.0 if self.node_id == host.node_id else self.place.rtt_ms(host.coordinate)


class LeastUsage(msgspec.Struct, frozen=True, array_like=True, tag=1):
    """Least predicted network usage (bytes in transit) of an operator with streams to ``endpoints``, plus its load.

    The load part is input rate x load (DESIGN: Cost space). Hosts that take no operators are ruled out. ``optimism``:
    usage may be less than predicted by so many times the error that the host claims. Nodes that no coordinate fits have
    routes unlike their neighbours', and now and then they are the best hosts of all; they are to be measured, too.
    """

    endpoints: tuple[Endpoint, ...]
    input_rate_bytes_per_s: float = 0.0
    load_scale_ms: float = LOAD_SCALE_MS
    load_scaling: LoadScaling = LoadScaling.LINEAR
    optimism: float = 0.0

    def cost(self, host: Host) -> float:
        if not host.accepts_operators:
            return math.inf
        cost = load_cost(self.input_rate_bytes_per_s, load_ms(host.load, self.load_scale_ms, self.load_scaling))
        usage = sum([link_usage(end.rate_bytes_per_s, end.rtt_ms(host)) for end in self.endpoints])
        return cost + usage * (1.0 - min(MOST_OPTIMISM, self.optimism * host.coordinate.error))

    def guide(self) -> AlikeTo:
        return AlikeTo(tuple((end.place, end.rate_bytes_per_s) for end in self.endpoints))

    def check(self, dimensions: int) -> None:
        if not 0 < len(self.endpoints) <= MAX_ENDPOINTS:
            raise RemoteProtocolError(f"an objective with {len(self.endpoints)} endpoints")
        for end in self.endpoints:
            end.place.check(dimensions)
        rates = [end.rate_bytes_per_s for end in self.endpoints]
        if not all(0.0 <= rate <= MAX_RATE_BYTES_PER_S for rate in [*rates, self.input_rate_bytes_per_s]):
            raise RemoteProtocolError("a rate that cannot be")
        if not 0.0 <= self.load_scale_ms <= MAX_LOAD_SCALE_MS:
            raise RemoteProtocolError(f"a load scale of {self.load_scale_ms} ms")
        if not 0.0 <= self.optimism <= MAX_OPTIMISM:
            raise RemoteProtocolError(f"an optimism of {self.optimism}")


class HasProperty(msgspec.Struct, frozen=True, array_like=True, tag=2):
    """Hosts with a property, the nearest to ``place`` first: a name (empty: any), and whether they take operators.

    A node that has not found its own place yet is ruled out, as by :class:`NearestTo`.
    """

    place: Coordinate
    name: str = ""
    accepts_operators: bool = False

    def cost(self, host: Host) -> float:
        if (self.name and host.name != self.name) or (self.accepts_operators and not host.accepts_operators):
            return math.inf
        if host.coordinate.error >= MAX_ERROR:
            return math.inf
        return self.place.rtt_ms(host.coordinate)

    def guide(self) -> AlikeTo:
        return AlikeTo(((self.place, 1.0),))

    def check(self, dimensions: int) -> None:
        self.place.check(dimensions)


def heaviest(endpoints: Iterable[Endpoint]) -> tuple[Endpoint, ...]:
    """Those with most traffic, as many as surely fit a datagram: they decide where an operator belongs."""
    return tuple(sorted(endpoints, key=lambda end: -end.rate_bytes_per_s)[:MOST_SEARCHED_ENDPOINTS])


Objective = NearestTo | LeastUsage | HasProperty
