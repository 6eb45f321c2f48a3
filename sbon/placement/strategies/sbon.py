"""``sbon``: measure little, and that where it promises most.

Hosts that are busy are passed over, and looked past for others, as long as there is any that is not. So are full ones,
which have no room for an operator: whoever is to be measured is asked first what it has left. If what was measured
fits one by one, but not together, more hosts are measured.

1. The overlay is searched for hosts of least *predicted usage* for each operator (minimising it beats being near
   a virtual point: DESIGN, Cost space), and the pinned ends tell which paths they have measured anyway.
2. From both, :mod:`sbon.placement.path_model` says what each path costs, and how surely. In rounds, each operator has
   some more hosts measured: those by which the whole plan may be expected to improve most on the best one measured so
   far (*expected improvement*: J. Mockus, "On Bayesian Methods for Seeking the Extremum", 1974), all other operators
   being at their best. Each round makes the model better where it matters; after the first one the search is centred
   anew on what was measured.
3. The choice is exact among hosts that were measured (:func:`sbon.placement.full_optimizer.choose`); near ties are
   broken by delay. Where capacities bind, the mixed-integer program of :mod:`sbon.placement.capacitated` chooses.
"""

from __future__ import annotations

import math
from collections.abc import Generator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sbon.coordinate import Coordinate
from sbon.errors import UnavailableError
from sbon.objectives import Host, NearestTo
from sbon.placement.candidates import candidate_objective, virtual_places
from sbon.placement.capacity import Resources, fits, may_take
from sbon.placement.choice import Placement
from sbon.placement.exact import bounded, minimise
from sbon.placement.full_optimizer import choose
from sbon.placement.knowledge import Knowledge
from sbon.placement.near_ties import NEAR_TIE
from sbon.placement.optimum import Truth
from sbon.placement.path_model import Field
from sbon.placement.plan_model import PlanModel
from sbon.placement.questions import (
    Course,
    FindHosts,
    MeasurePaths,
    Pair,
    Question,
    Task,
    TellKnownPaths,
    TellRoom,
)
from sbon.placement.relaxation import Point

Floats = NDArray[np.float64]

#: Hosts that a search is asked for.
FOUND = 64
#: One search takes predictions as they are, one allows for the errors that hosts claim.
OPTIMISM = (0.0, 2.0)
#: A host that is busier than the least busy one by so much load per core is full. (Where everybody is busy, nobody is.)
FULL_LOAD = 1.0
#: Hosts are measured in about so many rounds.
ROUNDS = 4
#: Searches around hosts that are full, for one operator.
MAX_FURTHER = 16

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
        self._knowledge.room.update(task.room)
        #: So many hosts may be measured for each operator.
        self._limit = task.candidates
        self._found: dict[str, dict[str, Host]] = {operator: {} for operator in self._problem.unpinned}
        #: Operator -> hosts measured for it, in that order.
        self._measured: dict[str, list[str]] = {operator: [] for operator in self._problem.unpinned}
        self._searched_around: dict[str, set[str]] = {operator: set() for operator in self._problem.unpinned}
        self._field: Field | None = None

    def go(self) -> Course:
        virtual = virtual_places(self._problem, self._knowledge.view)
        yield from self._look(virtual)
        batch = -(-self._task.candidates // ROUNDS)
        first = True
        while True:
            yield from self._look_past_the_full()
            chosen = self._most_promising(batch)
            if chosen:
                measured = yield from self._measure(chosen)
                if first and measured:
                    yield from self._look_again()
                    first = False
            elif (placement := self._choose(virtual)) is not None:
                return placement
            else:
                self._limit += self._task.candidates
                if not self._most_promising(batch):
                    raise UnavailableError("no hosts that were found have room for all operators: cancel a query")

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
            yield from self._find(operator, FindHosts(NearestTo(place, node_id), FOUND))

    def _look_past_the_full(self) -> _Steps:
        """Where nobody who was found has room for an operator: around those who were found, the first ones first."""
        for operator, found in self._found.items():
            searched = self._searched_around[operator]
            while found and not any(self._has_room(operator, node_id) for node_id in found):
                around = [host for node_id, host in found.items() if node_id not in searched]
                if not around or len(searched) >= MAX_FURTHER:
                    raise UnavailableError(
                        f"none of {len(found)} hosts has room for {operator}: cancel a query, or add hosts"
                    )
                searched.add(around[0].node_id)
                yield from self._find(operator, FindHosts(NearestTo(around[0].coordinate), FOUND))

    def _has_room(self, operator: str, node_id: str) -> bool:
        """As far as is known. Where it runs now, it has room."""
        keep = self._task.keep.get(operator)
        room = self._knowledge.room.get(node_id)
        if room is None or (keep is not None and keep.node_id == node_id):
            return True
        return may_take(self._problem, operator, node_id, self._task.demand, room)

    def _find(self, operator: str, question: FindHosts) -> _Steps:
        self._take(operator, (yield question))

    def _take(self, operator: str, hosts: Sequence[Host]) -> None:
        usable = [host for host in hosts if host.accepts_operators]
        self._knowledge.found(usable)
        for host in usable:
            self._found[operator][host.node_id] = host

    def _measure(self, chosen: Mapping[str, Sequence[str]]) -> Generator[Question, Any, bool]:
        """All links of the chosen hosts, as far as they are not known, to pinned ends and to measured neighbours.

        Those that are found to be full are not measured; whether any was.
        """
        problem, view = self._problem, self._knowledge.view
        if self._task.demand:
            unknown = {node_id for node_ids in chosen.values() for node_id in node_ids} - self._knowledge.room.keys()
            self._knowledge.room.update((yield TellRoom(tuple(sorted(unknown)))) if unknown else {})
            chosen = {
                operator: [node_id for node_id in node_ids if self._has_room(operator, node_id)]
                for operator, node_ids in chosen.items()
            }
            if not any(chosen.values()):
                return False
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
        return True

    # --- thinking

    def _most_promising(self, batch: int) -> dict[str, list[str]]:
        """Operator -> hosts to be measured next; empty when enough is known."""
        left = {operator: min(batch, self._limit - len(node_ids)) for operator, node_ids in self._measured.items()}
        if not any(left.values()):
            return {}
        model = PlanModel(self._problem, self._knowledge, self._domains(), self._field)
        self._field = model.field  # what the ends know says most about it; no need to fit it again
        # Where what was measured does not fit, it is nothing to improve on.
        best = self._best_measured()[1] if self._limit == self._task.candidates else math.inf
        chosen: dict[str, list[str]] = {}
        for operator, count in left.items():
            known = {*self._measured[operator], *self._task.tried.get(operator, ())}
            ranked = model.ranked(operator, best, known, self._task.least_gain)
            if not self._measured[operator]:
                ranked = self._first(operator, ranked)
            if ranked and count > 0:
                chosen[operator] = ranked[:count]
        return chosen

    def _first(self, operator: str, ranked: list[str]) -> list[str]:
        """Where it runs now, or the best of the ends that it has links with, is measured before all others.

        From an end to the other ends are paths that all hosts near it share: where these are unlike what coordinates
        say, nothing else would tell that its neighbourhood is better, or worse, than it looks.
        """
        keep, pinned = self._task.keep.get(operator), self._problem.pinned
        if keep is not None:
            first = [keep.node_id] if keep.accepts_operators else []
        else:
            ends = {pinned[neighbour] for neighbour, _ in self._problem.neighbours(operator) if neighbour in pinned}
            first = [node_id for node_id in ranked if node_id in ends][:1]
        return list(dict.fromkeys([*first, *ranked]))

    def _domains(self) -> dict[str, list[Host]]:
        """Each operator's own hosts first, then those of its neighbours: any two may share one."""
        domains: dict[str, list[Host]] = {}
        for operator, own in self._found.items():
            pool = dict(own)
            for neighbour, _ in self._problem.neighbours(operator):
                pool.update(self._found.get(neighbour, {}))
            free = [host for host in pool.values() if self._has_room(operator, host.node_id)]
            if not free:
                raise UnavailableError(
                    f"no known host takes {operator}: set accept_operators = true on at least one node that is up"
                )
            least = min(host.load for host in free)
            domains[operator] = [host for host in free if host.load < least + FULL_LOAD]
        scopes = [
            tuple(end for end in (link.source, link.target) if end not in self._problem.pinned)
            for link in self._problem.links
        ]
        return bounded(domains, scopes)

    def _choose(self, virtual: Mapping[str, Point]) -> Placement | None:
        """Among what was measured; None if none of it has room for all together."""
        problem, task, view = self._problem, self._task, self._knowledge.view
        candidates = {
            operator: [self._knowledge.hosts[node_id] for node_id in node_ids]
            for operator, node_ids in self._measured.items()
        }
        slack = 0.0 if task.keep else NEAR_TIE  # what runs is moved for usage alone
        placement = choose(problem, candidates, view, virtual, explained=task.candidates, pooled=False, slack=slack)
        kept = {host.node_id for host in task.keep.values()}
        room = {node_id: left for node_id, left in self._knowledge.room.items() if node_id not in kept}
        if not task.demand or fits(problem, placement.hosts, task.demand, room):
            return placement
        settled = self._settled(candidates, room)
        if settled is None:
            return None
        for operator, node_id in settled.items():
            candidates[operator].append(self._knowledge.hosts[node_id])  # it may be one of another operator's
        return choose(problem, candidates, view, virtual, explained=task.candidates, pooled=False, settled=settled)

    def _settled(
        self, candidates: Mapping[str, Sequence[Host]], room: Mapping[str, Resources]
    ) -> dict[str, str] | None:
        """The best hosts among the candidates of all operators that have room for all together, if there are any."""
        from sbon.placement.capacitated import capacitated_optimum

        problem, view = self._problem, self._knowledge.view
        pool = {host.node_id: host for hosts in candidates.values() for host in hosts}
        node_ids = list(dict.fromkeys((*pool, *problem.pinned.values())))
        rtt_ms = np.array([[0.0 if a == b else view.rtt_ms(a, b) for b in node_ids] for a in node_ids])
        truth = Truth.of(
            node_ids,
            (rtt_ms + rtt_ms.T) / 2.0,
            takes=np.array([node_id in pool for node_id in node_ids]),
            load_ms=np.array([view.load_ms(node_id) for node_id in node_ids]),
        )
        try:
            best = capacitated_optimum(problem, truth, self._task.demand, room)
        except UnavailableError:
            return None
        return {operator: best.hosts[operator] for operator in problem.unpinned}

    def _best_measured(self) -> tuple[dict[str, str], float]:
        """The best placement on measured hosts, and its cost; infinite as long as an operator has none."""
        if not all(self._measured.values()):
            return {}, math.inf
        hosts = {
            operator: [self._knowledge.hosts[node_id] for node_id in node_ids]
            for operator, node_ids in self._measured.items()
        }
        model = PlanModel(self._problem, self._knowledge, hosts, Field())  # all is measured: no field matters
        indices, cost = minimise(model.terms, model.sizes)
        return {operator: hosts[operator][index].node_id for operator, index in indices.items()}, cost
