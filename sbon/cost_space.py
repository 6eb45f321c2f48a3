"""The cost space: a latency part and a load part (SBON ICDE'06 section 3.1.1; DESIGN: Cost space)."""

from __future__ import annotations

import msgspec

from sbon.coordinate import Coordinate

#: One-way milliseconds that a fully busy host (load 1.0 per core) is moved away by. The paper maps load linearly with a
#: weight that is left to the user (section 3.1.1, "Load"); this is ours: a tenth of a long path.
LOAD_SCALE_MS = 20.0
MAX_LOAD = 100.0


class CostPoint(msgspec.Struct, frozen=True):
    """Where a host is in the cost space. ``load`` is its load average per core: 1.0 means all cores are busy."""

    coordinate: Coordinate
    load: float = 0.0


def load_ms(load: float, scale_ms: float = LOAD_SCALE_MS) -> float:
    """The load part in one-way milliseconds: linear, bounded, never negative."""
    return max(0.0, min(MAX_LOAD, load)) * scale_ms


def predicted_rtt_ms(a: CostPoint, b: CostPoint) -> float:
    """Predicted round trip between two different hosts; the load part is not in it."""
    return a.coordinate.rtt_ms(b.coordinate)


def one_way_ms(rtt_ms: float) -> float:
    """Half the round trip: what a stream link costs (DESIGN: Cost space)."""
    return rtt_ms / 2.0
