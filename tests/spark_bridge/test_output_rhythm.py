"""When a fragment is best stopped."""

from __future__ import annotations

import threading

import pytest

from spark_bridge.output_rhythm import OutputRhythm


class _Clock:
    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def _after(*gaps_s: float) -> tuple[OutputRhythm, _Clock]:
    clock = _Clock()
    rhythm = OutputRhythm(clock)
    rhythm.rows_left()
    for gap_s in gaps_s:
        clock.now_s += gap_s
        rhythm.rows_left()
    return rhythm, clock


def test_whoever_lets_rows_out_often_is_waited_for() -> None:
    rhythm, _ = _after(1.0, 1.0, 1.0, 1.0)
    heard: list[bool] = []
    waiter = threading.Thread(target=lambda: heard.append(rhythm.wait_for_rows()))
    waiter.start()
    waiter.join(0.05)
    assert waiter.is_alive()
    assert rhythm.rows_come()
    assert heard == []
    rhythm.rows_left()
    waiter.join(5.0)
    assert heard == [True]
    assert not rhythm.rows_come()


def test_rows_of_a_batch_that_had_ended_before_are_not_enough() -> None:
    """The next one may have begun."""
    rhythm, _ = _after(1.0, 1.0, 1.0, 1.0)
    assert not rhythm.rows_come()
    heard: list[bool] = []
    waiter = threading.Thread(target=lambda: heard.append(rhythm.wait_for_rows()))
    waiter.start()
    waiter.join(0.05)
    rhythm.rows_left()
    waiter.join(0.05)
    assert heard == []
    assert rhythm.rows_come()
    rhythm.rows_left()
    waiter.join(5.0)
    assert heard == [True]


def test_one_of_whom_little_is_known_is_not_waited_for() -> None:
    assert OutputRhythm().due_within_s() == 0.0
    assert _after(0.1)[0].due_within_s() == 0.0
    assert _after(0.1, 0.1)[0].due_within_s() > 0.0


def test_who_lets_rows_out_seldom_is_not_waited_for() -> None:
    """One whose batches take a few seconds is."""
    assert _after(4.5, 4.5, 4.5, 4.5)[0].due_within_s() == pytest.approx(18.0)
    assert _after(7.0, 7.0, 7.0, 7.0)[0].due_within_s() == 0.0


def test_one_that_has_fallen_silent_is_not_waited_for() -> None:
    rhythm, clock = _after(1.0, 1.0, 1.0, 1.0)
    clock.now_s += 1.5
    assert rhythm.due_within_s() == pytest.approx(2.5)
    clock.now_s += 3.0
    assert rhythm.due_within_s() < 0.0
    assert not rhythm.wait_for_rows()


def test_who_waits_in_vain_gives_up() -> None:
    assert not _after(0.05, 0.05, 0.05, 0.05)[0].wait_for_rows()
