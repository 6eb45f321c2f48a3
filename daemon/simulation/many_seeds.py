"""Many seeds at a time: a run is one process's work, and their results come in the order of the seeds."""

from __future__ import annotations

import multiprocessing
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass

from daemon.simulation.fault_runs import FaultRun, Outcome
from daemon.simulation.latency import Matrix
from overlay.config import OverlayConfig


@dataclass(frozen=True, slots=True)
class Plan:
    """What all runs have in common: a network, settings, and the least and the most nodes."""

    slices: Matrix
    config: OverlayConfig
    least_nodes: int
    most_nodes: int

    def run(self, seed: int) -> Outcome:
        return FaultRun(seed, self.slices, self.least_nodes, self.most_nodes, self.config).go()


@contextmanager
def outcomes(plan: Plan, seeds: range, jobs: int) -> Iterator[Iterator[Outcome]]:
    """The outcome of each seed, in order, from ``jobs`` processes; with one job, from this one. Seeds that have not
    begun are given up when the context is left."""
    if min(jobs, len(seeds)) <= 1:
        yield map(plan.run, seeds)
        return
    # Spawned, not forked: a bar of progress has a thread.
    pool = ProcessPoolExecutor(min(jobs, len(seeds)), mp_context=multiprocessing.get_context("spawn"))
    try:
        yield pool.map(plan.run, seeds)
    finally:
        pool.shutdown(cancel_futures=True)
