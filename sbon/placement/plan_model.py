"""What a whole plan probably costs, by the hosts of its operators, and which hosts are worth measuring.

:mod:`sbon.placement.path_model` says what each path costs, and how surely; here that is summed up over the links of a
plan. Worth measuring is what may be expected to improve most on the best placement measured so far, all other operators
being at their best (*expected improvement*: J. Mockus, "On Bayesian Methods for Seeking the Extremum", 1974).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from sbon.network_usage import load_cost
from sbon.objectives import Host
from sbon.placement.exact import Term, minimise, minimum_with
from sbon.placement.knowledge import Knowledge
from sbon.placement.path_model import End, Field, PathModel, Places, fit
from sbon.placement.problem import PlacementProblem
from sbon.placement.questions import KnownPath

Floats = NDArray[np.float64]

#: Residuals have heavier tails than the normal ones of the model, so it is surer than it should be: its spreads count
#: so many times when hosts are chosen to be measured. (1 and 2.2 lose more: docs/decisions/placement.md.)
CAUTION = 1.5


class PlanModel:
    """The plan's expected cost over given hosts, as terms for :mod:`sbon.placement.exact`, and how sure it is."""

    def __init__(
        self,
        problem: PlacementProblem,
        knowledge: Knowledge,
        domains: Mapping[str, Sequence[Host]],
        field: Field | None = None,
    ) -> None:
        self._problem = problem
        self._knowledge = knowledge
        self.ids = {operator: [host.node_id for host in hosts] for operator, hosts in domains.items()}
        self.sizes = {operator: len(hosts) for operator, hosts in domains.items()}
        self._places = {operator: Places([host.coordinate for host in hosts]) for operator, hosts in domains.items()}
        self._variance = {operator: np.zeros(size) for operator, size in self.sizes.items()}
        #: Operator -> other unpinned operator -> variance of the cost of the links between, by host of each.
        self._between: dict[str, list[tuple[str, Floats]]] = {operator: [] for operator in domains}
        self.terms: list[Term] = []
        for operator in domains:
            self._add_load(operator)
        ends = {end: self._end(end) for end in sorted(set(problem.pinned.values()))}
        self.field = field or fit(list(ends.values()))
        models: dict[str, PathModel] = {}
        for link in problem.links:
            scope = tuple(end for end in (link.source, link.target) if end not in problem.pinned)
            bytes_per_ms = link.rate_bytes_per_s / 2000.0
            if len(scope) == 2:
                self._add_free_link(link.source, link.target, bytes_per_ms)
            elif len(scope) == 1:
                end = problem.pinned[link.target if scope[0] == link.source else link.source]
                if end not in models:
                    models[end] = PathModel(ends[end], self.field)
                self._add_pinned_link(scope[0], end, models[end], bytes_per_ms)

    def _add_load(self, operator: str) -> None:
        view, rate = self._knowledge.view, self._problem.input_rate_bytes_per_s(operator)
        costs = np.array([load_cost(rate, view.load_ms(node_id)) for node_id in self.ids[operator]])
        self.terms.append(Term((operator,), costs))

    def _end(self, end: str) -> End:
        """All that is known of paths to ``end``."""
        knowledge = self._knowledge
        paths = {path.node_id: path for path in knowledge.known_paths.get(end, ()) if path.node_id != end}
        for node_id in dict.fromkeys(node_id for node_ids in self.ids.values() for node_id in node_ids):
            rtt_ms = knowledge.view.measured(node_id, end)
            if rtt_ms is not None and node_id != end:
                paths[node_id] = KnownPath(node_id, knowledge.view.coordinate_of(node_id), rtt_ms)
        return End(knowledge.view.coordinate_of(end), list(paths.values()))

    def _add_pinned_link(self, operator: str, end: str, model: PathModel, bytes_per_ms: float) -> None:
        mean_ms, deviation_ms = model.estimate(self.ids[operator], self._places[operator])
        for index, node_id in enumerate(self.ids[operator]):
            if node_id == end:
                mean_ms[index] = deviation_ms[index] = 0.0
        self.terms.append(Term((operator,), bytes_per_ms * mean_ms))
        self._variance[operator] += (bytes_per_ms * deviation_ms) ** 2

    def _add_free_link(self, a: str, b: str, bytes_per_ms: float) -> None:
        mean_ms = self._places[a].rtt_ms(self._places[b])
        deviation_ms = self.field.spread_ms(mean_ms, self._places[a], self._places[b])
        rows, columns = ({node_id: index for index, node_id in enumerate(self.ids[one])} for one in (a, b))
        for node_id, row in rows.items():
            column = columns.get(node_id)
            if column is not None:
                mean_ms[row, column] = deviation_ms[row, column] = 0.0
        for row, column, rtt_ms in self._knowledge.measured_between(rows, columns):
            mean_ms[row, column], deviation_ms[row, column] = rtt_ms, 0.0
        self.terms.append(Term((a, b), bytes_per_ms * mean_ms))
        variance = (bytes_per_ms * deviation_ms) ** 2
        self._between[a].append((b, variance))
        self._between[b].append((a, variance.T))

    def ranked(self, operator: str, best: float, measured: set[str], least_gain: float) -> list[str]:
        """The hosts not measured yet by what the plan may be expected to gain, those of no hope left out: a gain of
        less than the share ``least_gain``.

        Before anything was measured (``best`` is infinite) by expected cost.
        """
        costs = minimum_with(operator, self.terms, self.sizes)
        ids = self.ids[operator]
        if best == math.inf:
            return [ids[index] for index in np.argsort(costs, kind="stable") if ids[index] not in measured]
        choice, _ = minimise(self.terms, self.sizes)
        variance = self._variance[operator].copy()
        for other, between in self._between[operator]:
            variance += between[:, choice[other]]
        gain = _expected_improvement(best - costs, CAUTION * np.sqrt(variance))
        order = np.argsort(-gain, kind="stable")
        return [ids[index] for index in order if ids[index] not in measured and gain[index] > least_gain * best]


def _expected_improvement(margin: Floats, deviation: Floats) -> Floats:
    """E[max(0, margin + deviation * N(0, 1))]."""
    safe = np.maximum(deviation, 1e-12)
    z = np.clip(margin / safe, -30.0, 30.0)
    density = np.exp(-0.5 * z * z) / math.sqrt(2.0 * math.pi)
    share = 0.5 * np.array([math.erfc(-x / math.sqrt(2.0)) for x in z])
    gain: Floats = np.where(deviation > 1e-12, margin * share + safe * density, np.maximum(margin, 0.0))
    return gain
