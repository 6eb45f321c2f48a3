"""What a path probably costs, given what coordinates say and what was measured near it.

Coordinates predict round trips with an error of a twentieth or so, and that error is not noise: hosts near each other
reach a third one by much the same route, so when the path to one of them is longer than predicted, so are those to
its neighbours. The residuals of an end's measured paths are taken as a Gaussian field over the hosts at
their other ends, whose mean and spread at any other host follow (kriging; C. Rasmussen and C. Williams, "Gaussian
Processes for Machine Learning", 2006, section 2.2). The paths that the overlay has measured anyway say the most: an
end's 30 known paths halve what placement loses.

How large residuals are, and how far they are alike, differs from network to network, so both are fitted to the paths
that are known (:func:`fit`, by likelihood: same book, section 5.4.1).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from sbon.coordinate import FACTOR_SIGNS, FACTORS, MIN_RTT_MS, Coordinate
from sbon.placement.questions import KnownPath

Floats = NDArray[np.float64]

#: Spread of a residual: a share of (predicted round trip + this). On real networks it hardly falls below some ms.
SPREAD_OFFSET_MS = 60.0
LEAST_SPREAD = 0.01
MIN_ERROR = 0.01
#: How much an unusual claimed error can change the spread.
LEAST_DOUBT, MOST_DOUBT = 0.5, 4.0
#: Residuals count as no larger than so many spreads: they have heavier tails than normal ones.
CLIP = 5.0
#: The median of |N(0, 1)|.
_MEDIAN_DEVIATION = 0.6745


class Places:
    """Coordinates of many hosts as arrays."""

    def __init__(self, coordinates: Sequence[Coordinate]) -> None:
        dimensions = coordinates[0].dimensions if coordinates else 0
        none = (0.0,) * FACTORS
        self.vectors = np.array([one.vector_ms for one in coordinates]).reshape(len(coordinates), dimensions)
        self.heights = np.array([one.height_ms for one in coordinates])
        self.errors = np.array([one.error for one in coordinates])
        self.factors = np.array([one.factors or none for one in coordinates]).reshape(len(coordinates), FACTORS)

    def __len__(self) -> int:
        return len(self.heights)

    def apart_ms(self, others: Places) -> Floats:
        """How little hosts have in common: distances and differences of heights, shape (here, there).

        Two hosts of one site have one place and one height. Their round trip counts both heights, and yet they reach
        all others alike.
        """
        apart: Floats = self._distances_ms(others) + np.abs(self.heights[:, None] - others.heights)
        return apart

    def rtt_ms(self, others: Places) -> Floats:
        """Predicted round trips, shape (here, there), as :meth:`sbon.coordinate.Coordinate.rtt_ms`."""
        heights = self.heights[:, None] + others.heights
        products = (self.factors * FACTOR_SIGNS) @ others.factors.T
        predicted: Floats = np.maximum(MIN_RTT_MS, self._distances_ms(others) + heights + products)
        return predicted

    def _distances_ms(self, others: Places) -> Floats:
        if not len(self) or not len(others):
            return np.zeros((len(self), len(others)))
        # |x - y|^2 = |x|^2 + |y|^2 - 2 x.y
        squares = (self.vectors**2).sum(axis=1)[:, None] + (others.vectors**2).sum(axis=1)
        distances: Floats = np.sqrt(np.maximum(squares - 2.0 * self.vectors @ others.vectors.T, 0.0))
        return distances


@dataclass(frozen=True, slots=True)
class Field:
    """What residuals are like: how large (``spread``), and how alike those of two hosts to one end.

    The correlation is near * exp(-distance / near_ms) + far. The defaults are those of PlanetLab and of 242 cities.
    Residuals of nodes that claim a larger error than ``typical_error`` are larger: these are the nodes that no
    coordinate fits, because the routes to and from them are unlike their neighbours', and now and then much shorter.
    """

    spread: float = 0.06
    typical_error: float = 0.06
    #: 1 where claimed errors tell how large residuals are, 0 where they tell nothing.
    doubt_power: float = 1.0
    near: float = 0.65
    near_ms: float = 6.0
    far: float = 0.04

    def spread_ms(self, predicted_ms: Floats, here: Places, there: Places) -> Floats:
        """By how much a round trip is off its prediction, typically, where nothing was measured: (here, there)."""
        return self.spread * (predicted_ms + SPREAD_OFFSET_MS) * self._doubt(here)[:, None] * self._doubt(there)

    def _doubt(self, places: Places) -> Floats:
        doubt: Floats = np.clip(places.errors / self.typical_error, LEAST_DOUBT, MOST_DOUBT) ** self.doubt_power
        return doubt

    def correlation(self, distance_ms: Floats) -> Floats:
        correlation: Floats = self.near * np.exp(-distance_ms / self.near_ms) + self.far
        return correlation

    def covariance(self, distance_ms: Floats) -> Floats:
        """Of the residuals of some hosts, in spreads squared; on the diagonal is also what no neighbour tells."""
        covariance = self.correlation(distance_ms)
        np.fill_diagonal(covariance, 1.0)
        return covariance


#: What :func:`fit` chooses from, beside the defaults.
FIELDS = tuple(
    Field(near=near, near_ms=near_ms) for near in (0.4, 0.65, 0.9) for near_ms in (3.0, 6.0, 12.0, 30.0, 100.0, 250.0)
)
#: Fewer known paths than this tell nothing about a network.
LEAST_PATHS = 20
#: By how much more likely than the defaults another field has to make what is known (log).
LEAST_EVIDENCE = 2.0
DOUBT_POWERS = (1.0, 0.5, 0.0)


@dataclass(frozen=True, slots=True)
class End:
    """An end of links to be placed, and the paths known from or to it, each other end once."""

    place: Coordinate
    paths: Sequence[KnownPath]


def fit(ends: Sequence[End]) -> Field:
    """The field that makes the known paths of all ends together most likely."""
    if sum(len(end.paths) for end in ends) < LEAST_PATHS:
        return Field()
    errors = [place.error for end in ends for place in (end.place, *(path.place for path in end.paths))]
    typical_error = max(MIN_ERROR, float(np.median(errors)))
    best, most = Field(), -math.inf
    for doubt_power in DOUBT_POWERS:
        field, likelihood = _fit_with(ends, Field(1.0, typical_error, doubt_power))
        if likelihood > most:
            best, most = field, likelihood
    return best


def _fit_with(ends: Sequence[End], unit: Field) -> tuple[Field, float]:
    """The most likely field among those whose claimed errors count as in ``unit``, and its log likelihood."""
    distances, residuals, units = [], [], []
    for end in ends:
        if end.paths:
            here, there = Places([path.place for path in end.paths]), Places([end.place])
            predicted_ms = here.rtt_ms(there)
            measured_ms = np.array([path.rtt_ms for path in end.paths])
            units.append(unit.spread_ms(predicted_ms, here, there)[:, 0])
            distances.append(here.apart_ms(here))
            residuals.append((measured_ms - predicted_ms[:, 0]) / units[-1])
    spread = max(LEAST_SPREAD, float(np.median(np.abs(np.concatenate(residuals)))) / _MEDIAN_DEVIATION)
    clipped = [np.clip(some / spread, -CLIP, CLIP) for some in residuals]
    best = Field()
    most = _log_likelihood(best, distances, clipped) + LEAST_EVIDENCE
    for field in FIELDS:
        likelihood = _log_likelihood(field, distances, clipped)
        if likelihood > most:
            best, most = field, likelihood
    # Of the residuals themselves, not of what they are after division by their units.
    most -= float(np.log(spread * np.concatenate(units)).sum())
    return replace(unit, spread=spread, near=best.near, near_ms=best.near_ms, far=best.far), most


def _log_likelihood(field: Field, distances: Sequence[Floats], residuals: Sequence[Floats]) -> float:
    total = 0.0
    for distance_ms, some in zip(distances, residuals, strict=True):
        root = np.linalg.cholesky(field.covariance(distance_ms))
        white = np.linalg.solve(root, some)
        total -= 0.5 * float(white @ white) + float(np.log(np.diag(root)).sum())
    return total


class PathModel:
    """Round trips to one end from any host, by prediction and by the paths that are known."""

    def __init__(self, end: End, field: Field) -> None:
        paths = end.paths
        self._field = field
        self._end = Places([end.place])
        self._index = {path.node_id: index for index, path in enumerate(paths)}
        self._measured_ms = np.array([path.rtt_ms for path in paths])
        self._places = Places([path.place for path in paths])
        predicted_ms = self._places.rtt_ms(self._end)
        spread_ms = field.spread_ms(predicted_ms, self._places, self._end)[:, 0]
        residuals = np.clip((self._measured_ms - predicted_ms[:, 0]) / spread_ms, -CLIP, CLIP)
        covariance = field.covariance(self._places.apart_ms(self._places))
        self._inverse = np.linalg.inv(covariance) if paths else np.zeros((0, 0))
        self._weighted = self._inverse @ residuals

    def estimate(self, node_ids: Sequence[str], places: Places) -> tuple[Floats, Floats]:
        """Expected round trips of hosts to the end, and their standard deviations; exact where measured. In ms."""
        matrix_ms = places.rtt_ms(self._end)
        predicted_ms, spread_ms = matrix_ms[:, 0], self._field.spread_ms(matrix_ms, places, self._end)[:, 0]
        if not self._index:
            return predicted_ms, spread_ms
        likeness = self._field.correlation(places.apart_ms(self._places))
        explained = ((likeness @ self._inverse) * likeness).sum(axis=1)
        mean_ms = np.maximum(MIN_RTT_MS, predicted_ms + spread_ms * (likeness @ self._weighted))
        deviation_ms = spread_ms * np.sqrt(np.maximum(1.0 - explained, 0.0))
        for row, node_id in enumerate(node_ids):
            known = self._index.get(node_id)
            if known is not None:
                mean_ms[row], deviation_ms[row] = self._measured_ms[known], 0.0
        return mean_ms, deviation_ms
