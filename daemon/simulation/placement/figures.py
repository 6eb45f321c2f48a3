"""The results of ``sbon simulate placement``, as ``--json`` prints them."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from daemon.simulation.figures import quantile

#: What the founding paper has for ``aggregate-4`` on its transit-stub network: mean penalties of network usage and of
#: delay by strategy, as shares (SBON ICDE'06 table 1).
PAPER = {
    "optimal": (0.0, 0.13),
    "relaxation": (0.15, 0.24),
    "multicast": (0.27, 0.0),
    "producer": (0.43, 0.75),
    "consumer": (0.60, 0.0),
    "random": (0.81, 0.76),
}


class Penalty(msgspec.Struct, frozen=True):
    """Shares: 0.15 is 15 % more."""

    mean: float
    p50: float
    p80: float
    p90: float

    @staticmethod
    def of(values: Sequence[float]) -> Penalty:
        mean = sum(values) / len(values)
        return Penalty(round(mean, 5), *(round(quantile(values, q), 5) for q in (0.5, 0.8, 0.9)))


class StrategyFigures(msgspec.Struct, frozen=True):
    """One strategy over all queries. ``milliseconds_per_query`` is its own computing, searches and measuring left
    out. ``operators_on_overloaded``: of all queries."""

    network_usage_penalty: Penalty
    delay_penalty: Penalty
    candidates_measured_per_operator: float
    rtt_samples_per_query: float
    milliseconds_per_query: float
    operators_on_overloaded: int = 0


class PlacementReport(msgspec.Struct, frozen=True):
    """Everything but times is the same whenever the same seed is run. ``paper``: :data:`PAPER`, where the experiment is
    the paper's."""

    seed: int
    network: str
    hosts: int
    candidates: int
    queries: int
    shape: str
    probes: int
    coordinates: str
    overloaded: float
    relative_error: float
    strategies: dict[str, StrategyFigures]
    paper: dict[str, tuple[float, float]] | None = None
    seconds: float = 0.0
