"""Network coordinates: what a node says about its place, and how two such words predict a round trip.

A coordinate predicts the round trip between two nodes that have never measured it, from their two records alone:

    rtt_ms(a, b) = |x_a - x_b| + h_a + h_b + sum over k of s_k f_a[k] f_b[k],     s = +1, -1, +1, ...

The distance and the heights (access links) are Vivaldi's. Routes on the Internet do not obey the triangle inequality
(a sixth to a quarter of all triples in real matrices), so that no space of points holds them exactly, whatever its
dimension; the *factors* are a symmetric factorisation of low rank of what the points leave over. Signs alternate, so
that some detours can be longer and others shorter than the points say. :mod:`sbon.coordinate_estimator` finds the
place. Sources:

- V04: F. Dabek et al., "Vivaldi: A Decentralized Network Coordinate System", SIGCOMM 2004.
- M06: Y. Mao, L. Saul, J. Smith, "IDES: An Internet Distance Estimation Service for Large Networks", IEEE JSAC 24, 2006
  (round trips as inner products); Y. Liao et al., "DMFSGD: A Decentralized Matrix Factorization Algorithm for Network
  Distance Prediction", IEEE/ACM ToN 21, 2013 (found without a centre).
"""

from __future__ import annotations

import math
import struct
from typing import Final

import msgspec

from sbon.errors import RemoteProtocolError

#: Dimensions unless configured otherwise. More than four help little once there are factors (docs/decisions).
DEFAULT_DIMENSIONS: Final = 4
MAX_DIMENSIONS: Final = 8  # an advertised coordinate has to fit in 128 bytes (DESIGN: Cost space)
FACTORS: Final = 3
#: A factor is in the square root of ms: one product of two changes a prediction by at most 144 ms.
MAX_FACTOR: Final = 12.0
#: Of the products of factors in a prediction.
FACTOR_SIGNS: Final = tuple(1.0 if k % 2 == 0 else -1.0 for k in range(FACTORS))
#: Of a point that is no node's place.
NO_FACTORS: Final = (0.0,) * FACTORS
#: By how many ms predictions change, typically, when a factor changes by 1: other nodes' factors are about that large.
TYPICAL_FACTOR: Final = 4.0

#: Relative error of a node that knows nothing, and the most that is ever claimed (V04 section 2.5 starts at 1).
MAX_ERROR: Final = 1.0
#: A height stays positive (V04 section 5.4).
MIN_HEIGHT_MS: Final = 0.01
#: No prediction is less.
MIN_RTT_MS: Final = 0.01
#: Nothing on Earth is further; outside coordinates and samples beyond it are refused.
MAX_RTT_MS: Final = 10_000.0

#: Single precision for what is in ms (0.03 us in 300 ms), half precision for factors and the error.
_WIRE = [struct.Struct(f">{dimensions + 1}f{FACTORS + 1}e") for dimensions in range(MAX_DIMENSIONS + 1)]
_DIMENSIONS_OF = {wire.size: dimensions for dimensions, wire in enumerate(_WIRE)}


class Coordinate(msgspec.Struct, frozen=True):
    """A place in the latency space. ``error`` is relative: 0.1 means that half of the predictions are off by less.

    Points that are no node's place (where an operator would like to be) have no ``factors``.
    """

    vector_ms: tuple[float, ...]
    height_ms: float
    error: float
    factors: tuple[float, ...] = ()

    @property
    def dimensions(self) -> int:
        return len(self.vector_ms)

    def rtt_ms(self, other: Coordinate) -> float:
        """Predicted round trip to another node's coordinate (V04 section 5.4; the factors are this module's).

        From a node to itself it is 0, which only the caller can know: two nodes may share a coordinate.
        Raises ValueError when the dimensions differ.
        """
        rtt_ms = self.raw_rtt_ms(other)
        return rtt_ms if rtt_ms > MIN_RTT_MS else MIN_RTT_MS

    def raw_rtt_ms(self, other: Coordinate) -> float:
        """The formula itself, which is negative now and then where round trips are tiny: for the estimator."""
        rtt_ms = math.dist(self.vector_ms, other.vector_ms) + self.height_ms + other.height_ms
        if not self.factors or not other.factors:
            return rtt_ms
        # Written out for FACTOR_SIGNS, because nothing else is computed as often.
        (a, b, c), (x, y, z) = self.factors, other.factors
        return rtt_ms + a * x - b * y + c * z

    def distance_ms(self, point_ms: tuple[float, ...]) -> float:
        """Euclidean distance to a point, heights and factors left out."""
        return distance_ms(self.vector_ms, point_ms)

    def unlike_ms(self, other: Coordinate) -> float:
        """How differently all others look from here and from ``other``: about how much predictions change when a node
        moves from the one place to the other. It is a metric, which round trips are not: places far behind access lines
        of their own can be alike.

        Raises ValueError when the dimensions differ.
        """
        unlike_ms = math.dist(self.vector_ms, other.vector_ms) + abs(self.height_ms - other.height_ms)
        (a, b, c), (x, y, z) = self.factors or NO_FACTORS, other.factors or NO_FACTORS
        return unlike_ms + TYPICAL_FACTOR * (abs(a - x) + abs(b - y) + abs(c - z))

    def check(self, dimensions: int) -> None:
        """Raise RemoteProtocolError unless this is a usable coordinate of ``dimensions`` dimensions."""
        if len(self.vector_ms) != dimensions:
            raise RemoteProtocolError(f"a coordinate of {len(self.vector_ms)} dimensions where {dimensions} are used")
        for x in self.vector_ms:
            if not -MAX_RTT_MS <= x <= MAX_RTT_MS:  # true for NaN, too
                raise RemoteProtocolError("a coordinate outside of the latency space")
        if not 0.0 <= self.height_ms <= MAX_RTT_MS:  # false for NaN, too
            raise RemoteProtocolError(f"a height of {self.height_ms} ms")
        if not 0.0 <= self.error <= MAX_ERROR:
            raise RemoteProtocolError(f"a coordinate error of {self.error}")
        if len(self.factors) not in (0, FACTORS):
            raise RemoteProtocolError(f"a coordinate with {len(self.factors)} factors where {FACTORS} are used")
        for x in self.factors:
            if not -MAX_FACTOR <= x <= MAX_FACTOR:
                raise RemoteProtocolError("factors outside of the latency space")

    def to_bytes(self) -> bytes:
        """4 bytes for each dimension and 12 more: 28 bytes for 4 dimensions."""
        return _WIRE[self.dimensions].pack(*self.vector_ms, self.height_ms, *(self.factors or NO_FACTORS), self.error)

    @staticmethod
    def from_bytes(data: bytes, dimensions: int) -> Coordinate:
        """Not checked for what it means. Raises RemoteProtocolError unless it has ``dimensions`` dimensions."""
        if _DIMENSIONS_OF.get(len(data)) != dimensions:
            raise RemoteProtocolError(f"{len(data)} bytes are no coordinate of {dimensions} dimensions")
        numbers = _WIRE[dimensions].unpack(data)
        return Coordinate(numbers[:dimensions], numbers[dimensions], numbers[-1], numbers[dimensions + 1 : -1])


def origin(dimensions: int = DEFAULT_DIMENSIONS) -> Coordinate:
    """The coordinate of a node that has measured nothing yet."""
    return Coordinate((0.0,) * dimensions, MIN_HEIGHT_MS, MAX_ERROR)


def distance_ms(a: tuple[float, ...], b: tuple[float, ...]) -> float:
    """Euclidean distance; ValueError when the dimensions differ."""
    if len(a) != len(b):
        raise ValueError(f"points of {len(a)} and {len(b)} dimensions have no distance")
    return math.dist(a, b)


def check_sample(rtt_ms: float) -> None:
    """Raise RemoteProtocolError unless ``rtt_ms`` can be a round trip."""
    if not 0.0 < rtt_ms <= MAX_RTT_MS:  # false for NaN, too
        raise RemoteProtocolError(f"a round trip of {rtt_ms} ms")
