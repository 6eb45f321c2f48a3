"""Network coordinates: Vivaldi with height, in any number of dimensions.

A coordinate predicts the round trip between two nodes that have never measured it. Every node moves its own, a little
with each sample, as if a spring of the measured length lay between it and the node it probed. Sources:

- V04: F. Dabek et al., "Vivaldi: A Decentralized Network Coordinate System", SIGCOMM 2004.
- L07: J. Ledlie, P. Gardner, M. Seltzer, "Network Coordinates in the Wild", NSDI 2007.
- N12: J. Seibert et al., "Newton: Securing Virtual Coordinates by Enforcing Physical Laws", ICDCS 2012.
"""

from __future__ import annotations

import math
import random
import statistics
from collections import deque

import msgspec

from sbon.errors import RemoteProtocolError

#: Dimensions unless configured otherwise; more dimensions with height predict better (DESIGN: Cost space).
DEFAULT_DIMENSIONS = 6
MAX_DIMENSIONS = 8  # an advertised coordinate has to fit in 128 bytes (DESIGN: Cost space)

#: Share of the prediction error that one sample may correct (V04 section 2.5: c_c = 0.25).
COORDINATE_GAIN = 0.25
#: Weight of one sample in the moving average of the relative error (V04 section 2.5: c_e = 0.25).
ERROR_GAIN = 0.25
#: Relative error of a node that knows nothing, and the most that is ever claimed (V04 section 2.5 starts at 1).
MAX_ERROR = 1.0
#: Least relative error: nobody is so sure that its word alone moves others (V04 section 2.4 on uncertain neighbours).
MIN_ERROR = 0.02
#: A height stays positive (V04 section 5.4), and starts at its least. It grows and shrinks in proportion to itself, so
#: that a larger start takes a large share of every prediction: 1 ms doubled the error among 5 of 44 cloud regions.
MIN_HEIGHT_MS = 0.01
#: Pull to the origin is (|x| / rho)^2 ms per sample (L07 section 4.4: rho = 2^8): the space as a whole does not drift.
GRAVITY_RHO_MS = 256.0
#: The longest step of a node that knows nothing; one that is sure of its place takes shorter ones, in proportion to
#: its error. Like N12's bound on forces (section 4), it caps what a liar can do with one sample.
MAX_STEP_MS = 100.0
#: A residual is cut at this many times the median of the recent ones, in the manner of P. Huber, "Robust Estimation of
#: a Location Parameter", Annals of Mathematical Statistics 35, 1964. A node whose own access changed sees all residuals
#: grow and follows at once; a minority of paths, or of liars, moves it little.
OUTLIER_FACTOR = 3.0
OUTLIER_WINDOW = 24
MIN_OUTLIER_MS = 2.0
#: Nothing on Earth is further; outside coordinates and samples beyond it are refused.
MAX_RTT_MS = 10_000.0


class Coordinate(msgspec.Struct, frozen=True):
    """A place in the latency space. ``error`` is relative: 0.1 means that predictions are some 10 % off."""

    vector_ms: tuple[float, ...]
    height_ms: float
    error: float

    @property
    def dimensions(self) -> int:
        return len(self.vector_ms)

    def rtt_ms(self, other: Coordinate) -> float:
        """Predicted round trip to another node's coordinate: |x - y| + h_x + h_y (V04 section 5.4).

        From a node to itself it is 0, which only the caller can know: two nodes may share a coordinate.
        Raises ValueError when the dimensions differ.
        """
        return self.distance_ms(other.vector_ms) + self.height_ms + other.height_ms

    def distance_ms(self, point_ms: tuple[float, ...]) -> float:
        """Euclidean distance to a point, heights left out."""
        return distance_ms(self.vector_ms, point_ms)

    def moved_ms(self, other: Coordinate) -> float:
        """How far this place is from ``other``, both taken as places of one node: |x - y| + |h_x - h_y|."""
        return self.distance_ms(other.vector_ms) + abs(self.height_ms - other.height_ms)

    def check(self, dimensions: int) -> None:
        """Raise RemoteProtocolError unless this is a usable coordinate of ``dimensions`` dimensions."""
        if len(self.vector_ms) != dimensions:
            raise RemoteProtocolError(f"a coordinate of {len(self.vector_ms)} dimensions where {dimensions} are used")
        if not all(math.isfinite(x) and abs(x) <= MAX_RTT_MS for x in self.vector_ms):
            raise RemoteProtocolError("a coordinate outside of the latency space")
        if not 0.0 <= self.height_ms <= MAX_RTT_MS:  # false for NaN, too
            raise RemoteProtocolError(f"a height of {self.height_ms} ms")
        if not 0.0 <= self.error <= MAX_ERROR:
            raise RemoteProtocolError(f"a coordinate error of {self.error}")


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


class VivaldiState:
    """The moving coordinate of one node. ``coordinate`` is a value; only :meth:`update` changes which one."""

    def __init__(self, dimensions: int = DEFAULT_DIMENSIONS, *, use_height: bool = True) -> None:
        """Start at the origin. Raises ValueError for a number of dimensions that cannot be advertised."""
        if not 1 <= dimensions <= MAX_DIMENSIONS:
            raise ValueError(f"{dimensions} dimensions: 1 to {MAX_DIMENSIONS} are possible")
        self._use_height = use_height
        start = origin(dimensions)
        self.coordinate = start if use_height else msgspec.structs.replace(start, height_ms=0.0)
        self.updates = 0
        self._residuals_ms: deque[float] = deque(maxlen=OUTLIER_WINDOW)

    def update(self, sample_rtt_ms: float, other: Coordinate, rng: random.Random) -> Coordinate:
        """Move by one (filtered) sample to a node at ``other``; ``rng`` picks a way out of coincidence.

        Raises RemoteProtocolError, and changes nothing, for a sample or a coordinate that cannot be.
        """
        check_sample(sample_rtt_ms)
        other.check(self.coordinate.dimensions)
        here = self.coordinate
        residual_ms = self._residual_ms(sample_rtt_ms - here.rtt_ms(other))
        weight = self._weight(here, other)
        error = self._error(here, abs(residual_ms) / sample_rtt_ms, weight)
        force_ms = self._force_ms(here, residual_ms, weight)
        moved, height_ms = self._displace(here, other, force_ms, rng)
        self.coordinate = Coordinate(self._gravitate(moved), height_ms, error)
        self.updates += 1
        return self.coordinate

    @staticmethod
    def _weight(here: Coordinate, other: Coordinate) -> float:
        """Balance of the two errors: a sure node hardly follows an unsure one (V04 section 2.5)."""
        return here.error / (here.error + max(other.error, MIN_ERROR))

    def _residual_ms(self, residual_ms: float) -> float:
        """Measured minus predicted, cut if it is out of proportion to the recent ones (Huber)."""
        self._residuals_ms.append(abs(residual_ms))
        if len(self._residuals_ms) < OUTLIER_WINDOW:
            return residual_ms  # everything is out of proportion at first
        limit_ms = max(MIN_OUTLIER_MS, OUTLIER_FACTOR * statistics.median(self._residuals_ms))
        return max(-limit_ms, min(limit_ms, residual_ms))

    @staticmethod
    def _error(here: Coordinate, sample_error: float, weight: float) -> float:
        """Moving average of the relative error of our predictions (V04 section 2.5)."""
        gain = ERROR_GAIN * weight
        error = min(MAX_ERROR, sample_error) * gain + here.error * (1.0 - gain)
        return min(MAX_ERROR, max(MIN_ERROR, error))

    @staticmethod
    def _force_ms(here: Coordinate, residual_ms: float, weight: float) -> float:
        """How far to move away from the other node (negative: towards it), clamped by our own error (N12)."""
        limit_ms = MAX_STEP_MS * here.error
        return max(-limit_ms, min(limit_ms, COORDINATE_GAIN * weight * residual_ms))

    def _displace(
        self, here: Coordinate, other: Coordinate, force_ms: float, rng: random.Random
    ) -> tuple[tuple[float, ...], float]:
        """Split the force between vector and height as their shares of the prediction (V04 section 5.4)."""
        apart_ms = here.distance_ms(other.vector_ms)
        heights_ms = here.height_ms + other.height_ms if self._use_height else 0.0
        if apart_ms < 1e-6:
            # Two nodes in one place get away from each other in a random direction (V04 section 2.3).
            direction = _random_direction(here.dimensions, rng)
            apart_ms = 1.0
        else:
            direction = tuple((x - y) / apart_ms for x, y in zip(here.vector_ms, other.vector_ms, strict=True))
        step_ms = force_ms * apart_ms / (apart_ms + heights_ms)
        vector = tuple(_clamped(x + step_ms * u) for x, u in zip(here.vector_ms, direction, strict=True))
        if not self._use_height:
            return vector, 0.0
        height_ms = here.height_ms + force_ms * heights_ms / (apart_ms + heights_ms)
        return vector, min(MAX_RTT_MS, max(MIN_HEIGHT_MS, height_ms))

    @staticmethod
    def _gravitate(vector_ms: tuple[float, ...]) -> tuple[float, ...]:
        """A weak pull to the origin, (|x| / rho)^2 ms long (L07 section 4.4)."""
        length_ms = math.hypot(*vector_ms)
        if length_ms == 0.0:
            return vector_ms
        pull_ms = min(length_ms, (length_ms / GRAVITY_RHO_MS) ** 2)
        return tuple(x * (1.0 - pull_ms / length_ms) for x in vector_ms)


def _clamped(x_ms: float) -> float:
    return max(-MAX_RTT_MS, min(MAX_RTT_MS, x_ms))


def _random_direction(dimensions: int, rng: random.Random) -> tuple[float, ...]:
    while True:
        vector = tuple(rng.gauss(0.0, 1.0) for _ in range(dimensions))
        length = math.hypot(*vector)
        if length > 1e-9:
            return tuple(x / length for x in vector)
