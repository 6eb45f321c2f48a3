"""What can be set about the overlay. Every duration is in seconds."""

from __future__ import annotations

import msgspec

from sbon.coordinate import DEFAULT_DIMENSIONS, MAX_DIMENSIONS


class OverlayConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """``dimensions`` and ``use_height`` must be the same on all nodes of an overlay."""

    dimensions: int = DEFAULT_DIMENSIONS
    use_height: bool = True

    #: One member is probed each interval, in turn. Small overlays settle faster with a shorter one.
    probe_interval_s: float = 1.0
    #: A probe is missed after three times the slowest recent round trip, but within these bounds.
    min_probe_timeout_s: float = 1.0
    max_probe_timeout_s: float = 3.0
    #: Missed in a row before a member is suspected; then it has this long to be heard of again.
    suspect_after_misses: int = 3
    suspicion_s: float = 3.0
    #: How often a member that was given up for dead is tried again, and when it is forgotten for good.
    reconnect_interval_s: float = 5.0
    forget_after_s: float = 24 * 3600.0

    gossip_interval_s: float = 1.0
    #: Between two rounds while there is urgent news.
    rumor_interval_s: float = 0.1
    gossip_fanout: int = 3

    join_retry_s: float = 0.5
    join_timeout_s: float = 5.0

    #: The advertised coordinate and load follow the real ones when those have changed by this much.
    advertise_distance_ms: float = 1.0
    advertise_load: float = 0.1
    #: A path has changed when its filtered round trip is this far from the one last reported (both must hold).
    path_change_ms: float = 5.0
    path_change_ratio: float = 0.2

    max_members: int = 1024

    def check(self) -> None:
        """Raise ValueError, naming the setting, for a value that cannot work."""
        if not 1 <= self.dimensions <= MAX_DIMENSIONS:
            raise ValueError(f"dimensions must be 1 to {MAX_DIMENSIONS}, not {self.dimensions}")
        for field in msgspec.structs.fields(self):
            value = getattr(self, field.name)
            if field.name.endswith("_s") and not 0.0 < value < float("inf"):
                raise ValueError(f"{field.name} must be more than 0 seconds, not {value}")
        for name in ("suspect_after_misses", "gossip_fanout", "max_members"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, not {getattr(self, name)}")
        if self.max_probe_timeout_s < self.min_probe_timeout_s:
            raise ValueError("max_probe_timeout_s must not be less than min_probe_timeout_s")
