"""A network that changes under running queries: a ground whose round trips, samples and coordinates are of a time.

What is true changes from slice to slice. What nodes see of it are samples, longer than the truth by jitter, through the
filter that each path has in the daemon; coordinates go on following them.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from daemon.simulation.latency import LEAST_RTT_MS, Matrix
from daemon.simulation.placement.embedding import ROUNDS, Embedder
from daemon.simulation.placement.ground import Ground, GroundHost
from overlay.config import OverlayConfig
from sbon.coordinate import Coordinate
from sbon.latency_filter import WINDOW, PercentileFilter
from sbon.placement.optimum import Truth
from sbon.placement.path_model import Places
from sbon.placement.problem import CostView
from sbon.placement.questions import Known, KnownPath, MeasurePaths, Question
from sbon.update_filter import UpdateFilter

#: A node takes a sample for its coordinate this often. (A daemon does so each second. Coordinates that have settled
#: hardly notice, and nearly all of the time would go into them.)
SAMPLE_EVERY_S = 20.0
#: Pings with which a candidate measures a path that it has not measured lately.
PINGS = 5
#: A changed route takes longer by a factor drawn from here, on paths to this share of the others.
DETOUR = (1.3, 3.0)
DETOUR_SHARE = 0.5


class ChangingGround(Ground):
    """Hosts are in the order of the matrix."""

    def __init__(self, rtt_ms: Matrix, config: OverlayConfig, seed: int, jitter: float, look_s: float) -> None:
        """``rtt_ms``: what is true at first. ``jitter``: a sample is longer by an exponential of this mean share.
        ``look_s``: how long it lives each time."""
        self._jitter = jitter
        self._samples_each = max(1, round(look_s / SAMPLE_EVERY_S))
        self._rng = random.Random(f"{seed}/samples")
        self._filters: dict[tuple[int, int], PercentileFilter] = {}
        self._rows = rtt_ms.tolist()
        self._embedder = Embedder(len(rtt_ms), config, seed)
        for _ in range(ROUNDS):
            self._embedder.sample_each(self._sampled_ms)
        self._place_filters = [UpdateFilter(config.advertise_ratio, config.advertise_distance_ms) for _ in self._rows]
        self._own = [GroundHost(f"n{i}", one.coordinate) for i, one in enumerate(self._embedder.estimators)]
        super().__init__(self._own, rtt_ms, self._embedder.peers)

    def show(self, rtt_ms: Matrix) -> None:
        """From now on this is true."""
        self.rtt_ms, self._rows = rtt_ms, rtt_ms.tolist()
        self.truth = self.unloaded = Truth.of(self.node_ids, rtt_ms)

    def live(self) -> None:
        """Some samples for each node, and the coordinates that follow."""
        estimators = self._embedder.estimators

        def compare(node: int, rtt_ms: float, there: Coordinate) -> None:
            self._place_filters[node].compare(rtt_ms, there, estimators[node].coordinate)

        for _ in range(self._samples_each):
            self._embedder.sample_each(self._sampled_ms, compare)
            filters = zip(self._place_filters, estimators, strict=True)
            places = [one.take(estimator.coordinate, estimator.updates) for one, estimator in filters]
        self._own = [replace(host, coordinate=place) for host, place in zip(self._own, places, strict=True)]
        self.hosts = list(self._own)
        self.places = Places([host.coordinate for host in self.hosts])

    def take_samples(self, a: str, b: str, count: int) -> float:
        """What the filter of a path has after ``count`` more samples, in ms."""
        one, other = self.index[a], self.index[b]
        for _ in range(count):
            self._sampled_ms(one, other)
        value = self._filters[one, other].value
        assert value is not None
        return value

    def view_from(self, node_id: str, streams_with: Sequence[str]) -> CostView:
        """What a host knows: the paths of the streams that it has, and what coordinates say."""
        here = self.index[node_id]
        measured_ms: Mapping[str, float | None] = {
            other: path.value for other in streams_with if (path := self._filters.get((here, self.index[other])))
        }
        return replace(self.view, measured_rtt_ms=lambda a, b: measured_ms.get(b) if a == node_id else None)

    def _sampled_ms(self, a: int, b: int) -> float:
        """One more sample, filtered."""
        path = self._filters.setdefault((a, b), PercentileFilter())
        path.add(max(LEAST_RTT_MS, self._rows[a][b]) * (1.0 + self._jitter * self._rng.expovariate(1.0)))
        assert path.value is not None
        return path.value

    def _fresh_ms(self, a: str, b: str) -> float:
        """A path that is measured for once: what was known of it is too old, or not meant."""
        path, true_ms = PercentileFilter(), max(LEAST_RTT_MS, self.true_rtt_ms(a, b))
        for _ in range(PINGS):
            path.add(true_ms * (1.0 + self._jitter * self._rng.expovariate(1.0)))
        assert path.value is not None
        return path.value

    # --- answers

    def answer(self, question: Question) -> Any:
        if isinstance(question, MeasurePaths):
            return {pair: self._fresh_ms(*pair) for pair in question.pairs}
        return super().answer(question)

    def known(self, node_id: str) -> Known:
        here = self.index[node_id]
        paths = (
            KnownPath(self.node_ids[other], self.hosts[other].coordinate, path.value)
            for other in self._embedder.peers[here]
            if (path := self._filters.get((here, other))) and path.value is not None
        )
        return Known(self.hosts[here], tuple(paths))


def window_samples(seconds: float, probe_interval_s: float) -> int:
    """Samples of a stream's path in so long, as many as its filter can hold."""
    return max(1, min(WINDOW, int(seconds / probe_interval_s)))


def routes_changed(rtt_ms: Matrix, share: float, times: int, seed: int) -> Callable[[int], Matrix]:
    """The matrix after each of ``times`` steps, in which altogether ``share`` of the hosts have their routes changed.

    Such a host's paths to half of the others become detours, for good; each of these hosts at a step of its own.
    """
    rng = random.Random(f"{seed}/routes")
    count = len(rtt_ms)
    changing = rng.sample(range(count), round(share * count))
    steps: dict[int, list[tuple[int, list[int], float]]] = {}
    for host in changing:
        others = [j for j in rng.sample(range(count), round(DETOUR_SHARE * count)) if j != host]
        steps.setdefault(rng.randrange(1, max(2, times)), []).append((host, others, rng.uniform(*DETOUR)))
    factors = np.ones_like(rtt_ms)

    def after(step: int) -> Matrix:
        """Steps are asked for in order."""
        for host, others, factor in steps.pop(step, []):
            factors[host, others] *= factor
            factors[others, host] *= factor
        return factors

    return after
