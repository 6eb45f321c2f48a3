from __future__ import annotations

import math
import random
import statistics

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sbon.coordinate import (
    MAX_DIMENSIONS,
    MAX_ERROR,
    MAX_RTT_MS,
    MIN_HEIGHT_MS,
    Coordinate,
    origin,
)
from sbon.coordinate_estimator import MAX_STEP_MS, CoordinateEstimator
from sbon.errors import RemoteProtocolError
from tests import truth

finite = st.floats(-500, 500)
coordinates = st.builds(
    Coordinate, st.tuples(finite, finite, finite), st.floats(0, 200), st.floats(0, 1, exclude_min=False)
)


def converged(matrix: truth.Matrix, *, dimensions: int = 6, rounds: int, seed: int = 1) -> list[CoordinateEstimator]:
    """Every node takes one sample of a random other one per round."""
    rng = random.Random(seed)
    states = [CoordinateEstimator(dimensions) for _ in matrix]
    for _ in range(rounds):
        for i, state in enumerate(states):
            j = rng.choice([j for j in range(len(matrix)) if j != i])
            state.update(matrix[i][j], states[j].coordinate, rng)
    return states


def relative_errors(states: list[CoordinateEstimator], matrix: truth.Matrix, honest: int | None = None) -> list[float]:
    n = len(matrix) if honest is None else honest
    return [
        abs(states[i].coordinate.rtt_ms(states[j].coordinate) - matrix[i][j]) / matrix[i][j]
        for i in range(n)
        for j in range(i)
    ]


@pytest.mark.parametrize(
    ("matrix", "median", "worst_tenth"),
    [
        pytest.param(truth.line(10), 0.02, 0.1, id="line"),
        pytest.param(truth.grid(5), 0.02, 0.1, id="grid"),
        pytest.param(truth.from_points([(0, 0), (50, 0), (0, 50), (50, 50)], [2, 20, 5, 40]), 0.05, 0.1, id="access"),
        pytest.param(truth.circle(24), 0.2, 0.5, id="circle"),
        pytest.param(truth.cloud_regions(), 0.10, 0.30, id="cloud regions"),
    ],
)
def test_predictions_come_close_to_the_truth(matrix: truth.Matrix, median: float, worst_tenth: float) -> None:
    for seed in (1, 2, 3):
        errors = relative_errors(converged(matrix, rounds=300, seed=seed), matrix)
        assert statistics.median(errors) < median
        assert statistics.quantiles(errors, n=10)[-1] < worst_tenth


def test_five_nodes_are_usable_after_fifty_samples_each() -> None:
    matrix = truth.cloud_regions(5)
    medians = [statistics.median(relative_errors(converged(matrix, rounds=50, seed=s), matrix)) for s in range(10)]
    assert statistics.mean(medians) < 0.12


def test_error_estimates_fall_as_predictions_get_better() -> None:
    assert all(state.coordinate.error == 1.0 for state in converged(truth.line(5), rounds=0))
    assert all(state.coordinate.error < 0.1 for state in converged(truth.line(5), rounds=200))


def test_a_changed_path_is_followed() -> None:
    matrix = truth.line(5, 20.0)
    states = converged(matrix, rounds=200)
    for i in range(4):
        matrix[i][4] = matrix[4][i] = matrix[i][4] + 200.0
    rng = random.Random(2)
    for _ in range(100):
        for i, state in enumerate(states):
            j = rng.choice([j for j in range(5) if j != i])
            state.update(matrix[i][j], states[j].coordinate, rng)
    assert statistics.median(relative_errors(states, matrix)) < 0.1


@pytest.mark.parametrize("lie", ["far away", "wandering", "too sure of the origin"])
def test_a_liar_does_not_drag_the_honest_away(lie: str) -> None:
    matrix = truth.grid(3)
    honest = len(matrix)
    states = converged(matrix, rounds=200)
    rng = random.Random(5)
    for _ in range(200):
        for i, state in enumerate(states):
            j = rng.randrange(honest + 1)
            if j == i:
                continue
            if j < honest:
                state.update(matrix[i][j], states[j].coordinate, rng)
                continue
            place = {
                "far away": (9_000.0,) + (0.0,) * 5,
                "wandering": tuple(rng.uniform(-5_000, 5_000) for _ in range(6)),
                "too sure of the origin": (0.0,) * 6,
            }[lie]
            state.update(1.0, Coordinate(place, 0.0, 0.0), rng)
    # One peer in ten lies as hard as it can; predictions among the others stay good.
    assert statistics.median(relative_errors(states, matrix, honest)) < 0.1


@given(coordinates, coordinates)
def test_rtt_is_symmetric_and_never_negative(a: Coordinate, b: Coordinate) -> None:
    assert a.rtt_ms(b) == pytest.approx(b.rtt_ms(a))
    assert a.rtt_ms(b) >= a.height_ms + b.height_ms >= 0.0


@given(coordinates, coordinates, coordinates)
def test_unlikeness_is_a_metric_and_bounds_how_predictions_differ(a: Coordinate, b: Coordinate, c: Coordinate) -> None:
    assert a.unlike_ms(a) == 0.0
    assert a.unlike_ms(b) == pytest.approx(b.unlike_ms(a))
    assert a.unlike_ms(c) <= a.unlike_ms(b) + b.unlike_ms(c) + 1e-6
    plain = [Coordinate(place.vector_ms, place.height_ms, place.error) for place in (a, b, c)]
    assert abs(plain[0].rtt_ms(plain[2]) - plain[1].rtt_ms(plain[2])) <= plain[0].unlike_ms(plain[1]) + 1e-6


@given(coordinates, st.floats(0, MAX_RTT_MS, exclude_min=True), st.integers())
def test_one_sample_moves_by_a_bounded_step_to_a_valid_place(other: Coordinate, sample: float, seed: int) -> None:
    rng = random.Random(seed)
    state = CoordinateEstimator(3)
    for rtt_ms in (sample, sample, 10.0):
        before = state.coordinate
        state.update(rtt_ms, other, rng)
        state.coordinate.check(3)
        assert state.coordinate.unlike_ms(before) <= MAX_STEP_MS + 1e-6, "however often it is taken again"


@given(
    st.floats(allow_nan=True, allow_infinity=True).filter(lambda ms: not 0.0 < ms <= MAX_RTT_MS),
)
def test_impossible_samples_change_nothing(sample: float) -> None:
    state = CoordinateEstimator(3)
    before = state.coordinate
    with pytest.raises(RemoteProtocolError):
        state.update(sample, Coordinate((1.0, 2.0, 3.0), 1.0, 0.5), random.Random(1))
    assert (state.coordinate, state.updates) == (before, 0)


@pytest.mark.parametrize(
    "coordinate",
    [
        Coordinate((1.0, 2.0), 1.0, 0.5),
        Coordinate((1.0, 2.0, math.nan), 1.0, 0.5),
        Coordinate((1.0, 2.0, -math.inf), 1.0, 0.5),
        Coordinate((1.0, 2.0, 2e4), 1.0, 0.5),
        Coordinate((1.0, 2.0, 3.0), -1.0, 0.5),
        Coordinate((1.0, 2.0, 3.0), math.nan, 0.5),
        Coordinate((1.0, 2.0, 3.0), 1.0, math.nan),
        Coordinate((1.0, 2.0, 3.0), 1.0, 1.5),
    ],
)
def test_impossible_coordinates_change_nothing(coordinate: Coordinate) -> None:
    state = CoordinateEstimator(3)
    before = state.coordinate
    with pytest.raises(RemoteProtocolError):
        state.update(10.0, coordinate, random.Random(1))
    assert state.coordinate == before


def test_two_nodes_in_one_place_part() -> None:
    rng = random.Random(1)
    a, b = CoordinateEstimator(3), CoordinateEstimator(3)
    for _ in range(200):
        a.update(50.0, b.coordinate, rng)
        b.update(50.0, a.coordinate, rng)
    assert a.coordinate.rtt_ms(b.coordinate) == pytest.approx(50.0, rel=0.05)


def test_a_place_is_one_however_badly_its_samples_fit() -> None:
    """As between processes that wait for a busy processor: nobody is to be left out of searches for that."""
    rng = random.Random(1)
    state, other = CoordinateEstimator(3), Coordinate((1.0, 0.0, 0.0), 1.0, 0.5)
    assert state.coordinate.error == MAX_ERROR
    for _ in range(100):
        state.update(10 ** rng.uniform(-1, 3), other, rng)
        assert state.coordinate.error < MAX_ERROR


def test_without_height_there_is_none() -> None:
    state = CoordinateEstimator(3, use_height=False)
    for _ in range(10):
        state.update(50.0, Coordinate((10.0, 0.0, 0.0), 0.0, 0.5), random.Random(1))
    assert state.coordinate.height_ms == 0.0
    assert origin(3).height_ms == MIN_HEIGHT_MS


def test_impossible_dimensions_are_refused() -> None:
    with pytest.raises(ValueError, match="dimensions"):
        CoordinateEstimator(0)
    with pytest.raises(ValueError, match="dimensions"):
        CoordinateEstimator(MAX_DIMENSIONS + 1)
    with pytest.raises(ValueError, match="dimensions"):
        origin(3).rtt_ms(origin(4))


def test_the_largest_coordinate_fits_in_128_bytes() -> None:
    coordinate = Coordinate((1234.5678,) * MAX_DIMENSIONS, 12.345, 0.123)
    assert len(msgspec.msgpack.encode(coordinate)) <= 128


def test_all_places_together_come_back_to_the_origin() -> None:
    """No sample tells where the whole is; left alone it drifts, grows, and errs more from hour to hour."""
    rng = random.Random(1)
    matrix = truth.line(5, 60.0)
    states = [CoordinateEstimator(hint=Coordinate((400.0, 60.0 * i, 0.0, 0.0), 0.01, 0.1)) for i in range(len(matrix))]

    def far_ms() -> float:
        return sum(state.coordinate.vector_ms[0] for state in states) / len(states)

    assert far_ms() == pytest.approx(400.0)
    for _ in range(15_000):
        for i, state in enumerate(states):
            j = rng.choice([j for j in range(len(matrix)) if j != i])
            state.update(matrix[i][j], states[j].coordinate, rng)
    assert abs(far_ms()) < 80.0, "without gravity it is 124"
    assert statistics.median(relative_errors(states, matrix)) < 0.05


def test_groups_of_near_nodes_learn_from_far_ones() -> None:
    """Half of the samples go to nodes beside one's own, which are off together: they must not make one sure."""
    rng = random.Random(1)
    between, groups = truth.cloud_regions(8), [i // 4 for i in range(32)]
    access_ms = [rng.expovariate(0.5) for _ in groups]
    matrix = [
        [access_ms[i] + access_ms[j] + (0.5 if a == b else between[a][b]) for j, b in enumerate(groups)]
        for i, a in enumerate(groups)
    ]
    states = [CoordinateEstimator() for _ in groups]
    for round_number in range(300):
        for i, state in enumerate(states):
            is_near = round_number % 2 == 0
            j = rng.choice([j for j in range(32) if j != i and (groups[i] == groups[j] or not is_near)])
            state.update(matrix[i][j], states[j].coordinate, rng)
    assert statistics.median(relative_errors(states, matrix)) < 0.15
