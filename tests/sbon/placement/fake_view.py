"""Hosts at known places for placement tests: predictions come from a line or a plane, measurements from a matrix."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from sbon.coordinate import Coordinate
from sbon.placement.problem import CostView


@dataclass(frozen=True)
class FakeHost:
    node_id: str
    coordinate: Coordinate
    load: float = 0.0
    accepts_operators: bool = True

    @property
    def name(self) -> str:
        return self.node_id


def host(node_id: str, *vector_ms: float, height_ms: float = 0.0, load: float = 0.0, accepts: bool = True) -> FakeHost:
    return FakeHost(node_id, Coordinate(tuple(vector_ms), height_ms, 0.1), load, accepts)


def view_of(
    hosts: Sequence[FakeHost], measured: Mapping[tuple[str, str], float] | None = None, *, exact: bool = False
) -> CostView:
    """``measured`` holds each pair once; ``exact``: measurements equal predictions."""
    by_id = {one.node_id: one for one in hosts}

    def measured_rtt_ms(a: str, b: str) -> float | None:
        if measured is not None and (a, b) in measured:
            return measured[a, b]
        return by_id[a].coordinate.rtt_ms(by_id[b].coordinate) if exact else None

    return CostView(
        coordinate_of=lambda node_id: by_id[node_id].coordinate,
        measured_rtt_ms=measured_rtt_ms,
        load_of=lambda node_id: by_id[node_id].load,
    )
