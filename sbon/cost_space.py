"""The cost space: a latency part and a load part (SBON ICDE'06 section 3.1.1; DESIGN: Cost space)."""

from __future__ import annotations

from enum import StrEnum
from typing import Final

#: One-way milliseconds that a fully busy host (load 1.0 per core) is moved away by. The paper maps load linearly with a
#: weight that is left to the user (section 3.1.1, "Load"); this is ours: a tenth of a long path.
LOAD_SCALE_MS: Final = 20.0
MAX_LOAD: Final = 100.0
#: Up to here a convex load part is that of a queue; beyond, its tangent, so that it stays finite.
_QUEUE_UP_TO: Final = 0.9


class LoadScaling(StrEnum):
    """How load counts: in proportion, or, for operators that busy hosts slow down much, as waiting in a queue does."""

    LINEAR = "linear"
    CONVEX = "convex"


def load_ms(load: float, scale_ms: float = LOAD_SCALE_MS, scaling: LoadScaling = LoadScaling.LINEAR) -> float:
    """The load part in one-way milliseconds: bounded, never negative. ``load`` is a host's load average per core: 1.0
    means all cores are busy.

    Convex: load / (1 - load), the time in an M/M/1 queue, up to nine tenths and straight on from there ("a non-linear
    additive function", section 3.1.1). An idle host counts the same either way, a busy one nine times as much and more.
    """
    load = max(0.0, min(MAX_LOAD, load))
    if scaling is LoadScaling.CONVEX:
        part = min(load, _QUEUE_UP_TO)
        load = part / (1.0 - part) + (load - part) / (1.0 - _QUEUE_UP_TO) ** 2
    return load * scale_ms


def one_way_ms(rtt_ms: float) -> float:
    """Half the round trip: what a stream link costs (DESIGN: Cost space)."""
    return rtt_ms / 2.0
