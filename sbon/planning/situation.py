"""What a planner knows when a query comes: the network, the streams that run, and how hosts are organised."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from random import Random

import numpy as np
from numpy.typing import NDArray

from sbon.placement.optimum import Truth
from sbon.planning.hierarchy import Hierarchy, medoid_groups, two_levels
from sbon.planning.join_table import Leaf
from sbon.planning.problem import JoinQuery, Use
from sbon.planning.running import Running

#: As many as Seshadri et al. divide their network into for the In-network algorithm.
ZONES = 5


@dataclass
class Situation:
    """``network``: every latency as it is believed to be, in seconds. ``hierarchy``: for the planners that need one."""

    network: Truth
    running: Running
    hierarchy: Hierarchy | None = None

    def clusters(self) -> Hierarchy:
        """Raises ValueError if there is no hierarchy."""
        if self.hierarchy is None:
            raise ValueError("this planner plans in clusters: it needs a hierarchy")
        return self.hierarchy

    @cached_property
    def diameters(self) -> list[float]:
        return self.clusters().diameters(self.network.one_way_s)

    @cached_property
    def zones(self) -> Hierarchy:
        """A few zones, however many hosts are in one."""
        distances = self.network.one_way_s
        groups = medoid_groups(distances, np.arange(len(distances)), min(ZONES, len(distances)), Random(0))
        return two_levels(distances, groups)

    @cached_property
    def takers(self) -> NDArray[np.intp]:
        """Hosts that take operators."""
        return np.flatnonzero(self.network.takes)


def base_streams(query: JoinQuery) -> list[Leaf]:
    return [Leaf(Use(1 << i, host)) for i, host in enumerate(query.hosts)]


def available(query: JoinQuery, situation: Situation) -> list[Leaf]:
    """All that a plan may start from: the base streams, and what runs already."""
    return base_streams(query) + [Leaf(use) for use in situation.running.usable(query)]
