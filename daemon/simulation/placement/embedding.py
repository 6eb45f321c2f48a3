"""Coordinates straight from a matrix: every node's estimator in turn, without an overlay, its messages and its
losses."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

from daemon.simulation.latency import LEAST_RTT_MS, Matrix
from overlay.config import OverlayConfig
from sbon.coordinate import Coordinate
from sbon.coordinate_estimator import CoordinateEstimator

#: Samples that each node takes, and peers that it takes them from; one of these is replaced now and then.
ROUNDS = 300
PEERS = 32
REPLACED = 0.25


@dataclass(frozen=True, slots=True)
class Embedding:
    """``peers[i]``: whose paths node i has measured lately."""

    coordinates: list[Coordinate]
    peers: list[list[int]]


class Embedder:
    """All nodes' estimators, which can go on taking samples for as long as one likes."""

    def __init__(self, count: int, config: OverlayConfig, seed: int) -> None:
        self._rng = rng = random.Random(f"{seed}/embedding")
        everyone = range(count)
        self.estimators = [CoordinateEstimator(config.dimensions, use_height=config.use_height) for _ in everyone]
        self.peers = [[j for j in rng.sample(everyone, min(PEERS + 1, count)) if j != i][:PEERS] for i in everyone]

    def sample_each(
        self,
        measure_ms: Callable[[int, int], float],
        about_to_take: Callable[[int, float, Coordinate], None] = lambda node, rtt_ms, there: None,
    ) -> None:
        """One sample for each node: the round trip that ``measure_ms`` has between it and one of its peers."""
        rng, estimators, count = self._rng, self.estimators, len(self.estimators)
        for i, estimator in enumerate(estimators):
            peers = self.peers[i]
            chosen = rng.randrange(len(peers))
            j = peers[chosen]
            rtt_ms, there = max(LEAST_RTT_MS, measure_ms(i, j)), estimators[j].coordinate
            about_to_take(i, rtt_ms, there)
            estimator.update(rtt_ms, there, rng)
            if rng.random() < REPLACED:
                other = rng.randrange(count)
                if other != i and other not in peers:
                    peers[chosen] = other


def embed(rtt_ms: Matrix, config: OverlayConfig, seed: int) -> Embedding:
    """The same whenever the seed is."""
    rows = rtt_ms.tolist()
    embedder = Embedder(len(rows), config, seed)
    for _ in range(ROUNDS):
        embedder.sample_each(lambda i, j: float(rows[i][j]))
    return Embedding([estimator.coordinate for estimator in embedder.estimators], embedder.peers)
