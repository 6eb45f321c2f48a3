"""A coordinate from before a restart is tried, not trusted."""

from __future__ import annotations

import random
import statistics

import msgspec

from sbon.coordinate import MAX_ERROR, Coordinate
from sbon.coordinate_estimator import HINT_SAMPLES, MAX_HINT_SAMPLES, CoordinateEstimator
from tests import truth
from tests.sbon.test_coordinate import converged, relative_errors

MATRIX = truth.grid(4)
SETTLED = [state.coordinate for state in converged(MATRIX, dimensions=4, rounds=250)]


def restarted(hint: Coordinate, samples: int) -> CoordinateEstimator:
    """The first node, back with a hint, after samples of the others, which went on."""
    rng = random.Random(3)
    state = CoordinateEstimator(hint=hint)
    for _ in range(samples):
        j = rng.randrange(1, len(MATRIX))
        state.update(MATRIX[0][j], SETTLED[j], rng)
    return state


def median_error(state: CoordinateEstimator) -> float:
    others = range(1, len(MATRIX))
    return statistics.median(abs(state.coordinate.rtt_ms(SETTLED[j]) - MATRIX[0][j]) / MATRIX[0][j] for j in others)


def test_a_hint_is_where_a_node_begins_and_claims_nothing_until_it_was_checked() -> None:
    state = CoordinateEstimator(hint=SETTLED[0])
    assert state.coordinate.vector_ms == SETTLED[0].vector_ms
    assert state.coordinate.error == MAX_ERROR
    assert restarted(SETTLED[0], HINT_SAMPLES - 1).coordinate.error == MAX_ERROR
    assert restarted(SETTLED[0], HINT_SAMPLES).coordinate.error < 0.5


def test_a_good_hint_saves_the_search_for_the_place() -> None:
    assert median_error(restarted(SETTLED[0], HINT_SAMPLES)) < 0.1


def test_a_bad_hint_is_left() -> None:
    far = msgspec.structs.replace(SETTLED[0], vector_ms=(-700.0, 600.0, 500.0, 400.0), error=0.02)
    assert restarted(far, HINT_SAMPLES).coordinate.distance_ms(far.vector_ms) > 500.0
    assert median_error(restarted(far, 60)) < 0.1


def test_a_hint_of_another_space_is_left_aside() -> None:
    state = CoordinateEstimator(hint=Coordinate((1.0, 2.0), 1.0, 0.1))
    assert state.coordinate.vector_ms == (0.0,) * 4


def test_after_a_restart_of_all_nobody_waits_for_others_to_be_sure() -> None:
    rng = random.Random(4)
    states = [CoordinateEstimator(hint=place) for place in SETTLED]
    for _ in range(MAX_HINT_SAMPLES):
        for i, state in enumerate(states):
            j = rng.choice([j for j in range(len(MATRIX)) if j != i])
            state.update(MATRIX[i][j], states[j].coordinate, rng)
    assert all(state.coordinate.error < MAX_ERROR for state in states)
    assert statistics.median(relative_errors(states, MATRIX)) < 0.1
