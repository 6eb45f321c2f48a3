"""The optimum where hosts can be full: a mixed-integer program (scipy's milp, which is HiGHS), made small exactly.

One binary variable for an operator on a host, one for each pair of hosts of a link between two operators (these need
not be declared integer: they follow from the others), and for each host four constraints: processor, memory, and bytes
per second in and out. Data between two operators on one host do not pass its network.

Over hundreds of hosts that is too large, but hardly any host can matter. Without capacities, dynamic programming
(:mod:`sbon.placement.optimum`) gives for each operator and host the least cost of the whole plan with the one on the
other. That is a lower bound, so once any placement that fits is known, every host whose bound exceeds its cost is out
(reduced-cost fixing; G. Dantzig, R. Fulkerson, S. Johnson, "Solution of a Large-Scale Traveling-Salesman Problem",
1954). So: solve over the few best hosts of each operator; more of them while nothing fits; then over all hosts that the
answer has not ruled out. The result is exact.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from sbon.errors import UnavailableError
from sbon.placement.capacity import TOLERANCE, Demand, Resources, fits
from sbon.placement.optimum import Floats, Optimum, Tables, Truth, optimum
from sbon.placement.problem import PlacementProblem

#: Best hosts of each operator that are tried first; doubled while nothing fits.
FIRST_HOSTS = 8


def _limits(resources: Resources | None) -> tuple[float, float, float, float]:
    some = resources or Resources()
    return some.cpu_cores, some.memory_bytes, some.in_bytes_per_s, some.out_bytes_per_s


def capacitated_optimum(
    problem: PlacementProblem, truth: Truth, demand: Mapping[str, Demand], room: Mapping[str, Resources]
) -> Optimum:
    """The placement of least cost that fits. Raises UnavailableError if there is none."""
    unlimited = optimum(problem, truth)
    if fits(problem, unlimited.hosts, demand, room):
        return unlimited
    tables = Tables.of(problem, truth)
    if not tables.is_forest:  # no bounds to rule hosts out by
        everything = {operator: np.arange(len(tables.candidates)) for operator in problem.unpinned}
        return _or_raise(_Program(problem, truth, tables, everything, demand, room).solve())
    bounds = tables.minimum_with()
    order = {operator: np.argsort(bound, kind="stable") for operator, bound in bounds.items()}
    count, found = FIRST_HOSTS, None
    while found is None:
        chosen = {operator: ranked[:count] for operator, ranked in order.items()}
        found = _Program(problem, truth, tables, chosen, demand, room).solve()
        if found is None and count >= len(tables.candidates):
            break
        count *= 2
    most = _or_raise(found).cost * (1.0 + TOLERANCE)
    left = {operator: np.flatnonzero(bound <= most) for operator, bound in bounds.items()}
    return _or_raise(_Program(problem, truth, tables, left, demand, room).solve())


def _or_raise(found: Optimum | None) -> Optimum:
    if found is None:
        raise UnavailableError("no placement fits into what the hosts have left: cancel a query, or add hosts")
    return found


@dataclass
class _Row:
    """A constraint: sum of coefficients x variables <= most."""

    most: float
    coefficients: dict[int, float] = field(default_factory=lambda: defaultdict(float))


class _Program:
    """The mixed-integer program over given hosts of each operator (positions among the candidates)."""

    def __init__(
        self,
        problem: PlacementProblem,
        truth: Truth,
        tables: Tables,
        hosts: Mapping[str, np.ndarray],
        demand: Mapping[str, Demand],
        room: Mapping[str, Resources],
    ) -> None:
        self._problem, self._truth, self._tables, self._hosts = problem, truth, tables, hosts
        self._costs: list[float] = []
        self._integral: list[int] = []
        #: (operator, position among the candidates) -> variable
        self._on: dict[tuple[str, int], int] = {}
        self._equal: list[_Row] = []
        self._rows: dict[tuple[str, int], _Row] = {}
        self._room = room
        for operator, positions in hosts.items():
            self._place(operator, positions, demand.get(operator, Demand()))
        together = {
            pair: self._link(*pair, rate)
            for pair, rate in (
                ((a, b), rate) for a, others in tables.rates.items() for b, rate in others.items() if a < b
            )
        }
        self._add_bandwidth(together)

    def _variable(self, cost: float, *, integral: bool) -> int:
        self._costs.append(cost)
        self._integral.append(int(integral))
        return len(self._costs) - 1

    def _place(self, operator: str, positions: Floats, needs: Demand) -> None:
        exactly_once = _Row(1.0)
        for position in positions:
            variable = self._variable(float(self._tables.own[operator][position]), integral=True)
            self._on[operator, int(position)] = variable
            exactly_once.coefficients[variable] = 1.0
            node_id = self._node_id(int(position))
            self._use(node_id, 0, variable, needs.cpu_cores)
            self._use(node_id, 1, variable, needs.memory_bytes)
        self._equal.append(exactly_once)

    def _link(self, a: str, b: str, rate: float) -> dict[str, int]:
        """Flow of one unit from a's host to b's; node id -> variable of both being there."""
        from_a = {int(i): _Row(0.0, {self._on[a, int(i)]: -1.0}) for i in self._hosts[a]}
        to_b = {int(j): _Row(0.0, {self._on[b, int(j)]: -1.0}) for j in self._hosts[b]}
        together: dict[str, int] = {}
        for i, row in from_a.items():
            for j, column in to_b.items():
                variable = self._variable(rate * float(self._tables.latency_s[i, j]), integral=False)
                row.coefficients[variable] = column.coefficients[variable] = 1.0
                if i == j:
                    together[self._node_id(i)] = variable
        self._equal += [*from_a.values(), *to_b.values()]
        return together

    def _add_bandwidth(self, together: Mapping[tuple[str, str], Mapping[str, int]]) -> None:
        pinned = self._problem.pinned
        for link in self._problem.links:
            rate, source, target = link.rate_bytes_per_s, link.source, link.target
            both = together.get((min(source, target), max(source, target)), {})
            for end, resource, other in ((target, 2, source), (source, 3, target)):
                if end in pinned:
                    self._add_at_pinned(pinned[end], resource, other, rate)
                    continue
                for position in self._hosts[end]:
                    node_id = self._node_id(int(position))
                    if pinned.get(other) != node_id:
                        self._use(node_id, resource, self._on[end, int(position)], rate)
                        if node_id in both:
                            self._use(node_id, resource, both[node_id], -rate)

    def _add_at_pinned(self, node_id: str, resource: int, other: str, rate: float) -> None:
        """A stream at a pinned end passes its host's network unless the other end is there, too."""
        if self._problem.pinned.get(other) == node_id:
            return
        row = self._row(node_id, resource)
        if row is not None:
            row.most -= rate
        for position in self._hosts.get(other, ()):
            if self._node_id(int(position)) == node_id:
                self._use(node_id, resource, self._on[other, int(position)], -rate)

    def _use(self, node_id: str, resource: int, variable: int, amount: float) -> None:
        row = self._row(node_id, resource)
        if row is not None and amount:
            row.coefficients[variable] += amount

    def _row(self, node_id: str, resource: int) -> _Row | None:
        limit = _limits(self._room.get(node_id))[resource]
        if limit == float("inf"):
            return None
        return self._rows.setdefault((node_id, resource), _Row(limit))

    def _node_id(self, position: int) -> str:
        return self._truth.node_ids[int(self._tables.candidates[position])]

    # --- solving

    def solve(self) -> Optimum | None:
        """None if nothing fits."""
        from scipy.optimize import Bounds, LinearConstraint, milp  # large
        from scipy.sparse import csr_array

        least: list[float] = []
        most: list[float] = []
        rows: list[int] = []
        columns: list[int] = []
        values: list[float] = []
        for number, row in enumerate([*self._equal, *self._rows.values()]):
            is_equal = number < len(self._equal)
            scale = max((abs(value) for value in row.coefficients.values()), default=1.0)
            least.append(row.most / scale if is_equal else -np.inf)
            most.append(row.most / scale + (0.0 if is_equal else abs(row.most) / scale * TOLERANCE))
            rows += [number] * len(row.coefficients)
            columns += row.coefficients.keys()
            values += [value / scale for value in row.coefficients.values()]
        matrix = csr_array((values, (rows, columns)), shape=(len(least), len(self._costs)))
        scale = max(self._costs, default=0.0) or 1.0
        result = milp(
            np.array(self._costs) / scale,
            constraints=LinearConstraint(matrix, least, most),
            integrality=np.array(self._integral),
            bounds=Bounds(0.0, 1.0),
            options={"mip_rel_gap": 0.0},
        )
        if result.status == 2:
            return None
        if result.x is None:
            raise RuntimeError(f"the solver gave up: {result.message}")
        hosts = dict(self._problem.pinned)
        for (operator, position), variable in self._on.items():
            if result.x[variable] > 0.5:
                hosts[operator] = self._node_id(position)
        return Optimum(hosts, self._cost_of(hosts))

    def _cost_of(self, hosts: Mapping[str, str]) -> float:
        """Anew, without the solver's rounding."""
        tables = self._tables
        position = {self._node_id(index): index for index in range(len(tables.candidates))}
        cost = tables.constant
        for operator, own in tables.own.items():
            cost += float(own[position[hosts[operator]]])
            for other, rate in tables.rates[operator].items():
                if operator < other:
                    cost += rate * float(tables.latency_s[position[hosts[operator]], position[hosts[other]]])
        return cost
