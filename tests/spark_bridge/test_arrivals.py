from __future__ import annotations

import threading
import time

import pytest

from spark_bridge.arrivals import Arrivals
from spark_bridge.stopped_error import StoppedError

PATIENCE_S = 30.0


@pytest.fixture(autouse=True)
def _nothing_is_being_connected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("spark_bridge.arrivals.FIRST_WITHIN_S", 0.0)


def ask(arrivals: Arrivals, port: str) -> tuple[threading.Thread, list[bool]]:
    """As Spark does, from a thread of its own; the answer comes into the list."""
    answers: list[bool] = []
    thread = threading.Thread(target=lambda: answers.append(arrivals.wait(port)), daemon=True)
    thread.start()
    return thread, answers


def asked_after_a_segment_without_rows() -> tuple[Arrivals, threading.Thread, list[bool]]:
    """Of one that is there for rows: a batch has begun, and then nothing but that segment has come."""
    arrivals = Arrivals(0.0, for_rows=True)
    assert arrivals.wait("in0")
    arrivals.batch_begins()
    assert not arrivals.wait("in0")
    arrivals.tell(0)
    return arrivals, *ask(arrivals, "in0")


def test_a_segment_at_one_port_is_news_to_each_source_once() -> None:
    arrivals = Arrivals(0.0)
    assert arrivals.wait("in0")
    assert arrivals.wait("in1")
    first, answers = ask(arrivals, "in0")
    assert first.is_alive()
    arrivals.tell(1)
    first.join(PATIENCE_S)
    assert answers == [True]
    assert arrivals.wait("in1")
    second, answers = ask(arrivals, "in1")
    assert second.is_alive()
    assert answers == []
    arrivals.stop()
    second.join(PATIENCE_S)
    assert answers == [False]


def test_after_a_batch_spark_is_told_once_that_there_is_nothing_new() -> None:
    arrivals = Arrivals(0.0)
    for port in ("in0", "in1"):
        assert arrivals.wait(port)
    arrivals.batch_begins()
    assert not arrivals.wait("in0")
    assert not arrivals.wait("in1")
    arrivals.tell(1)
    assert arrivals.wait("in0")
    assert arrivals.wait("in1")


def test_input_that_came_during_a_batch_goes_with_the_one_that_closes_windows() -> None:
    arrivals = Arrivals(0.0)
    for port in ("in0", "in1"):
        assert arrivals.wait(port)
    arrivals.found()
    arrivals.batch_begins()
    arrivals.tell(1)
    for port in ("in0", "in1"):
        assert arrivals.wait(port)


def test_input_of_one_port_goes_with_it_when_the_other_was_asked_before() -> None:
    arrivals = Arrivals(0.0)
    for port in ("in0", "in1"):
        assert arrivals.wait(port)
    arrivals.batch_begins()
    assert not arrivals.wait("in0")
    arrivals.tell(1)
    assert arrivals.wait("in1")
    arrivals.found()
    arrivals.batch_begins()
    assert arrivals.wait("in0")


def test_the_next_batch_waits_for_the_pause_though_there_is_news() -> None:
    arrivals = Arrivals(3600.0)
    run_batch(arrivals)
    check_that_it_waits(arrivals)


def held() -> Arrivals:
    """It is about to be stopped; there is news, and nothing else keeps it from looking."""
    arrivals = Arrivals(0.0)
    assert arrivals.wait("in0")
    arrivals.hold()
    arrivals.tell(1)
    return arrivals


def test_one_that_is_about_to_be_stopped_begins_no_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("spark_bridge.arrivals.HELD_S", 3600.0)
    check_that_it_waits(held())


def test_one_that_is_not_stopped_after_all_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("spark_bridge.arrivals.HELD_S", 0.05)
    assert held().wait("in0")


def test_the_batch_that_closes_windows_is_not_planned_when_the_query_stops() -> None:
    arrivals = Arrivals(0.0)
    assert arrivals.wait("in0")
    arrivals.batch_begins()
    arrivals.stop()
    with pytest.raises(StoppedError):
        arrivals.wait("in0")
    assert not arrivals.wait("in0")


@pytest.mark.parametrize("for_rows", [False, True])
def test_the_first_batch_waits_for_what_comes_as_inputs_are_connected(
    monkeypatch: pytest.MonkeyPatch, for_rows: bool
) -> None:
    monkeypatch.setattr("spark_bridge.arrivals.FIRST_WITHIN_S", 3600.0)
    arrivals = Arrivals(0.0, for_rows=for_rows)
    thread, answers = ask(arrivals, "in0")
    thread.join(0.05)
    assert answers == []
    arrivals.tell(1)
    thread.join(PATIENCE_S)
    assert answers == [True]


def test_the_first_batch_does_not_wait_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("spark_bridge.arrivals.FIRST_WITHIN_S", 0.05)
    assert Arrivals(0.0).wait("in0")


def test_a_batch_that_began_late_does_not_put_off_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("spark_bridge.arrivals._LATE_S", 3600.0)
    arrivals = Arrivals(3600.0)
    for _ in range(2):
        run_batch(arrivals)
    check_that_it_waits(arrivals)


def run_batch(arrivals: Arrivals) -> None:
    """With input, and some comes meanwhile."""
    assert arrivals.wait("in0")
    arrivals.found()
    arrivals.batch_begins()
    assert not arrivals.wait("in0")
    arrivals.tell(1)


def check_that_it_waits(arrivals: Arrivals) -> None:
    """Until it is stopped."""
    thread, answers = ask(arrivals, "in0")
    thread.join(0.05)
    assert answers == []
    arrivals.stop()
    thread.join(PATIENCE_S)
    assert answers == [False]


def test_a_port_that_has_nothing_new_does_not_hold_up_one_that_has() -> None:
    """A segment came to in0 between the questions for in0 and for in1: in1 had looked at that news, in0 had not."""
    arrivals = Arrivals(0.0)
    assert arrivals.wait("in0")
    arrivals.tell(1)
    assert arrivals.wait("in1")
    arrivals.batch_begins()
    assert arrivals.wait("in0")
    arrivals.found()
    assert arrivals.wait("in1")
    arrivals.batch_begins()
    assert not arrivals.wait("in0")
    assert not arrivals.wait("in1")
    waiting, answers = ask(arrivals, "in0")
    assert waiting.is_alive()
    arrivals.stop()
    waiting.join(PATIENCE_S)
    assert answers == [False]


def test_after_a_batch_without_input_the_next_one_need_not_wait() -> None:
    """Windows close in a batch of their own after the one that has moved the watermark."""
    arrivals = Arrivals(3600.0)
    assert arrivals.wait("in0")
    arrivals.batch_begins()
    assert not arrivals.wait("in0")
    arrivals.tell(1)
    assert arrivals.wait("in0")


@pytest.mark.parametrize(("for_rows", "rows"), [(False, 0), (False, 1), (True, 0), (True, 1)])
def test_a_segment_that_came_before_a_batch_which_asked_nobody_is_looked_at_after_it(for_rows: bool, rows: int) -> None:
    """After a start, the first batch is one that was planned before the stop."""
    arrivals = Arrivals(3600.0, for_rows=for_rows)
    arrivals.tell(rows)
    arrivals.batch_begins()
    thread, answers = ask(arrivals, "in0")
    thread.join(PATIENCE_S)
    assert answers == [True]


@pytest.mark.parametrize(("rows", "ended"), [(1, False), (0, True)])
def test_who_is_there_for_rows_waits_for_those_that_follow_a_segment_without_any(
    monkeypatch: pytest.MonkeyPatch, rows: int, ended: bool
) -> None:
    monkeypatch.setattr("spark_bridge.arrivals.ROWS_FOLLOW_S", 3600.0)
    arrivals, thread, answers = asked_after_a_segment_without_rows()
    thread.join(0.05)
    assert answers == []
    arrivals.tell(rows, ended)
    thread.join(PATIENCE_S)
    assert answers == [True]


def test_a_segment_without_rows_is_looked_at_in_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("spark_bridge.arrivals.ROWS_FOLLOW_S", 0.05)
    _, thread, answers = asked_after_a_segment_without_rows()
    thread.join(PATIENCE_S)
    assert answers == [True]


def test_a_source_of_sparks_own_rests_until_the_next_multiple_of_its_pause_by_the_wall_clock(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    until_then_s = 0.2
    monkeypatch.setattr("spark_bridge.arrivals.time.time", lambda: 7200.0 - until_then_s)
    arrivals = Arrivals(3600.0)
    began_s = time.monotonic()
    arrivals.batch_begins()
    arrivals.rest()
    assert time.monotonic() - began_s >= until_then_s - 1e-6


def test_who_is_stopped_rests_no_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("spark_bridge.arrivals.time.time", lambda: 7200.0)
    arrivals = Arrivals(3600.0)
    arrivals.batch_begins()
    resting = threading.Thread(target=arrivals.rest, daemon=True)
    resting.start()
    resting.join(0.05)
    assert resting.is_alive()
    arrivals.stop()
    resting.join(PATIENCE_S)
    assert not resting.is_alive()


def test_without_a_pause_nobody_rests() -> None:
    arrivals = Arrivals(0.0)
    arrivals.batch_begins()
    arrivals.rest()
