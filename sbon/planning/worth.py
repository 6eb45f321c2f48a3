"""Whether a running query gets another plan: the same for the daemon and for the simulator."""

from __future__ import annotations

import math

#: A new plan is to save this share of the old one's cost: what has not run yet has estimated rates.
LEAST_SAVING = 0.1


def pays(
    cost_now: float,
    cost_then: float,
    *,
    least_saving: float = LEAST_SAVING,
    lasts_s: float = math.inf,
    both_s: float = 0.0,
) -> bool:
    """Costs (bytes in transit, and load) are those of what would end, and of what would come in its place.

    ``lasts_s``: so long the query goes on; for ``both_s`` both plans run.
    """
    saving = cost_now - cost_then
    return saving > 0.0 and saving >= least_saving * cost_now and saving * lasts_s > cost_then * both_s
