from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sbon.latency_filter import PercentileFilter

samples = st.lists(st.floats(0.01, 1000), min_size=1, max_size=40)


def test_it_starts_without_a_value() -> None:
    empty = PercentileFilter()
    assert (empty.value, empty.samples) == (None, 0)


@given(samples)
def test_the_value_is_the_nearest_rank_of_the_last_ten(ms: list[float]) -> None:
    latency = PercentileFilter()
    for sample in ms:
        latency.add(sample)
    recent = sorted(ms[-10:])
    assert latency.value == recent[math.ceil(0.2 * len(recent)) - 1]
    assert latency.samples == len(ms)


def test_one_outlier_of_either_sort_is_not_heard() -> None:
    latency = PercentileFilter()
    for ms in (50, 51, 900, 50, 52, 3, 51, 50, 2000, 51):
        latency.add(ms)
    assert latency.value == 50


def test_a_slower_path_is_followed_within_nine_samples_and_a_faster_one_within_two() -> None:
    latency = PercentileFilter()
    for _ in range(10):
        latency.add(50.0)
    for _ in range(9):
        latency.add(200.0)
    assert latency.value == 200.0
    latency.add(30.0)
    latency.add(30.0)
    assert latency.value == 30.0


def test_what_is_not_a_number_is_refused() -> None:
    latency = PercentileFilter()
    with pytest.raises(ValueError, match="nan"):
        latency.add(math.nan)
    assert (latency.value, latency.samples) == (None, 0)
