"""Coordinates straight from a matrix: every node's estimator in turn, without an overlay, its messages and its
losses."""

from __future__ import annotations

import random
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


def embed(rtt_ms: Matrix, config: OverlayConfig, seed: int) -> Embedding:
    """The same whenever the seed is."""
    rng = random.Random(f"{seed}/embedding")
    count, rows = len(rtt_ms), rtt_ms.tolist()
    estimators = [CoordinateEstimator(config.dimensions, use_height=config.use_height) for _ in range(count)]
    everyone = range(count)
    peers = [[j for j in rng.sample(everyone, min(PEERS + 1, count)) if j != i][:PEERS] for i in everyone]
    for _ in range(ROUNDS):
        for i, estimator in enumerate(estimators):
            chosen = rng.randrange(len(peers[i]))
            j = peers[i][chosen]
            estimator.update(max(LEAST_RTT_MS, rows[i][j]), estimators[j].coordinate, rng)
            if rng.random() < REPLACED:
                other = rng.randrange(count)
                if other != i and other not in peers[i]:
                    peers[i][chosen] = other
    return Embedding([estimator.coordinate for estimator in estimators], peers)
