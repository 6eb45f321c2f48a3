"""Twins of the same queries, one migrating and one pinned, while the network changes (SBON ICDE'06 section 4.2.1).

The migrating one is in the hands of :class:`sbon.placement.evaluator.Evaluator`, one for each host that runs operators,
as in the daemon; what the daemon's task does around it (who is asked when) is done here in virtual time.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from daemon.simulation.adaptation.changing import ChangingGround, window_samples
from daemon.simulation.latency import Matrix
from daemon.simulation.placement.queries import draw
from sbon.delay import longest_delay_ms
from sbon.network_usage import Link, link_usage, network_usage
from sbon.placement import strategies
from sbon.placement.evaluator import CONFIRM_EVERY_S, MAX_LOOKS, Evaluation, Evaluator, Situation
from sbon.placement.local_optimizer import Action, LocalPolicy, Move, groups
from sbon.placement.optimum import optimum
from sbon.placement.problem import PlacementProblem
from sbon.placement.questions import FindHosts, MeasurePaths, Task

CONVERGED_AFTER_S = 3600.0
#: Less than this share is no gain and no loss.
A_DIFFERENCE = 0.001


@dataclass(frozen=True, slots=True)
class Setting:
    """``look_s``: seconds between two looks of a local optimizer; ``state_bytes``: of an operator, moved with it;
    ``first``: the strategy of the placement that both twins start from."""

    seed: int
    queries: int
    shape: str
    max_operators: int
    probes: int
    hours: float
    look_s: float
    state_bytes: int
    policy: LocalPolicy
    first: str = "sbon"
    probe_interval_s: float = 1.0

    @property
    def looks(self) -> int:
        return max(1, round(self.hours * 3600.0 / self.look_s))


@dataclass(slots=True)
class Twins:
    """A query, twice. Usage is summed over looks (bytes in transit), delay too (ms)."""

    problem: PlacementProblem
    pinned: dict[str, str]
    migrating: dict[str, str]
    best: dict[str, str]
    moved_at_s: float = 0.0
    moves: int = 0
    late_moves: int = 0
    best_moves: int = -1
    move_usage: float = 0.0
    #: Of the pinned twin, the migrating one and the omniscient's.
    usage: list[float] = field(default_factory=lambda: [0.0] * 3)
    delay_ms: list[float] = field(default_factory=lambda: [0.0] * 3)


@dataclass(slots=True)
class Effort:
    searches: int = 0
    measured: int = 0
    looks: int = 0
    seconds: float = 0.0


class Run:
    """Call :meth:`go` once."""

    def __init__(self, setting: Setting, ground: ChangingGround, truth_at: Callable[[int], Matrix | None]) -> None:
        """``truth_at``: what is true from a look on; None: nothing has changed."""
        self._setting = setting
        self._ground = ground
        self._truth_at = truth_at
        self._evaluators: dict[str, Evaluator] = {}
        self.effort = Effort()
        rng = random.Random(f"{setting.seed}/queries")
        shape, most = setting.shape, setting.max_operators
        drawn = [draw(shape, ground.node_ids, most, rng) for _ in range(setting.queries)]
        self.twins = [self._start(_named(problem, number)) for number, problem in enumerate(drawn)]

    def _start(self, problem: PlacementProblem) -> Twins:
        ground, setting = self._ground, self._setting
        task = Task(problem, ground.view, random.Random(setting.seed), setting.probes)
        placement = ground.place_all([strategies.load(setting.first).place(task)])[0].placement
        assert placement is not None
        return Twins(problem, dict(placement.hosts), dict(placement.hosts), {})

    def go(self, show: Callable[[int, int], None]) -> None:
        for look in range(self._setting.looks):
            changed = self._truth_at(look)
            if changed is not None:
                self._ground.show(changed)
            self._ground.live()
            for twins in self.twins:
                if changed is not None or look == 0:
                    self._replace(twins)
                self._look(twins, look * self._setting.look_s)
                self._account(twins)
            show(look + 1, self._setting.looks)

    def _replace(self, twins: Twins) -> None:
        """The omniscient's turn."""
        best = optimum(twins.problem, self._ground.truth).hosts
        if best != twins.best:
            twins.best = best
            twins.best_moves += 1

    # --- the migrating twin

    def _look(self, twins: Twins, now_s: float) -> None:
        """Every host of the query looks at its operators; at most one group moves."""
        problem, placement = twins.problem, twins.migrating
        if now_s - twins.moved_at_s < self._setting.policy.rest_s:
            return
        count = window_samples(self._setting.look_s, self._setting.probe_interval_s)
        for host in dict.fromkeys(placement[operator] for operator in problem.unpinned):
            for group in groups(problem.links, placement, problem.unpinned, host):
                ends = self._streams_of(twins, group, host)
                for end in ends:
                    self._ground.take_samples(host, end, count)
                evaluation = self._evaluate(twins, group, host, ends, now_s)
                if evaluation is not None and evaluation.decision.action is Action.MOVE:
                    self._move(twins, evaluation.decision.moves, now_s)
                    return

    def _evaluate(
        self, twins: Twins, group: tuple[str, ...], host: str, ends: Sequence[str], now_s: float
    ) -> Evaluation | None:
        """Once; and again, as often as something is being confirmed."""
        ground, setting = self._ground, self._setting
        evaluator = self._evaluator(host)
        situation = Situation(
            twins.problem.links,
            twins.migrating,
            group,
            state_bytes=dict.fromkeys(group, setting.state_bytes),
            remaining_lifetime_s=now_s,
            since_last_move_s=now_s - twins.moved_at_s if twins.moves else now_s + setting.policy.rest_s,
        )
        own = ground.hosts[ground.index[host]]
        evaluation: Evaluation | None = None
        for _ in range(1 + 2 * MAX_LOOKS):
            evaluation = self._answered(evaluator.evaluate(situation, [own], ground.view_from(host, ends), now_s))
            if not evaluator.confirms(group):
                break
            now_s += CONFIRM_EVERY_S
            for end in ends:
                ground.take_samples(host, end, 1)
        return evaluation

    def _answered(self, course: Any) -> Any:
        effort, answer = self.effort, None
        effort.looks += 1
        began = time.perf_counter()
        try:
            while True:
                question = course.send(answer)
                if isinstance(question, FindHosts):
                    effort.searches += 1
                elif isinstance(question, MeasurePaths):
                    effort.measured += len(question.candidates)
                answer = self._ground.answer(question)
        except StopIteration as end:
            effort.seconds += time.perf_counter() - began
            return end.value

    def _evaluator(self, host: str) -> Evaluator:
        setting = self._setting
        if host not in self._evaluators:
            rng = random.Random(f"{setting.seed}/{host}")
            self._evaluators[host] = Evaluator(setting.policy, "sbon", setting.probes, rng)
        return self._evaluators[host]

    def _streams_of(self, twins: Twins, group: Sequence[str], host: str) -> list[str]:
        """The other hosts that the group has streams with."""
        ends = {
            twins.migrating[end]
            for link in twins.problem.links
            if link.source in group or link.target in group
            for end in (link.source, link.target)
        }
        return sorted(ends - {host})

    def _move(self, twins: Twins, moves: Sequence[Move], now_s: float) -> None:
        for move in moves:
            twins.migrating[move.operator] = move.target
            twins.moves += 1
            twins.late_moves += now_s >= CONVERGED_AFTER_S
            rtt_ms = self._ground.true_rtt_ms(move.source, move.target)
            twins.move_usage += link_usage(self._setting.state_bytes, rtt_ms) / self._setting.look_s
        twins.moved_at_s = now_s

    # --- what comes of it

    def _account(self, twins: Twins) -> None:
        links, true_ms = twins.problem.links, self._ground.true_rtt_ms
        for kind, hosts in enumerate((twins.pinned, twins.migrating, twins.best)):
            twins.usage[kind] += network_usage(links, hosts, true_ms)
            twins.delay_ms[kind] += longest_delay_ms(links, hosts, true_ms)


def _named(problem: PlacementProblem, number: int) -> PlacementProblem:
    """The query's operators under names of their own: one host may run those of several."""
    links = tuple(
        Link(f"{number}/{link.source}", f"{number}/{link.target}", link.rate_bytes_per_s) for link in problem.links
    )
    return PlacementProblem(links, {f"{number}/{operator}": host for operator, host in problem.pinned.items()})
