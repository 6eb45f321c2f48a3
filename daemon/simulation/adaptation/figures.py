"""The results of ``sbon simulate adaptation``, as ``--json`` prints them."""

from __future__ import annotations

import msgspec


class AdaptationReport(msgspec.Struct, frozen=True):
    """Everything but times is the same whenever the same seed is run. Shares: 0.1 is a tenth.

    *Saved* is what migrating queries use (or take) less than their pinned twins, all queries and the whole time taken
    together. The *omniscient* has every query at the true optimum at every moment, at no cost; ``recovered`` is the
    share of its saving that the migrating queries have, None where it saves next to nothing. ``queries_that_gain`` use
    at least a thousandth less than their twins, ``queries_that_lose`` a thousandth more. ``moves_after_convergence``
    are those, of all queries, after the first hour. ``move_usage`` is what moved states spend in transit, as a share of
    the usage that the migrating queries save.
    """

    seed: int
    network: str
    hosts: int
    queries: int
    shape: str
    first: str
    hours: float
    jitter: float
    route_changes: float
    usage_saved: float
    delay_saved: float
    omniscient_usage_saved: float
    recovered: float | None
    moves_per_query: float
    omniscient_moves_per_query: float
    moves_after_convergence: int
    queries_that_gain: float
    queries_that_lose: float
    move_usage: float | None
    searches_per_query_hour: float
    candidates_measured_per_query_hour: float
    milliseconds_per_look: float
    seconds: float = 0.0
