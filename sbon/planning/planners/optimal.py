"""``optimal``: every join tree over everything that is available, each with its best hosts; the least cost of all.

Independent of :mod:`sbon.planning.join_table`: trees are enumerated one by one, and nothing is shared between them. For
up to six streams on a few hundred hosts; what other planners are compared with.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from sbon.errors import UnavailableError
from sbon.placement.optimum import Floats, min_plus
from sbon.planning.problem import Join, JoinQuery, Plan, Tree, Work
from sbon.planning.situation import Situation, available

#: A leaf by the mask that is there, or a pair of trees.
Shape = int | tuple["Shape", "Shape"]


class Planner:
    def plan(self, query: JoinQuery, situation: Situation) -> Plan:
        return _Search(query, situation).go()


class _Search:
    def __init__(self, query: JoinQuery, situation: Situation) -> None:
        self._query = query
        self._situation = situation
        self._leaves: dict[int, list[Tree]] = {}
        for use, _ in available(query, situation):
            self._leaves.setdefault(use.mask, []).append(use)
        takers, one_way_s = situation.takers, situation.network.one_way_s
        self._takers = takers
        self._between_s = one_way_s[np.ix_(takers, takers)]
        self._load_s = situation.network.load_s[takers]
        #: Mask -> cost by taker of fetching what is there.
        self._fetched = {
            mask: query.rates[mask] * np.min([one_way_s[use.host, takers] for use in uses], axis=0)
            for mask, uses in self._leaves.items()
            if query.joinable(mask)
        }

    def go(self) -> Plan:
        query = self._query
        work = Work()
        best: tuple[float, Shape | None, int] = math.inf, None, -1
        to_sink = query.result_rate * self._situation.network.one_way_s[query.sink]
        for shape in self._shapes(query.everything):
            work.plans += 1
            if isinstance(shape, int):
                total = to_sink[[use.host for use in self._leaves[shape]]]
            elif len(self._takers):
                total = self._made(shape) + to_sink[self._takers]
            else:
                continue
            at = int(np.argmin(total))
            if total[at] < best[0]:
                best = float(total[at]), shape, at
        cost, found, at = best
        if found is None:
            raise UnavailableError(f"{query.name} cannot be planned: no host takes operators, or streams stay unjoined")
        tree: Tree = self._leaves[found][at] if isinstance(found, int) else self._join(found, at)
        return Plan(tree, cost, work)

    def _shapes(self, mask: int) -> Iterator[Shape]:
        """All join trees of a set of streams."""
        if mask in self._leaves:
            yield mask
        if not self._query.joinable(mask):
            return
        lowest = mask & -mask
        for part in range(1, mask):
            if part & mask == part and part & lowest:  # each pair of parts once
                for one in self._shapes(part):
                    for other in self._shapes(mask ^ part):
                        yield one, other

    def _made(self, shape: tuple[Shape, Shape]) -> Floats:
        """Cost by taker of having the join there."""
        rates = sum(self._query.rates[_mask(part)] for part in shape)
        total: Floats = self._brought(shape[0]) + self._brought(shape[1]) + rates * self._load_s
        return total

    def _brought(self, shape: Shape) -> Floats:
        if isinstance(shape, int):
            fetched: Floats = self._fetched[shape]
            return fetched
        return min_plus(self._made(shape), self._between_s, self._query.rates[_mask(shape)])

    def _join(self, shape: tuple[Shape, Shape], at: int) -> Join:
        one, other = (self._tree(part, at) for part in shape)
        return Join(_mask(shape), int(self._takers[at]), one, other)

    def _tree(self, shape: Shape, at: int) -> Tree:
        if isinstance(shape, int):
            one_way_s = self._situation.network.one_way_s[self._takers[at]]
            return min(self._leaves[shape], key=lambda use: one_way_s[use.host])
        total = self._made(shape) + self._query.rates[_mask(shape)] * self._between_s[at]
        return self._join(shape, int(np.argmin(total)))


def _mask(shape: Shape) -> int:
    return shape if isinstance(shape, int) else _mask(shape[0]) | _mask(shape[1])
