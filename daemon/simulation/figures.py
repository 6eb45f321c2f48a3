"""The results of a run, as ``--json`` prints them."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec


class Spread(msgspec.Struct, frozen=True):
    median: float
    p90: float


class Delay(msgspec.Struct, frozen=True):
    """Seconds. ``crashes``: how many were measured; ``unseen``: how many were still held as alive at the end."""

    median: float | None
    p99: float | None
    crashes: int
    unseen: int


class Mean(msgspec.Struct, frozen=True):
    mean: float
    p99: float


class SearchFigures(msgspec.Struct, frozen=True):
    """``contacts``: hosts asked. ``cost_ratio``: mean cost of the ten found over that of the ten best."""

    recall_at_10: float
    recall_at_1: float
    contacts_mean: float
    contacts_p99: float
    cost_ratio: float
    seconds_p99: float
    searches: int
    unfinished: int


class OverlayReport(msgspec.Struct, frozen=True):
    """Everything but ``seconds`` and ``node_hours_per_cpu_minute`` is the same whenever the same seed is run."""

    seed: int
    nodes: int
    minutes: float
    network: str
    nodes_live: int
    relative_error: Spread | None
    pairs: int
    relative_error_by_minute: tuple[float, ...]
    minutes_to_converge: float | None
    knn: SearchFigures | None
    usage_search: SearchFigures | None
    recall_by_minute: dict[str, tuple[float | None, ...]]
    contacts_p99_by_minute: dict[str, tuple[float | None, ...]]
    detection_s: Delay | None
    false_removals: int
    removals: tuple[str, ...]
    bytes_per_node_per_s: Mean | None
    bytes_per_node_per_s_by_minute: tuple[float, ...]
    messages_per_node_per_s: float | None
    bytes_per_node_per_s_by_kind: dict[str, float]
    messages_per_node_per_s_by_kind: dict[str, float]
    peers_per_node_max: int
    violations: tuple[str, ...]
    attack: str | None
    attacks: dict[str, Spread]
    deliveries: int
    digest: str
    seconds: float = 0.0
    node_hours_per_cpu_minute: float = 0.0


class FailedSeed(msgspec.Struct, frozen=True):
    """``command`` replays it."""

    seed: int
    problems: tuple[str, ...]
    command: str


class FaultsReport(msgspec.Struct, frozen=True):
    """Of many seeds. From the end of the faults, ``healed_s``: until all live nodes reached each other over links;
    ``settled_s``: until the overlay had converged."""

    seeds: str
    runs: int
    failed: tuple[FailedSeed, ...]
    healed_s: Mean | None
    settled_s: Mean | None
    false_removals: int
    deliveries: int
    digest: str
    node_hours: float
    seconds: float
    node_hours_per_cpu_minute: float


def quantile(values: Sequence[float], q: float) -> float:
    """The smallest value that at least a share ``q`` of them does not exceed. Raises ValueError for none."""
    if not values:
        raise ValueError("a quantile of nothing")
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, max(0, -(-int(q * 1_000_000) * len(ordered) // 1_000_000) - 1))]
