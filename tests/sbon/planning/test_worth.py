"""Whether a running query gets another plan."""

from __future__ import annotations

import pytest

from sbon.planning.worth import pays


@pytest.mark.parametrize(
    ("cost_now", "cost_then", "lasts_s", "both_s", "expected"),
    [
        (100.0, 90.0, 1000.0, 10.0, True),
        (100.0, 91.0, 1000.0, 10.0, False),  # rates are not known that well
        (100.0, 90.0, 80.0, 10.0, False),  # it ends before that is repaid
        (100.0, 90.0, float("inf"), 10.0, True),
        (0.0, 0.0, float("inf"), 0.0, False),
        (100.0, 120.0, float("inf"), 0.0, False),
    ],
)
def test_a_new_plan_is_to_save_a_tenth_and_to_repay_the_time_in_which_both_run(
    cost_now: float, cost_then: float, lasts_s: float, both_s: float, expected: bool
) -> None:
    assert pays(cost_now, cost_then, lasts_s=lasts_s, both_s=both_s) is expected
