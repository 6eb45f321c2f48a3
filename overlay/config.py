"""What can be set about the overlay. Every duration is in seconds."""

from __future__ import annotations

from typing import Final

import msgspec

from sbon.coordinate import DEFAULT_DIMENSIONS, MAX_DIMENSIONS

#: Of how many others anything may be kept: links, strangers, pointers, candidates and the lost together.
MAX_REMEMBERED: Final = 64
#: Of those: samples, the lost, candidates, and pointers.
MAX_SAMPLES: Final = 2
MAX_LOST: Final = 6
MAX_CANDIDATES: Final = 6
MAX_POINTERS: Final = 28
#: Candidates and pointers have so many places together, and those that nobody else takes: at rest nobody is lost, and
#: some links are not needed.
LEAST_HEARSAY: Final = 20
MAX_OTHERS: Final = MAX_SAMPLES + MAX_LOST + LEAST_HEARSAY
#: So many links are kept for random ones, without which a newcomer would not get in.
PLACES_LEFT: Final = 4


class OverlayConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """``dimensions`` and ``use_height`` must be the same on all nodes of an overlay."""

    dimensions: int = DEFAULT_DIMENSIONS
    use_height: bool = True

    #: One peer is probed each interval. Small overlays settle faster with a shorter one.
    probe_interval_s: float = 1.0
    #: A node that was not met yet is probed this often; and this often while this one's peers do not agree on where it
    #: is. The other probes go to peers that are known.
    fresh_peer_interval_s: float = 12.0
    unsure_fresh_peer_interval_s: float = 4.0

    #: Links that a node looks for: to those alike to it in the cost space, and to random ones; in between as many as
    #: lead somewhere new. And how many it accepts.
    near_links: int = 4
    far_links: int = 4
    max_links: int = 24
    #: With fewer links than this everybody is welcome: overlays up to this size are a full mesh.
    few_links: int = 18
    #: A random link is replaced by a fresh one this often, so that the overlay stays well mixed.
    far_link_lifetime_s: float = 180.0
    #: Nodes met by probing, beside the linked ones; the least recently heard of goes first.
    max_strangers: int = 12
    #: A node asks others whom they know near by: often while that brings news, then less and less.
    min_exchange_interval_s: float = 1.0
    max_exchange_interval_s: float = 16.0

    #: A neighbour lets itself be heard this often; after so long a silence it is checked, and that takes so long.
    beat_interval_s: float = 3.0
    silence_s: float = 3.75
    check_s: float = 2.9
    #: How often one that was given up for dead is tried again, and when it is forgotten for good.
    reconnect_interval_s: float = 5.0
    forget_after_s: float = 24 * 3600.0

    join_retry_s: float = 0.5
    join_timeout_s: float = 5.0
    #: A host that a search has stepped over is given up after so long.
    search_patience_s: float = 2.5

    #: The advertised coordinate follows the real one when predictions to neighbours have changed by this
    #: ratio on average (of a small one: by this much), the advertised load when it has changed by so much.
    advertise_ratio: float = 0.035
    advertise_distance_ms: float = 0.3
    advertise_load: float = 0.1
    #: A path has changed when its filtered round trip is this far from the one last reported (both must hold).
    path_change_ms: float = 5.0
    path_change_ratio: float = 0.2

    def check(self) -> None:
        """Raise ValueError, naming the setting, for a value that cannot work."""
        if not 1 <= self.dimensions <= MAX_DIMENSIONS:
            raise ValueError(f"dimensions must be 1 to {MAX_DIMENSIONS}, not {self.dimensions}")
        for field in msgspec.structs.fields(self):
            value = getattr(self, field.name)
            if field.name.endswith("_s") and not 0.0 < value < float("inf"):
                raise ValueError(f"{field.name} must be more than 0 seconds, not {value}")
        for name in ("near_links", "far_links", "few_links", "max_strangers"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, not {getattr(self, name)}")
        if self.max_links < max(self.near_links + self.far_links, self.few_links) + PLACES_LEFT:
            raise ValueError(
                f"max_links must be {PLACES_LEFT} more than few_links, and near_links and far_links together"
            )
        if self.max_links + self.max_strangers > MAX_REMEMBERED - MAX_OTHERS:
            most = MAX_REMEMBERED - MAX_OTHERS
            raise ValueError(f"max_links and max_strangers together must not be more than {most}")
        for name in ("advertise_ratio", "advertise_distance_ms"):
            if not 0.0 < getattr(self, name) < float("inf"):
                raise ValueError(f"{name} must be more than 0, not {getattr(self, name)}")
        for name in ("advertise_load", "path_change_ms", "path_change_ratio"):
            if not 0.0 <= getattr(self, name) < float("inf"):
                raise ValueError(f"{name} must be 0 or more, not {getattr(self, name)}")
        if self.silence_s <= self.beat_interval_s:
            raise ValueError("silence_s must be more than beat_interval_s")
        if self.max_exchange_interval_s < self.min_exchange_interval_s:
            raise ValueError("max_exchange_interval_s must not be less than min_exchange_interval_s")
