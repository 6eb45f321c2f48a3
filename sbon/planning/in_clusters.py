"""Planning a join within one cluster of the hierarchy: its coordinator decides among those that stand for the clusters
below, and these decide on the joins that they are given (Seshadri et al., TPDS'09, section 3.2).

Two things are better than in the paper, and cost no larger search. Distances to streams and to the sink are those to
where they really are, since an advertisement has its host's coordinate; the paper takes those to whoever stands for
them. And where a cluster has fewer than ``max_cs`` members, the places that are left go to the hosts of the query's own
streams: there the best plans often have their operators.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from sbon.errors import UnavailableError
from sbon.placement.optimum import Truth
from sbon.planning.hierarchy import Cluster, Hierarchy
from sbon.planning.join_table import JoinTable, Leaf, Splits
from sbon.planning.problem import Join, JoinQuery, Tree, Use, Work
from sbon.planning.situation import Situation


@dataclass(frozen=True, slots=True)
class Delegated:
    """A part of a plan that is decided on in the cluster below ``member``: the streams ``mask``, out of ``leaves``, for
    a reader on ``target`` at ``rate``."""

    member: int
    leaves: tuple[Leaf, ...]
    mask: int
    target: int
    rate: float


#: Yields parts for others to decide on and is sent their trees; the tree, and what is expected of its cost here.
PartCourse = Generator[Delegated, Tree, tuple[Tree, float]]


@dataclass(frozen=True)
class PartPlanning:
    """A part being planned by the coordinator of one cluster.

    ``candidates`` are hosts of ``network``; those in ``members`` stand for clusters below, and decide for these.
    ``rates`` are by mask. ``allowed``: the join order, where it has been chosen already.
    """

    network: Truth
    rates: Sequence[float]
    candidates: NDArray[np.intp]
    members: frozenset[int]
    leaves: Sequence[Leaf]
    work: Work
    allowed: Splits | None = None

    def go(self, mask: int, target: int, rate: float) -> PartCourse:
        """Raises UnavailableError if nobody there takes operators and some are needed."""
        table = JoinTable(self.rates, self.leaves, mask, self.network, self.candidates, self.allowed)
        best = table.best(target, rate)
        if best is None:
            raise UnavailableError("it cannot be planned: no host in reach takes operators")
        self.work.add(table.work)
        tree = yield from self._refined(best[0], target, rate)
        return tree, best[1]

    def _refined(self, tree: Tree, target: int, rate: float) -> Generator[Delegated, Tree, Tree]:
        """The tree with all joins on hosts of their own instead of on members that stand for others."""
        if isinstance(tree, Use) or any(tree is leaf.tree for leaf in self.leaves):
            return tree
        if tree.host not in self.members:  # a host for itself
            left = yield from self._refined(tree.left, tree.host, self.rates[tree.left.mask])
            right = yield from self._refined(tree.right, tree.host, self.rates[tree.right.mask])
            return Join(tree.mask, tree.host, left, right)
        blocks = []
        for part in _inputs(tree, tree.host, self.leaves):
            block = yield from self._refined(part, tree.host, self.rates[part.mask])
            blocks.append(block)
        # What the blocks cost is spent; what else there is may do instead of some of them.
        others = [leaf for leaf in self.leaves if not any(leaf.tree is block for block in blocks)]
        return (yield Delegated(tree.host, (*map(Leaf, blocks), *others), tree.mask, target, rate))


@dataclass
class ClusterPlanning:
    """The planning of one query by all coordinators. ``allowed``: the join order, where it has been chosen already."""

    query: JoinQuery
    situation: Situation
    hierarchy: Hierarchy
    allowed: Splits | None = None
    with_ends: bool = True
    work: Work = field(default_factory=Work)

    def plan(self, cluster: Cluster, leaves: Sequence[Leaf], mask: int, target: int, rate: float) -> tuple[Tree, float]:
        """The streams ``mask`` joined within ``cluster``, for a reader on ``target`` at ``rate``; and what is expected
        of the cost where the cluster's coordinator decides.

        Raises UnavailableError if nobody there takes operators and some are needed.
        """
        usable = [leaf for leaf in leaves if leaf.tree.mask & mask == leaf.tree.mask]
        candidates = self._candidates(cluster, usable, target)
        members = frozenset(cluster.members if cluster.level > 1 else ())
        network, rates = self.situation.network, self.query.rates
        part = PartPlanning(network, rates, candidates, members, usable, self.work, self.allowed)
        course = part.go(mask, target, rate)
        tree: Tree | None = None
        while True:
            try:
                asked = next(course) if tree is None else course.send(tree)
            except StopIteration as end:
                planned: tuple[Tree, float] = end.value
                return planned
            below = self.hierarchy.below(cluster, asked.member)
            tree = self.plan(below, asked.leaves, asked.mask, asked.target, asked.rate)[0]

    def _candidates(self, cluster: Cluster, leaves: Sequence[Leaf], target: int) -> NDArray[np.intp]:
        """Members of the cluster that take operators, or stand for some that do; then ends of the query, if any fit."""
        takes = self.situation.network.takes
        found = [member for member in cluster.members if self._can_take(cluster, member)]
        if self.with_ends:
            ends = dict.fromkeys([target, *(leaf.tree.host for leaf in leaves)])
            fitting = [host for host in ends if host not in cluster.members and takes[host]]
            found += [host for host in fitting if self.hierarchy.is_in(host, cluster)][
                : self.hierarchy.max_cs - len(found)
            ]
        return np.array(found, dtype=np.intp)

    def _can_take(self, cluster: Cluster, member: int) -> bool:
        if cluster.level == 1:
            return bool(self.situation.network.takes[member])
        below = self.hierarchy.below(cluster, member)
        return any(self._can_take(below, other) for other in below.members)


def _inputs(tree: Join, host: int, leaves: Sequence[Leaf]) -> list[Tree]:
    """What the connected joins on ``host`` at the top of the tree read from elsewhere."""
    found: list[Tree] = []
    for part in (tree.left, tree.right):
        if isinstance(part, Join) and part.host == host and not any(part is leaf.tree for leaf in leaves):
            found += _inputs(part, host, leaves)
        else:
            found.append(part)
    return found
