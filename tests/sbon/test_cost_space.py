from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sbon.cost_space import LoadScaling, load_ms


def test_load_is_linear_unless_told_otherwise() -> None:
    assert load_ms(0.5, 20.0) == 10.0
    assert load_ms(3.0, 20.0) == 60.0
    assert load_ms(-1.0, 20.0) == 0.0


def test_a_convex_load_is_that_of_a_queue() -> None:
    assert load_ms(0.5, 20.0, LoadScaling.CONVEX) == pytest.approx(20.0)
    assert load_ms(0.9, 20.0, LoadScaling.CONVEX) == pytest.approx(180.0)
    assert load_ms(0.01, 20.0, LoadScaling.CONVEX) == pytest.approx(load_ms(0.01, 20.0), rel=0.02)


@given(st.floats(0.0, 200.0), st.floats(0.0, 200.0), st.sampled_from(LoadScaling))
def test_load_parts_grow_and_are_convex_up_to_their_bound(a: float, b: float, scaling: LoadScaling) -> None:
    low, high = sorted((a, b))
    assert load_ms(low, 20.0, scaling) <= load_ms(high, 20.0, scaling)
    if high <= 100.0:
        middle = load_ms((low + high) / 2.0, 20.0, scaling)
        assert middle <= (load_ms(low, 20.0, scaling) + load_ms(high, 20.0, scaling)) / 2.0 + 1e-6
