from __future__ import annotations

import random

import msgspec
import pytest

from sbon.coordinate import MAX_FACTOR, Coordinate
from sbon.update_filter import SMOOTHING, UpdateFilter

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
    for error, is_settling, is_news in ((0.3, True, True), (0.1, True, False), (0.3, False, False)):
        place = msgspec.structs.replace(step, error=error)
        news.take(place, is_settling=is_settling)
        assert news.is_news(place, predictions(HERE)) is is_news


def test_small_round_trips_change_by_the_least_amount() -> None:
    near = Coordinate((0.5, 0.0), 0.0, 0.1)
    here = Coordinate((0.0, 0.0), 0.0, 0.1)
    assert not UpdateFilter(0.05, 0.3).is_news(Coordinate((0.2, 0.0), 0.0, 0.1), [(near, here.rtt_ms(near))])
    assert UpdateFilter(0.05, 0.3).is_news(Coordinate((0.0, 0.9), 0.0, 0.1), [(near, here.rtt_ms(near))])


def test_with_nobody_to_tell_there_is_no_news() -> None:
    assert not UpdateFilter(0.05, 0.1).is_news(moved(500.0), [])


def test_the_place_of_a_settled_node_is_smoothed_and_follows() -> None:
    rng = random.Random(1)
    news = UpdateFilter(0.05, 0.1)
    for x in (50.0, 20.0, 0.0):
        assert news.take(moved(x), is_settling=True) == moved(x), "a new node is where it is"
    places = [news.take(moved(rng.gauss(0.0, 5.0)), is_settling=False) for _ in range(200)][100:]
    assert max(abs(place.vector_ms[0]) for place in places) < 3.0
    for _ in range(int(3.0 / SMOOTHING)):
        place = news.take(moved(100.0), is_settling=False)
    assert place.vector_ms[0] == pytest.approx(100.0, rel=0.1)
    assert place.factors == HERE.factors


def test_a_place_at_its_bounds_stays_within_them() -> None:
    at_the_bounds = msgspec.structs.replace(HERE, factors=(MAX_FACTOR, -MAX_FACTOR, MAX_FACTOR))
    news = UpdateFilter(0.05, 0.1)
    for _ in range(100):
        news.take(at_the_bounds, is_settling=False).check(2)
