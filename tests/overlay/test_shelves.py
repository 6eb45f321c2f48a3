"""Notices on shelves: found by name, kept for a while, bounded. That they are found from anywhere: test_searches.py."""

from __future__ import annotations

import math

from overlay.records import NodeRecord
from overlay.shelves import (
    MAX_NOTICES,
    MAX_TOPIC,
    MAX_TOPICS,
    NOTICE_S,
    RADIUS_MS,
    SHELVES,
    Board,
    place_of,
    shelf_of,
)
from sbon.coordinate import origin


def owner(number: int) -> NodeRecord:
    return NodeRecord(f"{number:032x}", f"n{number}", "127.0.0.1", 1000 + number, 1, origin())


def test_names_are_spread_over_shelves_that_stand_apart() -> None:
    assert shelf_of("Flights") == shelf_of("FLIGHTS")
    assert {shelf_of(f"stream{number}") for number in range(300)} == set(range(SHELVES))
    places = [place_of(shelf, 4) for shelf in range(SHELVES)]
    for number, place in enumerate(places):
        place.check(4)
        assert math.hypot(*place.vector_ms) <= RADIUS_MS
        assert all(place.rtt_ms(other) > 1.0 for other in places[:number])


def test_a_notice_is_found_by_name_until_it_is_no_longer_left_anew() -> None:
    board = Board()
    assert board.leave(owner(1), ["Flights", "weather"], 0.0)
    assert board.leave(owner(2), ["flights"], 10.0)
    assert board.find(["FLIGHTS"], 11.0) == [owner(1), owner(2)]
    assert board.find(["weather"], 11.0) == [owner(1)]
    assert board.find(["bags"], 11.0) == []
    assert board.leave(owner(1), ["bags"], 20.0)  # that is all it has now
    assert board.find(["weather"], 21.0) == []
    assert board.find(None, NOTICE_S + 15.0) == [owner(1)]
    assert board.find(None, NOTICE_S + 25.0) == []


def test_a_board_is_bounded_and_nobody_fills_it_alone() -> None:
    board = Board()
    assert not board.leave(owner(0), [f"s{number}" for number in range(MAX_TOPICS + 1)], 0.0)
    full = [f"s{number}" for number in range(MAX_TOPICS)]
    taken = [board.leave(owner(number), full, 0.0) for number in range(MAX_NOTICES // MAX_TOPICS + 1)]
    assert taken == [True] * (MAX_NOTICES // MAX_TOPICS) + [False]
    assert board.leave(owner(0), full, 1.0)  # anew


def test_who_has_nothing_is_not_kept_and_a_name_without_end_neither() -> None:
    board = Board()
    for number in range(MAX_NOTICES):
        assert board.leave(owner(number), [], 0.0)
    assert board.find(None, 1.0) == []
    assert board.leave(owner(1), ["flights", "f" * (MAX_TOPIC + 1)], 1.0)
    assert board.find(["f" * (MAX_TOPIC + 1)], 2.0) == []
    assert board.find(None, 2.0) == [owner(1)]
    assert board.leave(owner(1), [], 3.0)
    assert board.find(None, 4.0) == []
