"""The joint planner where nobody knows every host and every path: in an overlay (DESIGN: Placement, Finding nodes).

1. The hosts of the query's streams, of its sink and of the nearest streams that run already are the first candidates,
   and tell which paths they have measured anyway; those between them are measured. The overlay is searched for hosts of
   least predicted usage for joins of the query's streams.
2. The plan is made by :class:`sbon.planning.join_table.JoinTable` over the candidates, with paths as they were
   measured or else as coordinates and the residuals of known paths predict them. The paths that the best plan would
   use are measured, and the plan is made anew, until it uses measured paths alone: a plan that is chosen by
   predictions is often one that these flatter, and it is found out when its own paths are measured. At first paths are
   taken to be as short as they may be, so that the promising ones are measured, too, several plans' at once.
3. Hosts for the joins of the best plan and around its operators are looked for, and it goes on.

No sockets and no clock: :meth:`AskingPlanner.go` is a generator that yields questions and is sent the answers
(:mod:`sbon.placement.questions`).
"""

from __future__ import annotations

import itertools
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from sbon.coordinate import MIN_RTT_MS
from sbon.errors import UnavailableError
from sbon.objectives import Endpoint, LeastUsage, NearestTo, heaviest
from sbon.placement.knowledge import Knowledge
from sbon.placement.optimum import Floats, Truth
from sbon.placement.path_model import End, Field, PathModel, Places, fit
from sbon.placement.problem import CostView
from sbon.placement.questions import FindHosts, KnownPath, MeasurePaths, Pair, Question, TellKnownPaths
from sbon.planning.cost import cost
from sbon.planning.join_table import JoinTable, Leaf
from sbon.planning.problem import Join, JoinQuery, Tree, Use, Work, joins, uses

#: Of the running streams that are usable for one set of streams, so many nearest to the sink are considered.
NEAREST_RUNNING = 6
#: Hosts that a search is asked for: for a join of the plan, and around the host of one.
FOUND = 32
FOUND_AROUND = 8
#: Paths are measured so often at most, each time; those of so many plans at once.
ROUNDS = 12
PLANS_AT_ONCE = 4
#: Hosts are looked for so often around the best plan.
LOOKS = 2
#: Paths are first taken to be so many standard deviations shorter than predicted, so that what may be good is measured.
#: Fewer miss better plans: errors of predictions have heavy tails (docs/decisions/planning.md).
OPTIMISM = 3.0


@dataclass(frozen=True, slots=True)
class Asked:
    """``tree``: its hosts are indices into ``node_ids``. ``measured``: paths that were measured for it."""

    tree: Tree
    cost: float
    node_ids: tuple[str, ...]
    measured: int
    work: Work


#: A plan in the making.
PlanCourse = Generator[Question, Any, Asked]
_Steps = Generator[Question, Any, None]


@dataclass(frozen=True, slots=True)
class _Beliefs:
    """What is believed of hosts (``index``: their rows) and of the paths between them: (n, n), ms."""

    index: Mapping[str, int]
    rtt_ms: Floats
    deviations_ms: Floats
    takes: npt.NDArray[np.bool_]
    load_ms: Floats

    def network(self, optimism: float = 0.0, expected: Sequence[Pair] = ()) -> Truth:
        """All paths, less ``optimism`` standard deviations but for those ``expected`` to be as predicted."""
        deviations_ms = self.deviations_ms.copy()
        for a, b in expected:
            row, column = self.index[a], self.index[b]
            deviations_ms[row, column] = deviations_ms[column, row] = 0.0
        rtt_ms = np.maximum(self.rtt_ms - optimism * deviations_ms, MIN_RTT_MS)
        np.fill_diagonal(rtt_ms, 0.0)
        return Truth.of(tuple(self.index), (rtt_ms + rtt_ms.T) / 2.0, takes=self.takes, load_ms=self.load_ms)


class AskingPlanner:
    """One query being planned."""

    def __init__(self, query: JoinQuery, running: Sequence[Use], node_ids: Sequence[str], view: CostView) -> None:
        """Hosts in ``query`` and ``running`` (what runs and is usable) are indices into ``node_ids``.

        What is known of them before anything is asked is in ``view``; of the others nothing has to be.
        """
        self._knowledge = Knowledge(view)
        ends = [node_ids[host] for host in (*query.hosts, query.sink)]
        nearest = self._nearest(running, node_ids, node_ids[query.sink])
        ends += [node_ids[use.host] for use in nearest]
        self._ids = list(dict.fromkeys(ends))
        self._ends = tuple(self._ids)
        index = {node_id: number for number, node_id in enumerate(self._ids)}
        hosts = tuple(index[node_ids[host]] for host in query.hosts)
        self._query = replace(query, hosts=hosts, sink=index[node_ids[query.sink]])
        self._leaves = [Leaf(Use(1 << number, host)) for number, host in enumerate(hosts)]
        self._leaves += [Leaf(replace(use, host=index[node_ids[use.host]])) for use in nearest]
        self._measured: set[Pair] = set()
        self._field: Field | None = None
        self._work = Work()

    def go(self) -> PlanCourse:
        """Raises UnavailableError if no host takes operators, or the streams cannot all be joined."""
        self._knowledge.told((yield TellKnownPaths(self._ends)))
        yield from self._measure(self._not_measured(self._own_paths()))
        yield from self._look(self._base_streams())
        best = yield from self._settle(OPTIMISM)
        for _ in range(LOOKS):
            yield from self._look([list(uses(join)) for join in joins(best)])
            yield from self._look_around(best)
            best = yield from self._settle(OPTIMISM)
        best = yield from self._settle(0.0)
        expected = cost(self._query, best, self._beliefs().network())
        return Asked(best, expected, tuple(self._ids), len(self._measured), self._work)

    # --- asking

    def _settle(self, optimism: float) -> Generator[Question, Any, Tree]:
        """The best plan, all of whose paths have been measured, or as many as rounds allow."""
        for _ in range(ROUNDS):
            beliefs = self._beliefs()
            tree = self._best(beliefs.network(optimism))
            pairs = self._promising(tree, beliefs, optimism)
            if not pairs:
                break
            yield from self._measure(pairs)
        return tree

    def _measure(self, pairs: tuple[Pair, ...]) -> _Steps:
        if pairs:
            self._measured.update(pairs)
            self._knowledge.measured((yield MeasurePaths(pairs)))

    def _promising(self, tree: Tree, beliefs: _Beliefs, optimism: float) -> tuple[Pair, ...]:
        """What this plan would have measured, and the next ones, should its paths be no shorter than predicted."""
        pairs = self._not_measured(self._paths_of(tree))
        # What is already measured, or taken as predicted, makes no other plan the next best.
        for _ in range(PLANS_AT_ONCE - 1 if pairs and optimism else 0):
            next_best = self._best(beliefs.network(optimism, pairs))
            rest = set(self._not_measured(self._paths_of(next_best))) - set(pairs)
            if not rest:
                break
            pairs += tuple(sorted(rest))
        return pairs

    def _look(self, joined: Sequence[Sequence[Use]]) -> _Steps:
        """Hosts of least predicted usage for operators that join these streams for the sink."""
        view, query = self._knowledge.view, self._query
        for parts in joined:
            mask = sum(use.mask for use in parts)
            rate = query.result_rate if mask == query.everything else query.rates[mask]
            ends = [(use.host, query.rates[use.mask]) for use in parts] + [(query.sink, rate)]
            endpoints = heaviest(
                Endpoint(view.coordinate_of(self._ids[host]), weight, self._ids[host]) for host, weight in ends
            )
            input_rate = sum(query.rates[use.mask] for use in parts)
            objective = LeastUsage(endpoints, input_rate, view.load_scale_ms, view.load_scaling)
            self._found((yield FindHosts(objective, FOUND)))

    def _look_around(self, tree: Tree) -> _Steps:
        for host in dict.fromkeys(join.host for join in joins(tree)):
            node_id = self._ids[host]
            objective = NearestTo(self._knowledge.view.coordinate_of(node_id), node_id)
            self._found((yield FindHosts(objective, FOUND_AROUND)))

    def _found(self, hosts: Sequence[Any]) -> None:
        usable = [host for host in hosts if host.accepts_operators]
        self._knowledge.found(usable)
        self._ids += [host.node_id for host in usable if host.node_id not in self._ids]

    # --- thinking

    def _nearest(self, running: Sequence[Use], node_ids: Sequence[str], sink: str) -> list[Use]:
        """The running streams that are worth considering: for each set of streams the nearest to the sink."""
        by_mask: dict[int, list[Use]] = {}
        for use in sorted(running, key=lambda use: self._knowledge.view.rtt_ms(node_ids[use.host], sink)):
            by_mask.setdefault(use.mask, []).append(use)
        return [use for uses in by_mask.values() for use in uses[:NEAREST_RUNNING]]

    def _base_streams(self) -> list[list[Use]]:
        """All pairs of base streams that can be joined, and all streams."""
        query = self._query
        base = [Use(1 << number, host) for number, host in enumerate(query.hosts)]
        pairs = [[a, b] for a, b in itertools.combinations(base, 2) if query.joinable(a.mask | b.mask)]
        return [*pairs, base] if len(base) > 2 else pairs

    def _best(self, network: Truth) -> Tree:
        candidates = np.flatnonzero(network.takes)
        table = JoinTable(self._query.rates, self._leaves, self._query.everything, network, candidates)
        self._work.add(table.work)
        best = table.best(self._query.sink, self._query.result_rate)
        if best is None:
            raise UnavailableError("no known host takes operators, or not all streams are joined with each other")
        return best[0]

    def _own_paths(self) -> list[tuple[int, int]]:
        """Between the hosts of streams and sink, and from running streams to the sink: most plans use some of these,
        and a prediction that is off by far has no second chance where it is the only one."""
        own = dict.fromkeys([*self._query.hosts, self._query.sink])
        return [*itertools.combinations(own, 2), *((leaf.tree.host, self._query.sink) for leaf in self._leaves)]

    def _paths_of(self, tree: Tree) -> list[tuple[int, int]]:
        pairs = [(part.host, join.host) for join in joins(tree) for part in (join.left, join.right)]
        return [*pairs, (tree.host, self._query.sink)]

    def _not_measured(self, paths: Sequence[tuple[int, int]]) -> tuple[Pair, ...]:
        view, has_told = self._knowledge.view, self._knowledge.has_told
        named = [(self._ids[a], self._ids[b]) for a, b in paths if a != b]
        return tuple(
            dict.fromkeys(
                pair
                for pair in named
                if view.measured(*pair) is None
                and not has_told(*pair)
                and pair not in self._measured
                and pair[::-1] not in self._measured
            )
        )

    def _beliefs(self) -> _Beliefs:
        """Of the known hosts and the paths between them, after all that was told and measured."""
        view, knowledge = self._knowledge.view, self._knowledge
        places = Places([view.coordinate_of(node_id) for node_id in self._ids])
        rtt_ms = places.rtt_ms(places)
        paths = self._known_paths()
        ends = {end: End(view.coordinate_of(end), known) for end, known in paths.items()}
        if self._field is None:  # fitting takes a while, and a few more paths change little
            self._field = fit(list(ends.values()))
        deviations_ms = self._field.spread_ms(rtt_ms, places, places)
        for row, node_id in enumerate(self._ids):
            if node_id in ends:
                mean_ms, deviation_ms = PathModel(ends[node_id], self._field).estimate(self._ids, places)
                rtt_ms[row] = rtt_ms[:, row] = mean_ms
                deviations_ms[row] = deviations_ms[:, row] = deviation_ms
        index = {node_id: number for number, node_id in enumerate(self._ids)}
        for row, column, measured_ms in knowledge.measured_between(index, index):
            rtt_ms[row, column] = measured_ms
            deviations_ms[row, column] = 0.0
        takes = np.array([self._takes(node_id) for node_id in self._ids])
        load_ms = np.array([view.load_ms(node_id) for node_id in self._ids])
        return _Beliefs(index, rtt_ms, deviations_ms, takes, load_ms)

    def _known_paths(self) -> Mapping[str, list[KnownPath]]:
        """By end of the query: all paths from there that anyone has measured."""
        view, knowledge = self._knowledge.view, self._knowledge
        found: dict[str, list[KnownPath]] = {}
        for end in self._ends:
            paths = {path.node_id: path for path in knowledge.known_paths.get(end, ()) if path.node_id != end}
            for node_id in self._ids:
                rtt_ms = None if node_id == end else view.measured(node_id, end)
                if rtt_ms is not None:
                    paths[node_id] = KnownPath(node_id, view.coordinate_of(node_id), rtt_ms)
            found[end] = list(paths.values())
        return found

    def _takes(self, node_id: str) -> bool:
        host = self._knowledge.hosts.get(node_id)
        return host is not None and bool(host.accepts_operators)


def renumbered(tree: Tree, hosts: Sequence[int]) -> Tree:
    """The same plan with host ``i`` called ``hosts[i]``."""
    if isinstance(tree, Use):
        return replace(tree, host=hosts[tree.host])
    left, right = renumbered(tree.left, hosts), renumbered(tree.right, hosts)
    return Join(tree.mask, hosts[tree.host], left, right)
