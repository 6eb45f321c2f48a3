"""The optimum: hosts of least cost among *all* hosts, exactly, when every round trip is known.

No overlay knows every round trip, so this is what placements are compared with (SBON ICDE'06 section 4.1, OPTIMAL), and
what a small network with everything measured may use. While hosts have room for whatever comes, the cost is a sum over
links and operators, and a plan whose unpinned operators form a tree is solved by dynamic programming from the leaves to
a root: one min-plus product of a vector with the matrix of latencies for each link, n^2 steps for n hosts. Where
operators form a cycle (one that feeds two others which meet again), one of them is tried on every host, which cuts the
cycle. With capacities that bind: :mod:`sbon.placement.capacitated`.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sbon.errors import UnavailableError
from sbon.placement.problem import PlacementProblem

Floats = NDArray[np.float64]

#: Rows of a min-plus product that are looked at together: what fits in a processor's cache.
BLOCK_ROWS = 128


@dataclass(frozen=True)
class Truth:
    """Hosts and every one-way latency between them, in seconds: ``one_way_s[i, j]``, 0 on the diagonal, symmetric.

    ``takes[i]``: whether host i takes operators; ``load_s[i]``: the load part of the cost there (zeros: no matter).
    """

    node_ids: tuple[str, ...]
    one_way_s: Floats
    takes: NDArray[np.bool_]
    load_s: Floats

    @staticmethod
    def of(
        node_ids: Sequence[str],
        rtt_ms: Floats,
        *,
        takes: NDArray[np.bool_] | None = None,
        load_ms: Floats | None = None,
    ) -> Truth:
        """From round trips in ms; by default every host takes operators and none is loaded.

        Raises ValueError for a matrix that is not one of latencies: square, finite, symmetric.
        """
        count = len(node_ids)
        one_way_s = np.array(rtt_ms, dtype=np.float64) / 2000.0
        if one_way_s.shape != (count, count):
            raise ValueError(f"{count} hosts and a matrix of shape {one_way_s.shape}")
        np.fill_diagonal(one_way_s, 0.0)
        if not np.isfinite(one_way_s).all() or (one_way_s < 0.0).any() or not np.allclose(one_way_s, one_way_s.T):
            raise ValueError("latencies are finite, not negative, and the same in both directions")
        takes = np.ones(count, dtype=np.bool_) if takes is None else takes
        return Truth(tuple(node_ids), one_way_s, takes, np.zeros(count) if load_ms is None else load_ms / 1000.0)

    def index(self) -> dict[str, int]:
        return {node_id: index for index, node_id in enumerate(self.node_ids)}


@dataclass(frozen=True)
class Optimum:
    """``hosts``: operator -> node id, pinned ones among them. ``cost``: usage and load, in bytes."""

    hosts: dict[str, str]
    cost: float


def optimum(problem: PlacementProblem, truth: Truth) -> Optimum:
    """The placement of least cost. Of equal ones, one of them.

    Raises UnavailableError if there are operators to place and no host takes any, KeyError for a pinned operator on a
    host that ``truth`` does not know.
    """
    tables = Tables.of(problem, truth)
    choice, cost = tables.minimise()
    hosts = dict(problem.pinned) | {
        operator: truth.node_ids[int(tables.candidates[index])] for operator, index in choice.items()
    }
    return Optimum(hosts, cost)


@dataclass
class Tables:
    """A problem as numbers: a cost vector over candidate hosts for each operator, and springs between operators."""

    candidates: NDArray[np.intp]
    #: One-way latency in s between candidates.
    latency_s: Floats
    #: Operator -> what each host costs, through links to pinned ends and by its load.
    own: dict[str, Floats]
    #: Operator -> other unpinned operator -> rate between the two, both ways taken together.
    rates: dict[str, dict[str, float]]
    constant: float

    @staticmethod
    def of(problem: PlacementProblem, truth: Truth) -> Tables:
        candidates = np.flatnonzero(truth.takes)
        if problem.unpinned and not len(candidates):
            raise UnavailableError("no known host takes operators: set accept_operators = true on at least one")
        index = truth.index()
        everything = len(candidates) == len(truth.node_ids)
        latency_s = truth.one_way_s if everything else truth.one_way_s[np.ix_(candidates, candidates)]
        own = {
            operator: problem.input_rate_bytes_per_s(operator) * truth.load_s[candidates]
            for operator in problem.unpinned
        }
        rates: dict[str, dict[str, float]] = {operator: defaultdict(float) for operator in problem.unpinned}
        constant = 0.0
        for link in problem.links:
            rate = link.rate_bytes_per_s
            source, target = problem.pinned.get(link.source), problem.pinned.get(link.target)
            if source is not None and target is not None:
                constant += rate * float(truth.one_way_s[index[source], index[target]])
            elif source is not None:
                own[link.target] = own[link.target] + rate * truth.one_way_s[index[source]][candidates]
            elif target is not None:
                own[link.source] = own[link.source] + rate * truth.one_way_s[index[target]][candidates]
            elif link.source != link.target:
                rates[link.source][link.target] += rate
                rates[link.target][link.source] += rate
        return Tables(
            candidates, latency_s, own, {operator: dict(others) for operator, others in rates.items()}, constant
        )

    # --- least cost

    def minimise(self) -> tuple[dict[str, int], float]:
        """Operator -> index among the candidates, and the cost."""
        between = self._operator_in_a_cycle()
        if between is None:
            return self._minimise_forest()
        best: tuple[dict[str, int], float] = {}, math.inf
        for host in range(len(self.candidates)):
            choice, cost = self._with(between, host).minimise()
            if cost < best[1]:
                best = choice | {between: host}, cost
        return best

    @property
    def is_forest(self) -> bool:
        return self._operator_in_a_cycle() is None

    def _with(self, operator: str, host: int) -> Tables:
        """What remains to be chosen once ``operator`` is on ``host``."""
        own, rates = dict(self.own), {one: dict(others) for one, others in self.rates.items()}
        constant = self.constant + float(own.pop(operator)[host])
        for other, rate in rates.pop(operator).items():
            own[other] = own[other] + rate * self.latency_s[host]
            del rates[other][operator]
        return Tables(self.candidates, self.latency_s, own, rates, constant)

    def _operator_in_a_cycle(self) -> str | None:
        """The one with most neighbours of those left when leaves are taken away again and again."""
        left = {operator: set(others) for operator, others in self.rates.items()}
        leaves = [operator for operator, others in left.items() if len(others) <= 1]
        while leaves:
            leaf = leaves.pop()
            for other in left.pop(leaf, set()):
                left[other].discard(leaf)
                if len(left[other]) == 1:
                    leaves.append(other)
        return max(left, key=lambda operator: len(left[operator])) if left else None

    def _minimise_forest(self) -> tuple[dict[str, int], float]:
        choice: dict[str, int] = {}
        cost = self.constant
        for order in self.trees():
            below, _ = self._from_leaves(order)
            for operator, parent in order:
                total = below[operator]
                if parent is not None:
                    total = total + self.rates[operator][parent] * self.latency_s[choice[parent]]
                choice[operator] = int(np.argmin(total))
                if parent is None:
                    cost += float(total[choice[operator]])
        return choice, cost

    def minimum_with(self) -> dict[str, Floats]:
        """Operator -> for each host the least cost of the whole plan with the operator there. Forests only."""
        found: dict[str, Floats] = {}
        least = self.constant
        roots: list[tuple[list[str], float]] = []
        for order in self.trees():
            below, messages = self._from_leaves(order)
            for operator, parent in order:
                if parent is None:
                    found[operator] = below[operator]
                else:
                    without = found[parent] - messages[operator]
                    found[operator] = below[operator] + min_plus(without, self.latency_s, self.rates[operator][parent])
            minimum = float(found[order[0][0]].min())
            roots.append(([operator for operator, _ in order], minimum))
            least += minimum
        for operators, minimum in roots:
            for operator in operators:
                found[operator] = found[operator] + (least - minimum)
        return found

    def trees(self) -> Iterable[list[tuple[str, str | None]]]:
        """Each tree of operators as (operator, parent), parents first."""
        seen: set[str] = set()
        for root in self.rates:
            if root in seen:
                continue
            order: list[tuple[str, str | None]] = [(root, None)]
            for operator, parent in order:  # it grows while it is gone through
                seen.add(operator)
                order += [(other, operator) for other in self.rates[operator] if other != parent]
            yield order

    def _from_leaves(self, order: Sequence[tuple[str, str | None]]) -> tuple[dict[str, Floats], dict[str, Floats]]:
        """Operator -> cost of its subtree by its own host, and by its parent's host."""
        below = {operator: self.own[operator] for operator, _ in order}
        messages: dict[str, Floats] = {}
        for operator, parent in reversed(order):
            if parent is not None:
                messages[operator] = min_plus(below[operator], self.latency_s, self.rates[operator][parent])
                below[parent] = below[parent] + messages[operator]
        return below, messages


def min_plus(costs: Floats, latency_s: Floats, rate: float) -> Floats:
    """For each row j of ``latency_s`` the least ``costs[i] + rate * latency_s[j, i]``."""
    if rate <= 0.0:
        return np.full(len(latency_s), costs.min())
    scaled = costs / rate
    result = np.empty(len(latency_s))
    block = np.empty((BLOCK_ROWS, len(costs)))
    for first in range(0, len(latency_s), BLOCK_ROWS):
        rows = latency_s[first : first + BLOCK_ROWS]
        sums = np.add(rows, scaled, out=block[: len(rows)])
        np.min(sums, axis=1, out=result[first : first + BLOCK_ROWS])
    return result * rate
