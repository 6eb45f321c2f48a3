"""When a fragment is best stopped."""

from __future__ import annotations

import threading
import time

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


def _waits(rhythm: OutputRhythm) -> tuple[bool, float]:
    began_s = time.monotonic()
    return rhythm.wait_for_rows(), time.monotonic() - began_s


def test_whoever_lets_rows_out_often_is_waited_for() -> None:
    rhythm, _ = _after(1.0, 1.0, 1.0, 1.0)
    heard: list[bool] = []
    waiter = threading.Thread(target=lambda: heard.append(rhythm.wait_for_rows()))
    waiter.start()
    waiter.join(0.05)
    assert waiter.is_alive()
    rhythm.rows_left()
    waiter.join(5.0)
    assert heard == [True]


def test_one_of_whom_little_is_known_is_not_waited_for() -> None:
    rhythm, _ = _after(0.1)
    assert _waits(rhythm)[0] is False
    assert _waits(OutputRhythm())[0] is False


def test_who_lets_rows_out_seldom_is_not_waited_for() -> None:
    rhythm, _ = _after(60.0, 60.0, 60.0, 60.0)
    heard, waited_s = _waits(rhythm)
    assert not heard
    assert waited_s < 30.0


def test_one_that_has_fallen_silent_is_not_waited_for() -> None:
    rhythm, clock = _after(1.0, 1.0, 1.0, 1.0)
    clock.now_s += 4.5
    assert _waits(rhythm)[0] is False


def test_nobody_is_waited_for_much_longer_than_usual() -> None:
    rhythm, _ = _after(0.05, 0.05, 0.05, 0.05)
    assert _waits(rhythm)[0] is False
