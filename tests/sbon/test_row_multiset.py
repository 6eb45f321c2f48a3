from __future__ import annotations

import math
import random

import pytest

from sbon.row_multiset import difference

#: On a boundary of rounding to six digits: what is a bit less and what is a bit more are written differently.
EDGE = 1.0000005
ABOVE, BELOW = EDGE * (1 + 1e-13), EDGE * (1 - 1e-13)


def test_noise_in_the_last_bits_pairs_no_rows_differently() -> None:
    assert f"{ABOVE:.6e}" != f"{BELOW:.6e}"
    assert difference([("a", ABOVE, 1.0), ("a", BELOW, 2.0)], [("a", BELOW, 1.0), ("a", ABOVE, 2.0)]) is None


@pytest.mark.parametrize("wrap", [lambda x: [x], lambda x: (1, [x]), lambda x: {"x": x}])
def test_floats_inside_of_others_are_compared_alike(wrap: object) -> None:
    assert callable(wrap)
    ours, theirs = [(wrap(ABOVE), 1.0), (wrap(BELOW), 2.0)], [(wrap(BELOW), 1.0), (wrap(ABOVE), 2.0)]
    assert difference(ours, theirs) is None
    assert difference(ours, [(wrap(BELOW), 1.0), (wrap(EDGE + 1e-6), 2.0)]) is not None


def test_rows_count_as_often_as_they_are_there() -> None:
    assert difference([("a", 1), ("b", 2)], [("b", 2), ("a", 1)]) is None
    assert difference([("a",), ("a",), ("b",)], [("a",), ("b",), ("b",)]) == "('a',) against ('b',)"
    assert difference([("a",)], []) == "1 rows against 0"
    assert difference([("a", None), ("a", 1)], [("a", 1), ("a", None)]) is None
    assert difference([], []) is None


def test_a_float_that_is_another_one_is_told() -> None:
    assert difference([("a", 1.0), ("b", 2.0)], [("b", 2.1), ("a", 1.0)]) == "('b', 2.0) against ('b', 2.1)"
    assert difference([(1.0, 2.0), (3.0, 4.0)], [(1.0, 4.0), (3.0, 2.0)]) is not None
    assert difference([(0.0,)], [(1e-300,)]) is not None


def test_what_is_no_number_is_itself() -> None:
    ours = [(math.nan, 1.0), (math.inf, 2.0), (-math.inf, 3.0)]
    assert difference(ours, ours[::-1]) is None
    assert difference([(math.nan,)], [(1.0,)]) is not None
    assert difference([(math.nan,)], [("nan",)]) is not None


def test_values_nearer_to_each_other_than_the_tolerance_are_still_compared_one_by_one() -> None:
    """Seconds since the epoch, where the tolerance is 1.7 s: all are near some other, and not all are the same."""
    seconds = [1.7e9 + i for i in range(100)]
    ours = [(seconds[i], seconds[-i]) for i in range(100)]
    assert difference(ours, ours[::-1]) is None
    assert difference([(x,) for x in seconds], [(seconds[50],) for _ in seconds]) is not None
    # Noise in the one column puts rows into another order, which the other one shows to be wrong.
    begin, noisy = seconds[0], seconds[0] * (1 + 1e-15)
    chain = [(begin, x) for x in seconds[2:98]]
    swapped = [(begin, seconds[99]), (noisy, seconds[1])]
    assert difference([*chain, (begin, seconds[1]), (noisy, seconds[99])], [*chain, *swapped]) is None


def test_noise_makes_no_difference_to_many_rows() -> None:
    rng = random.Random(4)
    rows = [(0.0, rng.random(), [rng.random()]) for _ in range(3_000)]
    noisy = [(x, y * (1 + rng.uniform(-1e-12, 1e-12)), z) for x, y, z in rows]
    rng.shuffle(noisy)
    assert difference(rows, noisy) is None
