"""Queries drawn from a seed, placed by every strategy, and compared with the optimum."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from daemon.simulation.placement.figures import Penalty, StrategyFigures
from daemon.simulation.placement.ground import FULL_LOAD, Ground, Work
from daemon.simulation.placement.queries import draw
from sbon.delay import delay_penalty
from sbon.network_usage import network_usage
from sbon.placement import strategies
from sbon.placement.optimum import optimum
from sbon.placement.problem import PlacementProblem
from sbon.placement.questions import Task

#: Queries placed at the same time: while they wait for answers, an overlay lives on, which takes most of the time.
BATCH = 100


@dataclass(slots=True)
class Results:
    """Of one strategy, one entry for each query."""

    usage_penalty: list[float] = field(default_factory=list)
    delay_penalty: list[float] = field(default_factory=list)
    measured_per_operator: list[float] = field(default_factory=list)
    samples: list[int] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    on_full_hosts: int = 0

    def figures(self) -> StrategyFigures:
        count = len(self.samples)
        return StrategyFigures(
            network_usage_penalty=Penalty.of(self.usage_penalty),
            delay_penalty=Penalty.of(self.delay_penalty),
            candidates_measured_per_operator=round(sum(self.measured_per_operator) / count, 3),
            rtt_samples_per_query=round(sum(self.samples) / count, 2),
            milliseconds_per_query=round(1000.0 * sum(self.seconds) / count, 3),
            operators_on_overloaded=self.on_full_hosts,
        )


@dataclass(frozen=True, slots=True)
class Experiment:
    """What is placed how."""

    seed: int
    queries: int
    shape: str
    max_operators: int
    probes: int
    strategies: Sequence[str]

    def problems(self, hosts: Sequence[str]) -> list[PlacementProblem]:
        rng = random.Random(f"{self.seed}/queries")
        return [draw(self.shape, hosts, self.max_operators, rng) for _ in range(self.queries)]


def run(experiment: Experiment, ground: Ground, show: Callable[[int, int], None]) -> dict[str, Results]:
    """By strategy; ``show`` is told of how many placements have been made, and of how many there are."""
    problems = experiment.problems(ground.node_ids)
    results = {name: Results() for name in experiment.strategies}
    total, done = len(problems) * len(results), 0
    for first in range(0, len(problems), BATCH):
        batch = problems[first : first + BATCH]
        least = [_truth_usage(problem, optimum(problem, ground.unloaded).hosts, ground) for problem in batch]
        for name, result in results.items():
            courses = [
                strategies.load(name).place(
                    Task(
                        problem, ground.view, random.Random(f"{experiment.seed}/{name}/{first + k}"), experiment.probes
                    )
                )
                for k, problem in enumerate(batch)
            ]
            for problem, work, optimal in zip(batch, ground.place_all(courses), least, strict=True):
                _judge(result, problem, work, optimal, ground)
            done += len(batch)
            show(done, total)
    return results


def _judge(result: Results, problem: PlacementProblem, work: Work, optimal: float, ground: Ground) -> None:
    assert work.placement is not None
    hosts = work.placement.hosts
    result.usage_penalty.append(_truth_usage(problem, hosts, ground) / optimal - 1.0 if optimal > 0.0 else 0.0)
    result.delay_penalty.append(delay_penalty(problem.links, hosts, ground.true_rtt_ms))
    result.measured_per_operator.append(len(work.measured) / len(problem.unpinned))
    result.samples.append(work.samples)
    result.seconds.append(work.seconds)
    loads = [ground.hosts[ground.index[hosts[operator]]].load for operator in problem.unpinned]
    result.on_full_hosts += sum(load >= FULL_LOAD for load in loads)


def _truth_usage(problem: PlacementProblem, hosts: dict[str, str], ground: Ground) -> float:
    return network_usage(problem.links, hosts, ground.true_rtt_ms)
