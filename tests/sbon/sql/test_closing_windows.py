"""When windows close, and what an aggregate promises then, over all windows of small lengths."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sbon.fragment import FragmentKind, FragmentSpec
from sbon.sql.plan import plan_query
from tests.sbon.sql.streams import CATALOG


def aggregate(lengths: str, bound: str) -> FragmentSpec:
    query = f"SELECT window.{bound} AS t, count(*) AS n FROM flights GROUP BY window(ts, {lengths})"
    plan = plan_query(f"INSERT INTO result {query}", "q", CATALOG)
    return next(spec for spec in plan.fragments if spec.kind == FragmentKind.AGGREGATE)


@settings(deadline=None, max_examples=50)
@given(st.integers(1, 9), st.integers(1, 9), st.integers(-9, 9), st.sampled_from(["start", "end"]))
def test_windows_close_at_steps_and_later_ones_keep_the_promise(
    one_s: int, other_s: int, offset_s: int, bound: str
) -> None:
    length_s, slide_s = max(one_s, other_s), min(one_s, other_s)
    spec = aggregate(f"'{length_s} seconds', '{slide_s} seconds', '{offset_s} seconds'", bound)
    assert spec.watermark_steps is not None
    starts_s = range(-30 * slide_s + offset_s, 30 * slide_s, slide_s)
    for watermark_ms in range(-20_000, 20_000, 500):
        spark_ms = spec.watermark_steps.reached_ms(watermark_ms)
        promised_ms = spec.watermark_steps.next_ms(spark_ms) - spec.watermark_lag_ms
        for start_ms, end_ms in ((start_s * 1000, (start_s + length_s) * 1000) for start_s in starts_s):
            assert (end_ms <= spark_ms) == (end_ms <= watermark_ms), "no later than without steps"
            if end_ms > spark_ms:
                assert (start_ms if bound == "start" else end_ms) >= promised_ms >= watermark_ms - length_s * 1000


@pytest.mark.parametrize("lengths", ["'0.0015 seconds'", "'2 seconds', '1 second', '0.0001 seconds'"])
def test_windows_that_close_between_two_milliseconds_have_no_steps(lengths: str) -> None:
    spec = aggregate(lengths, "start")
    assert spec.watermark_steps is None
