from __future__ import annotations

import random

import msgspec
import pytest

from sbon.coordinate import MAX_ERROR, MAX_FACTOR, Coordinate
from sbon.coordinate_estimator import SETTLED_PROBES
from sbon.update_filter import (
    FOUND_ERROR,
    LATEST,
    LATEST_STEADY,
    LOST_ERROR,
    LOST_PROBES,
    SMOOTHING,
    STEADY_SAMPLES,
    UNFIT_PROBES,
    UpdateFilter,
)

HERE = Coordinate((0.0, 0.0), 1.0, 0.1, (1.0, 0.0, 0.0))
OTHERS = (Coordinate((30.0, 0.0), 1.0, 0.1), Coordinate((0.0, 100.0), 1.0, 0.1))


def moved(x: float) -> Coordinate:
    return msgspec.structs.replace(HERE, vector_ms=(x, 0.0))


def predictions(here: Coordinate) -> list[tuple[Coordinate, float]]:
    return [(other, here.rtt_ms(other)) for other in OTHERS]


def test_a_change_is_news_when_predictions_change_by_the_ratio_on_average() -> None:
    news = UpdateFilter(0.05, 0.1)
    assert not news.is_news(HERE, predictions(HERE))
    assert not news.is_news(moved(1.0), predictions(HERE))
    assert news.is_news(moved(4.0), predictions(HERE))


def test_smaller_steps_are_news_of_one_that_still_looks_for_its_place() -> None:
    news = UpdateFilter(0.05, 0.1)
    step = moved(2.0)
    for error, probes, is_news in ((0.3, 1, True), (0.1, 10, False), (0.3, SETTLED_PROBES, False)):
        place = msgspec.structs.replace(step, error=error)
        news.take(place, probes)
        assert news.is_news(place, predictions(HERE)) is is_news


def test_small_round_trips_change_by_the_least_amount() -> None:
    near = Coordinate((0.5, 0.0), 0.0, 0.1)
    here = Coordinate((0.0, 0.0), 0.0, 0.1)
    assert not UpdateFilter(0.05, 0.3).is_news(Coordinate((0.2, 0.0), 0.0, 0.1), [(near, here.rtt_ms(near))])
    assert UpdateFilter(0.05, 0.3).is_news(Coordinate((0.0, 0.9), 0.0, 0.1), [(near, here.rtt_ms(near))])


def test_with_nobody_to_tell_there_is_no_news() -> None:
    assert not UpdateFilter(0.05, 0.1).is_news(moved(500.0), [])


def test_a_new_node_says_that_it_knows_nothing_until_it_has_found_its_place() -> None:
    unsure, lost = (msgspec.structs.replace(HERE, error=share * LOST_ERROR) for share in (0.9, 1.1))
    news = UpdateFilter(0.05, 0.1)
    for x in (50.0, 20.0):
        place = msgspec.structs.replace(moved(x), error=2.0 * FOUND_ERROR)
        assert news.take(place, 3) == msgspec.structs.replace(place, error=MAX_ERROR)
    assert not news.has_found
    assert news.take(HERE, 4) == HERE
    assert news.has_found
    assert news.take(unsure, 5) == unsure, "it errs by more than it thought, but knows"
    assert news.take(lost, 6).error == MAX_ERROR, "it was wrong"
    assert news.take(unsure, LOST_PROBES - 1).error == MAX_ERROR
    assert news.take(unsure, LOST_PROBES) == unsure


def test_a_node_that_no_coordinate_fits_has_found_its_place_in_the_end() -> None:
    unfit = msgspec.structs.replace(HERE, error=0.9)
    news = UpdateFilter(0.05, 0.1)
    assert news.take(unfit, UNFIT_PROBES - 1).error == MAX_ERROR
    assert news.take(unfit, UNFIT_PROBES) == unfit


def test_the_place_of_a_settled_node_is_smoothed_and_follows() -> None:
    rng = random.Random(1)
    news = UpdateFilter(0.05, 0.1)
    places = [news.take(moved(rng.gauss(0.0, 5.0)), SETTLED_PROBES) for _ in range(200)][100:]
    assert max(abs(place.vector_ms[0]) for place in places) < 3.0
    for _ in range(int(3.0 / SMOOTHING)):
        place = news.take(moved(100.0), SETTLED_PROBES)
    assert place.vector_ms[0] == pytest.approx(100.0, rel=0.1)
    assert place.factors == HERE.factors


def test_a_new_place_is_the_mean_over_the_latest_part_of_the_time() -> None:
    """Not later than the overlay is, and steadier the longer it is known."""
    lag: list[float] = []
    steps: list[float] = []
    for count in (60, 240):
        news = UpdateFilter(0.05, 0.1)
        places = [news.take(moved(float(number)), number + 1) for number in range(count)]
        lag.append((count - 1 - places[-1].vector_ms[0]) / count)
        steps.append(news.take(moved(count + 100.0), count + 1).vector_ms[0] - places[-1].vector_ms[0])
    assert lag == pytest.approx([1.0 / (1.0 / LATEST + 1.0)] * 2, rel=0.15)
    assert steps[1] < 0.5 * steps[0]


def test_a_place_that_was_found_long_ago_gets_steady_sooner() -> None:
    steps: list[float] = []
    for samples in (STEADY_SAMPLES / LATEST, STEADY_SAMPLES / LATEST + 200):
        news = UpdateFilter(0.05, 0.1)
        for number in range(int(samples)):
            news.take(HERE, number)
        steps.append(news.take(moved(100.0), int(samples)).vector_ms[0] / 100.0)
    assert steps == pytest.approx([1.0 / STEADY_SAMPLES, 1.0 / (STEADY_SAMPLES + 200 * LATEST_STEADY)], rel=0.1)


def settled_at_home(rng: random.Random) -> UpdateFilter:
    news = UpdateFilter(0.05, 0.1)
    for _ in range(1000):
        sample(news, rng, moved(rng.gauss(0.0, 5.0)), HERE)
    return news


def sample(news: UpdateFilter, rng: random.Random, raw: Coordinate, truth: Coordinate) -> Coordinate:
    """One from where a node really is to another; a fifth of the others lie."""
    other = rng.choice(OTHERS)
    rtt_ms = truth.rtt_ms(other) if rng.random() > 0.2 else 1000.0
    news.compare(rtt_ms, other, raw)
    return news.take(raw, SETTLED_PROBES)


def test_one_that_has_moved_is_soon_said_to_be_where_it_is() -> None:
    rng = random.Random(1)
    news = settled_at_home(rng)
    for _ in range(60):
        place = sample(news, rng, moved(100.0 + rng.gauss(0.0, 5.0)), moved(100.0))
    assert place.vector_ms[0] == pytest.approx(100.0, rel=0.1)


def test_one_whose_place_only_trembles_stays_where_it_is() -> None:
    rng = random.Random(2)
    news = settled_at_home(rng)
    trembling = [sample(news, rng, moved(5.0 * (-1.0) ** (number // 20)), HERE) for number in range(400)]
    assert max(abs(place.vector_ms[0]) for place in trembling) < 1.0


def test_a_place_at_its_bounds_stays_within_them() -> None:
    at_the_bounds = msgspec.structs.replace(HERE, factors=(MAX_FACTOR, -MAX_FACTOR, MAX_FACTOR))
    news = UpdateFilter(0.05, 0.1)
    for _ in range(100):
        news.take(at_the_bounds, SETTLED_PROBES).check(2)
