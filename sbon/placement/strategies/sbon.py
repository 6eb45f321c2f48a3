"""``sbon``: measure little, and that where it promises most.

Full hosts are passed over, and looked past for others, as long as there is any that is not.

1. The overlay is searched for hosts of least *predicted usage* for each operator (minimising it beats being near
   a virtual point: DESIGN, Cost space), and the pinned ends tell which paths they have measured anyway.
2. From both, :mod:`sbon.placement.path_model` says what each path costs, and how surely. In rounds, each operator has
   some more hosts measured: those by which the whole plan may be expected to improve most on the best one measured so
   far (*expected improvement*: J. Mockus, "On Bayesian Methods for Seeking the Extremum", 1974), all other operators
   being at their best. Each round makes the model better where it matters; after the first one the search is centred
   anew on what was measured.
3. The choice is exact (:func:`sbon.placement.full_optimizer.choose`) among hosts that were measured.
"""

from __future__ import annotations

import math
from collections.abc import Generator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sbon.coordinate import Coordinate
from sbon.errors import UnavailableError
from sbon.network_usage import load_cost
from sbon.objectives import Host, NearestTo
from sbon.placement.candidates import candidate_objective, virtual_places
from sbon.placement.exact import Term, bounded, minimise, minimum_with
from sbon.placement.full_optimizer import choose
from sbon.placement.knowledge import Knowledge
from sbon.placement.path_model import End, Field, PathModel, Places, fit
from sbon.placement.problem import PlacementProblem
from sbon.placement.questions import Course, FindHosts, KnownPath, MeasurePaths, Pair, Question, Task, TellKnownPaths
from sbon.placement.relaxation import Point

Floats = NDArray[np.float64]

#: Hosts that a search is asked for.
FOUND = 32
#: One search takes predictions as they are, one allows for the errors that hosts claim.
OPTIMISM = (0.0, 2.0)
FOUND_AGAIN = 16
#: A host that is busier than the least busy one by so much load per core is full. (Where everybody is busy, nobody is.)
FULL_LOAD = 1.0
#: Hosts are measured in about so many rounds.
ROUNDS = 4

#: A part of a course that returns nothing.
_Steps = Generator[Question, Any, None]


class Placer:
    def place(self, task: Task) -> Course:
        return _Placing(task).go()


class _Placing:
    """One plan being placed."""

    def __init__(self, task: Task) -> None:
        self._task = task
        self._problem = task.problem
        self._knowledge = Knowledge(task.view)
        self._found: dict[str, dict[str, Host]] = {operator: {} for operator in self._problem.unpinned}
        #: Operator -> hosts measured for it, in that order.
        self._measured: dict[str, list[str]] = {operator: [] for operator in self._problem.unpinned}
        self._field: Field | None = None

    def go(self) -> Course:
        problem, knowledge = self._problem, self._knowledge
        virtual = virtual_places(problem, knowledge.view)
        yield from self._look(virtual)
        batch = -(-self._task.candidates // ROUNDS)
        first = True
        while chosen := self._most_promising(batch):
            yield from self._measure(chosen)
            if first:
                yield from self._look_again()
                first = False
        candidates = {
            operator: [knowledge.hosts[node_id] for node_id in node_ids]
            for operator, node_ids in self._measured.items()
        }
        return choose(problem, candidates, knowledge.view, virtual, explained=self._task.candidates, pooled=False)

    # --- asking

    def _look(self, virtual: Mapping[str, Point]) -> _Steps:
        problem, knowledge = self._problem, self._knowledge
        if not problem.unpinned:
            return
        ends = {
            problem.pinned[o]
            for operator in problem.unpinned
            for o, _ in problem.neighbours(operator)
            if o in problem.pinned
        }
        knowledge.told((yield TellKnownPaths(tuple(sorted(ends)))))
        for operator in problem.unpinned:
            for optimism in OPTIMISM:
                objective = candidate_objective(problem, operator, virtual, knowledge.view, optimism)
                yield from self._find(operator, FindHosts(objective, FOUND))
            hosts = [
                *self._task.keep.values(),
                *(knowledge.hosts[end] for end in sorted(ends) if end in knowledge.hosts),
            ]
            self._take(operator, hosts)
            if all(host.load >= FULL_LOAD for host in self._found[operator].values()):
                yield from self._find_far(operator, virtual)

    def _find_far(self, operator: str, virtual: Mapping[str, Point]) -> _Steps:
        """All that would be best are full, or there are none: look around each end, too."""
        for neighbour, _ in self._problem.neighbours(operator):
            node_id = self._problem.pinned.get(neighbour)
            view = self._knowledge.view
            place = Coordinate(tuple(virtual[neighbour]), 0.0, 0.0) if node_id is None else view.coordinate_of(node_id)
            yield from self._find(operator, FindHosts(NearestTo(place), FOUND))

    def _look_again(self) -> _Steps:
        """Around the best hosts so far: what made them good may be true of their neighbours."""
        for operator, node_id in self._best_measured()[0].items():
            place = self._knowledge.hosts[node_id].coordinate
            yield from self._find(operator, FindHosts(NearestTo(place, node_id), FOUND_AGAIN))

    def _find(self, operator: str, question: FindHosts) -> _Steps:
        self._take(operator, (yield question))

    def _take(self, operator: str, hosts: Sequence[Host]) -> None:
        usable = [host for host in hosts if host.accepts_operators]
        self._knowledge.found(usable)
        for host in usable:
            self._found[operator][host.node_id] = host

    def _measure(self, chosen: Mapping[str, Sequence[str]]) -> _Steps:
        """All links of the chosen hosts, as far as they are not known, to pinned ends and to measured neighbours."""
        problem, view = self._problem, self._knowledge.view
        for operator, node_ids in chosen.items():
            self._measured[operator] += node_ids
        pairs: dict[Pair, None] = {}
        for operator, node_ids in chosen.items():
            for neighbour, _ in problem.neighbours(operator):
                others = [problem.pinned[neighbour]] if neighbour in problem.pinned else self._measured[neighbour]
                for node_id in node_ids:
                    for other in others:
                        if view.measured(node_id, other) is None and (other, node_id) not in pairs:
                            pairs[node_id, other] = None
        candidates = tuple((operator, node_id) for operator, node_ids in chosen.items() for node_id in node_ids)
        self._knowledge.measured((yield MeasurePaths(tuple(pairs), candidates)))

    # --- thinking

    def _most_promising(self, batch: int) -> dict[str, list[str]]:
        """Operator -> hosts to be measured next; empty when enough is known."""
        left = {
            operator: min(batch, self._task.candidates - len(node_ids)) for operator, node_ids in self._measured.items()
        }
        if not any(left.values()):
            return {}
        model = _Model(self._problem, self._knowledge, self._domains(), self._field)
        self._field = model.field  # what the ends know says most about it; no need to fit it again
        best = self._best_measured()[1]
        chosen: dict[str, list[str]] = {}
        for operator, count in left.items():
            keep = self._task.keep.get(operator)
            known = {*self._measured[operator], *self._task.tried.get(operator, ())}
            ranked = model.ranked(operator, best, known, self._task.least_gain)
            if not self._measured[operator] and keep is not None and keep.accepts_operators:
                ranked = [keep.node_id, *(node_id for node_id in ranked if node_id != keep.node_id)]
            if ranked and count:
                chosen[operator] = ranked[:count]
        return chosen

    def _domains(self) -> dict[str, list[Host]]:
        """Each operator's own hosts first, then those of the others: any two may share one."""
        domains: dict[str, list[Host]] = {}
        for operator, own in self._found.items():
            pool = dict(own)
            for others in self._found.values():
                pool.update(others)
            if not pool:
                raise UnavailableError(
                    f"no known host takes {operator}: set accept_operators = true on at least one node that is up"
                )
            least = min(host.load for host in pool.values())
            domains[operator] = [host for host in pool.values() if host.load < least + FULL_LOAD]
        scopes = [
            tuple(end for end in (link.source, link.target) if end not in self._problem.pinned)
            for link in self._problem.links
        ]
        return bounded(domains, scopes)

    def _best_measured(self) -> tuple[dict[str, str], float]:
        """The best placement on measured hosts, and its cost; infinite as long as an operator has none."""
        if not all(self._measured.values()):
            return {}, math.inf
        hosts = {
            operator: [self._knowledge.hosts[node_id] for node_id in node_ids]
            for operator, node_ids in self._measured.items()
        }
        model = _Model(self._problem, self._knowledge, hosts, Field())  # all is measured: no field matters
        indices, cost = minimise(model.terms, model.sizes)
        return {operator: hosts[operator][index].node_id for operator, index in indices.items()}, cost


class _Model:
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
        gain = _expected_improvement(best - costs, np.sqrt(variance))
        order = np.argsort(-gain, kind="stable")
        return [ids[index] for index in order if ids[index] not in measured and gain[index] > least_gain * best]


def _expected_improvement(margin: Floats, deviation: Floats) -> Floats:
    """E[max(0, margin + deviation * N(0, 1))]."""
    safe = np.maximum(deviation, 1e-12)
    z = np.clip(margin / safe, -30.0, 30.0)
    density = np.exp(-0.5 * z * z) / math.sqrt(2.0 * math.pi)
    share = 0.5 * (1.0 + np.array([math.erf(x / math.sqrt(2.0)) for x in z]))
    gain: Floats = np.where(deviation > 1e-12, margin * share + safe * density, np.maximum(margin, 0.0))
    return gain
