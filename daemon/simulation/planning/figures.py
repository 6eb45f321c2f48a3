"""The results of ``sbon simulate planning``, as ``--json`` prints them."""

from __future__ import annotations

import msgspec


class PlannerFigures(msgspec.Struct, frozen=True):
    """One planner that planned all queries, each given what it had deployed before.

    ``cumulative_cost``: bytes in transit on all links when all queries run. ``above_optimal``: that, over what the
    independent optimum of every query in turn comes to, less one. ``plans`` and ``steps`` are per query: plans among
    which was chosen, and table entries looked at for it. ``joins``, ``filters``: operators that run at the end;
    ``reused``: streams that ran already and were read by a new query. ``replanned_*``: after a pass that planned
    running queries anew.
    """

    cumulative_cost: float
    above_optimal: float | None
    plans: float
    steps: float
    joins: int
    filters: int
    reused: int
    milliseconds_per_query: float
    measured_paths_per_query: float | None = None
    replanned_cost: float | None = None
    replanned_moves: int | None = None


class PlanningReport(msgspec.Struct, frozen=True):
    """Everything but times is the same whenever the same seed is run."""

    seed: int
    network: str
    hosts: int
    workload: str
    width: str | None
    queries: int
    view: str
    max_cs: int
    levels: tuple[int, ...]
    optimal_cost: float | None
    planners: dict[str, PlannerFigures]
    seconds: float = 0.0


class SearchSpace(msgspec.Struct, frozen=True):
    """Plans among which is chosen for one query, on average over all, for a network of so many hosts.

    ``bound``: theorems 2 and 4 of Seshadri et al. (TPDS'09); ``exhaustive``: lemma 1.
    """

    hosts: int
    height: int
    top_down: float
    npc: float
    bottom_up: float
    bound: float
    exhaustive: float


class SearchSpaceReport(msgspec.Struct, frozen=True):
    seed: int
    queries: int
    streams: int
    max_cs: int
    networks: tuple[SearchSpace, ...]
    seconds: float = 0.0
