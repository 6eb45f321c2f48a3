"""Meters of the engine, without Spark."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from spark_bridge.processor_time import ProcessorTime, spent_by_tree_s
from spark_bridge.statistics import FragmentMeters, RateMeter


def test_a_rate_is_right_from_the_start_and_settled_later() -> None:
    meter = RateMeter(100.0)
    for second in range(1, 60):
        meter.add(5, 100.0 + second)
        assert meter.per_s(100.0 + second) == pytest.approx(5.0, rel=0.2)
        assert (meter.settled_per_s(100.0 + second) is None) == (second < 10)


def test_what_was_never_seen_is_not_measured() -> None:
    assert RateMeter(0.0).settled_per_s(1000.0) is None


def test_processor_time_is_divided_by_the_time_spent_in_batches_and_nothing_of_it_is_lost() -> None:
    one, other, idle = (FragmentMeters(0.0) for _ in range(3))
    time = ProcessorTime(spent_s=20.0)  # before there was anything
    one.busy_s, other.busy_s = 3.0, 1.0
    assert time.is_due([one, other, idle])
    time.divide([one, other, idle], spent_s=22.0, now=1.0)
    assert [each.processor_s.total for each in (one, other, idle)] == [1.5, 0.5, 0.0]
    assert not time.is_due([one, other, idle])
    other.busy_s += 0.1
    time.divide([other, idle], spent_s=23.0, now=2.0)  # one has left
    assert [each.processor_s.total for each in (one, other, idle)] == [1.5, 1.5, 0.0]


def test_processes_that_have_ended_count() -> None:
    before_s = spent_by_tree_s(os.getpid())
    busy = "import time\nwhile time.process_time() < 0.5: pass"
    subprocess.run([sys.executable, "-c", busy], check=True)
    assert spent_by_tree_s(os.getpid()) - before_s >= 0.45
