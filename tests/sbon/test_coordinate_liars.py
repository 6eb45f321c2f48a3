"""A fifth of all nodes lie, all together, from the start: what the honest predict among themselves stays good.

Here are the estimators alone, each of which measures a random other one in each round; daemon/simulation runs the same
attacks against whole overlays.
"""

from __future__ import annotations

import copy
import random
import statistics
from collections.abc import Callable

import msgspec
import pytest

from sbon.coordinate import Coordinate
from sbon.coordinate_estimator import CoordinateEstimator
from tests import truth

pytestmark = pytest.mark.xdist_group("liars")  # what they share is made once

NODES, LIARS, ROUNDS = 45, 9, 360
CLAIMED_ERROR = 0.02
#: What a liar at ``place`` claims in a round.
Lie = Callable[[Coordinate, int, random.Random], tuple[float, ...]]


def wide_area(seed: int) -> truth.Matrix:
    """Points behind access links, with paths that no space of points holds: off by a tenth as a rule."""
    rng = random.Random(seed)
    points = [tuple(rng.gauss(0.0, 60.0) for _ in range(3)) for _ in range(NODES)]
    matrix = truth.from_points(points, [rng.expovariate(0.2) for _ in points])
    for i in range(NODES):
        for j in range(i):
            matrix[i][j] = matrix[j][i] = matrix[i][j] * rng.lognormvariate(0.0, 0.1)
    return matrix


def honest_median(lie: Lie | None, delay_ms: float = 0.0, seed: int = 1) -> float:
    """Median relative error among the honest, who are the first."""
    matrix, rng = wide_area(seed), random.Random(seed)
    states = [CoordinateEstimator() for _ in matrix]
    honest = NODES - LIARS
    for round_number in range(ROUNDS):
        for i, state in enumerate(states):
            j = rng.randrange(NODES - 1)
            j += j >= i
            rtt_ms, place = matrix[i][j], states[j].coordinate
            if lie is not None and j >= honest:
                claimed = lie(place, round_number, rng)
                place = msgspec.structs.replace(place, vector_ms=claimed, error=CLAIMED_ERROR)
                rtt_ms += delay_ms * rng.uniform(0.5, 1.5)
            state.update(rtt_ms, place, rng)
    errors = [
        abs(states[i].coordinate.rtt_ms(states[j].coordinate) - matrix[i][j]) / matrix[i][j]
        for i in range(honest)
        for j in range(i)
    ]
    return statistics.median(errors)


def settled() -> tuple[truth.Matrix, list[CoordinateEstimator], random.Random]:
    """After 240 rounds without liars."""
    matrix, rng = wide_area(1), random.Random(1)
    states = [CoordinateEstimator() for _ in matrix]
    for _ in range(240):
        for i, state in enumerate(states):
            j = rng.choice([j for j in range(NODES) if j != i])
            state.update(matrix[i][j], states[j].coordinate, rng)
    return matrix, states, rng


@pytest.fixture(scope="module")
def without_liars() -> float:
    return honest_median(None)


@pytest.mark.parametrize(
    ("lie", "delay_ms"),
    [
        pytest.param(lambda true, now, rng: tuple(rng.uniform(-300, 300) for _ in range(4)), 0.0, id="random"),
        pytest.param(lambda true, now, rng: tuple(20.0 * x for x in true.vector_ms), 0.0, id="inflation"),
        pytest.param(lambda true, now, rng: (0.0,) * 4, 0.0, id="deflation"),
        pytest.param(lambda true, now, rng: (true.vector_ms[0] + now, *true.vector_ms[1:]), 0.0, id="drift"),
        pytest.param(lambda true, now, rng: true.vector_ms, 200.0, id="delay"),
    ],
)
def test_the_honest_predict_well_among_liars(lie: Lie, delay_ms: float, without_liars: float) -> None:
    assert honest_median(lie, delay_ms) <= 1.25 * without_liars


def test_one_who_meets_nearly_as_many_liars_as_honest_nodes_stays_where_it_is() -> None:
    """A fifth of all lie, but by chance eleven of the latest 24 that one measures do: they stay outliers."""
    matrix, states, rng = settled()
    one, others = states[0], range(1, NODES)

    def median_error() -> float:
        away = ((one.coordinate.rtt_ms(states[j].coordinate), matrix[0][j]) for j in others)
        return statistics.median(abs(predicted_ms - rtt_ms) / rtt_ms for predicted_ms, rtt_ms in away)

    before = median_error()
    for _ in range(5):
        for is_liar in rng.sample([True] * 11 + [False] * 13, 24):
            j = rng.choice(others)
            place = states[j].coordinate
            if is_liar:
                claimed = tuple(20.0 * x for x in place.vector_ms)
                place = msgspec.structs.replace(place, vector_ms=claimed, error=CLAIMED_ERROR)
            one.update(matrix[0][j], place, rng)
    assert median_error() <= 1.25 * before


def test_who_is_off_by_far_moves_nobody_on_a_long_path_either() -> None:
    """A liar who has moved away slowly is no more of an outlier there, in proportion, than many who are honest."""
    _, states, _ = settled()
    one, others = states[0].coordinate, [state.coordinate for state in states[1:]]
    farthest = max(others, key=one.rtt_ms)
    rtt_ms = one.rtt_ms(farthest)
    assert rtt_ms > 200.0

    def moved_ms(off_ms: float) -> float:
        state = copy.deepcopy(states[0])
        state.update(rtt_ms + off_ms, farthest, random.Random(1))
        return state.coordinate.unlike_ms(one)

    assert moved_ms(20.0) > 2.0, "who is off by a tenth is believed"
    assert moved_ms(80.0) < moved_ms(20.0) / 5.0, "all that moves it then is gravity"
