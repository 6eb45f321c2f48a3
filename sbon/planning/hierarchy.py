"""Hosts in clusters, coordinators of clusters in clusters, up to one (Seshadri et al., TPDS'09, section 3.1).

Hosts that are near each other are in one cluster, of at most ``max_cs``; its coordinator, the member nearest to all
others, stands for it one level up.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from random import Random

import numpy as np
from numpy.typing import NDArray

from sbon.placement.optimum import Floats

#: Rounds of moving medoids; they rarely move after a few.
ROUNDS = 12


@dataclass(frozen=True, slots=True)
class Cluster:
    """``members`` are hosts at level 1, above it the coordinators of the clusters below."""

    level: int
    coordinator: int
    members: tuple[int, ...]


@dataclass(frozen=True)
class Hierarchy:
    """``levels[0]`` are the clusters of hosts (level 1); the last has one cluster."""

    max_cs: int
    levels: tuple[tuple[Cluster, ...], ...]
    #: By level: host -> its cluster there, the one whose subtree it is in.
    _of: tuple[dict[int, Cluster], ...] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        found: list[dict[int, Cluster]] = []
        for clusters in self.levels:
            below = found[-1] if found else None
            heads = {member: cluster for cluster in clusters for member in cluster.members}
            found.append(heads if below is None else {host: heads[c.coordinator] for host, c in below.items()})
        object.__setattr__(self, "_of", tuple(found))

    @property
    def height(self) -> int:
        return len(self.levels)

    @property
    def top(self) -> Cluster:
        return self.levels[-1][0]

    def cluster_of(self, host: int, level: int) -> Cluster:
        """The cluster of that level whose subtree has the host. Levels count from 1."""
        return self._of[level - 1][host]

    def below(self, cluster: Cluster, member: int) -> Cluster:
        """The cluster that ``member`` coordinates, one level below ``cluster``."""
        return self._of[cluster.level - 2][member]

    def size(self, cluster: Cluster) -> int:
        """Hosts in the subtree."""
        return sum(found is cluster for found in self._of[cluster.level - 1].values())

    def is_in(self, host: int, cluster: Cluster) -> bool:
        return self._of[cluster.level - 1].get(host) is cluster

    def diameters(self, distances: Floats) -> list[float]:
        """By level the largest distance between two members of one cluster: ``d_i`` of the paper."""
        return [
            max(float(distances[np.ix_(cluster.members, cluster.members)].max()) for cluster in clusters)
            for clusters in self.levels
        ]


def build(distances: Floats, max_cs: int, rng: Random) -> Hierarchy:
    """Clusters by ``distances`` between hosts (symmetric, any unit). Raises ValueError if ``max_cs`` is less than 2."""
    if max_cs < 2:
        raise ValueError(f"clusters of at most {max_cs} hosts cannot be clustered further: at least 2")
    levels: list[tuple[Cluster, ...]] = []
    members = np.arange(len(distances))
    while not levels or len(levels[-1]) > 1:
        level = len(levels) + 1
        groups = partition(distances, members, max_cs, rng)
        levels.append(tuple(Cluster(level, _medoid(distances, group), tuple(group.tolist())) for group in groups))
        members = np.array([cluster.coordinator for cluster in levels[-1]])
    return Hierarchy(max_cs, tuple(levels))


def two_levels(distances: Floats, groups: Sequence[NDArray[np.intp]]) -> Hierarchy:
    """Given groups of hosts, and one cluster of their coordinators."""
    clusters = tuple(Cluster(1, _medoid(distances, group), tuple(group.tolist())) for group in groups)
    heads = np.array([cluster.coordinator for cluster in clusters])
    top = Cluster(2, _medoid(distances, heads), tuple(heads.tolist()))
    return Hierarchy(max(len(distances), 2), (clusters, (top,)))


def partition(distances: Floats, members: NDArray[np.intp], at_most: int, rng: Random) -> list[NDArray[np.intp]]:
    """``members`` in groups of at most ``at_most`` that are near each other."""
    if len(members) <= at_most:
        return [members]
    groups = medoid_groups(distances, members, -(-len(members) // at_most), rng)
    return [part for group in groups for part in partition(distances, group, at_most, rng)]


def medoid_groups(distances: Floats, members: NDArray[np.intp], count: int, rng: Random) -> list[NDArray[np.intp]]:
    """K-medoids: ``count`` groups, or fewer if some stay empty; never one, unless ``count`` is 1."""
    medoids = [int(members[rng.randrange(len(members))])]
    while len(medoids) < count:  # the farthest from those that there are
        nearest = distances[members][:, medoids].min(axis=1)
        medoids.append(int(members[int(np.argmax(nearest))]))
    for _ in range(ROUNDS):
        groups = _assigned(distances, members, medoids)
        moved = [_medoid(distances, group) for group in groups]
        if moved == medoids:
            break
        medoids = moved
    if len(groups) == 1 and count > 1:  # all at one place
        half = len(members) // 2
        return [members[:half], members[half:]]
    return groups


def _assigned(distances: Floats, members: NDArray[np.intp], medoids: Sequence[int]) -> list[NDArray[np.intp]]:
    nearest = np.argmin(distances[members][:, list(medoids)], axis=1)
    groups = [members[nearest == number] for number in range(len(medoids))]
    return [group for group in groups if len(group)]


def _medoid(distances: Floats, group: NDArray[np.intp]) -> int:
    return int(group[int(np.argmin(distances[np.ix_(group, group)].sum(axis=1)))])
