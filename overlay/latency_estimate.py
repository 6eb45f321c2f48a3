"""What a node answers when it is asked for the latency of a path."""

from __future__ import annotations

import msgspec


class LatencyEstimate(msgspec.Struct, frozen=True):
    """What is known about the path between two nodes. ``error``: the relative error to expect of the prediction.

    ``measured_rtt_ms`` is the filtered direct measurement, None if this node is not an end of the path or never
    measured it; ``samples`` is how many measurements there were.
    """

    predicted_rtt_ms: float
    measured_rtt_ms: float | None
    samples: int
    error: float
