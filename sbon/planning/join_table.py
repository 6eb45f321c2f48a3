"""Join order, streams to be reused and hosts, decided together: an exact dynamic programme over (set of streams, host).

A stream's rate depends on its source set alone, and what it takes to have a set at a host does not depend on what is
done with it there. So the least cost of having a set ``S`` at host ``v`` is the least, over its two parts and over the
host ``u`` where these meet, of having both parts at ``u`` and sending ``S`` from there; and a stream that runs already
is a set that is available at its host for nothing. Exact as long as hosts have room for whatever comes, and as no plan
would read one of its own operators twice (sets of streams in one plan are disjoint). Cost of the table: a min-plus
product of a vector with the matrix of latencies for each set, ``2^k n^2`` for ``k`` streams and ``n`` candidates.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from sbon.placement.optimum import Floats, Truth, min_plus
from sbon.planning.problem import Join, Tree, Work, splits, submasks

#: Splits by mask: where a join order is given, the one split of each of its sets.
Splits = Mapping[int, Sequence[tuple[int, int]]]


class Leaf(NamedTuple):
    """What a plan may start from: a stream that is there for nothing, or a tree that would cost ``cost`` to run."""

    tree: Tree
    cost: float = 0.0


class JoinTable:
    """The least costs of all sets of streams at all candidate hosts."""

    def __init__(
        self,
        rates: Sequence[float],
        leaves: Sequence[Leaf],
        everything: int,
        truth: Truth,
        candidates: NDArray[np.intp],
        allowed: Splits | None = None,
        at_most: float = math.inf,
    ) -> None:
        """``leaves`` are what is there already; ``rates`` in bytes/s by mask.

        ``at_most``: what some plan is known to cost; dearer parts are left out, and the result stays exact.
        """
        self._rates = rates
        self._everything = everything
        self._truth = truth
        self._candidates = candidates
        self._allowed = allowed
        self._at_most = at_most * (1.0 + 1e-9)
        whole = len(candidates) == len(truth.node_ids) and bool((candidates == np.arange(len(candidates))).all())
        self._between_s = truth.one_way_s if whole else truth.one_way_s[np.ix_(candidates, candidates)]
        self._leaves: dict[int, list[Leaf]] = defaultdict(list)
        for leaf in leaves:
            self._leaves[leaf.tree.mask].append(leaf)
        #: Mask -> cost by candidate of having it joined there, and of having it there.
        self._made: dict[int, Floats] = {}
        self._there: dict[int, Floats] = {}
        self._plans: dict[int, int] = {}
        self.work = Work()
        for mask in submasks(everything):
            self._fill(mask)
        self.work.plans = self._plans.get(everything, 0)

    def best(self, target: int, rate: float) -> tuple[Tree, float] | None:
        """The tree of least cost whose result goes to host ``target`` at ``rate`` bytes/s, and its cost, if any."""
        choices: list[tuple[float, Tree | int]] = [
            (self._fetched(leaf, target, rate), leaf.tree) for leaf in self._leaves[self._everything]
        ]
        made = self._made.get(self._everything)
        if made is not None and len(made):
            total = made + rate * self._truth.one_way_s[self._candidates, target]
            at = int(np.argmin(total))
            if math.isfinite(total[at]):
                choices.append((float(total[at]), at))
        if not choices:
            return None
        cost, choice = min(choices, key=lambda pair: pair[0])
        return (self._join(self._everything, choice) if isinstance(choice, int) else choice), cost

    # --- filling

    def _fill(self, mask: int) -> None:
        plans = len(self._leaves[mask])
        made: Floats | None = None
        if math.isfinite(self._rates[mask]):
            for one, other in self._splits(mask):
                costs = self._cost_of_split(one, other)
                made = costs if made is None else np.minimum(made, costs, out=made)
                plans += self._plans[one] * self._plans[other] * len(self._candidates)
                self.work.steps += len(self._candidates)
        if made is not None:
            self._made[mask] = made
        if plans:
            self._plans[mask] = plans
        if mask == self._everything or not plans:
            return
        there = np.full(len(self._candidates), np.inf)
        for leaf in self._leaves[mask]:
            way_s = self._truth.one_way_s[leaf.tree.host, self._candidates]
            np.minimum(there, leaf.cost + self._rates[mask] * way_s, out=there)
        if made is not None:
            np.minimum(there, self._sent(made, self._rates[mask]), out=there)
        self._there[mask] = there

    def _splits(self, mask: int) -> list[tuple[int, int]]:
        """Those of which both parts can be had."""
        given = splits(mask) if self._allowed is None else self._allowed.get(mask, ())
        return [(one, other) for one, other in given if one in self._there and other in self._there]

    def _cost_of_split(self, one: int, other: int) -> Floats:
        costs: Floats = self._there[one] + self._there[other]
        if self._truth.load_s.any():
            costs += (self._rates[one] + self._rates[other]) * self._truth.load_s[self._candidates]
        return costs

    def _sent(self, made: Floats, rate: float) -> Floats:
        """For each candidate the least cost of having there what is made at some candidate."""
        cheap = np.flatnonzero(made <= self._at_most)
        if not len(cheap):
            return np.full(len(made), np.inf)
        self.work.steps += len(made) * len(cheap)
        if 2 * len(cheap) > len(made):
            return min_plus(made, self._between_s, rate)
        return min_plus(made[cheap], self._between_s[:, cheap], rate)

    # --- the tree

    def _join(self, mask: int, at: int) -> Tree:
        """The best way to have ``mask`` joined at candidate ``at``."""

        def cost(split: tuple[int, int]) -> float:
            arriving = float(self._there[split[0]][at] + self._there[split[1]][at])
            load_s = float(self._truth.load_s[self._candidates[at]])
            return arriving + (self._rates[split[0]] + self._rates[split[1]]) * load_s

        one, other = min(self._splits(mask), key=cost)
        return Join(mask, int(self._candidates[at]), self._at(one, at), self._at(other, at))

    def _at(self, mask: int, at: int) -> Tree:
        """The best way to have ``mask`` at candidate ``at``, wherever it comes from; of equals what runs already."""
        rate, here = self._rates[mask], int(self._candidates[at])
        leaf = min(self._leaves[mask], key=lambda leaf: self._fetched(leaf, here, rate), default=None)
        least = math.inf if leaf is None else self._fetched(leaf, here, rate)
        made = self._made.get(mask)
        if made is not None:
            total = made + rate * self._between_s[at]
            source = int(np.argmin(total))
            if leaf is None or total[source] < least * (1.0 - 1e-12):
                return self._join(mask, source)
        assert leaf is not None
        return leaf.tree

    def _fetched(self, leaf: Leaf, host: int, rate: float) -> float:
        return leaf.cost + rate * float(self._truth.one_way_s[leaf.tree.host, host])
