"""Planning as a decentralised node sees it: by coordinates, by the overlay's searches, and by what it measures."""

from __future__ import annotations

from typing import cast

import numpy as np

from daemon.simulation.placement.embedding import embed
from daemon.simulation.placement.ground import Ground, GroundHost
from daemon.simulation.placement.networks import KnownNetwork
from daemon.simulation.placement.overlay_ground import grow
from daemon.simulation.planning.run import Planned, Plans
from daemon.simulation.progress import Progress
from overlay.config import OverlayConfig
from sbon.placement.optimum import Truth
from sbon.placement.questions import Course
from sbon.planning.asking import Asked, AskingPlanner, renumbered
from sbon.planning.problem import JoinQuery, Plan
from sbon.planning.situation import Situation


def by_embedding(network: KnownNetwork, config: OverlayConfig, seed: int) -> Ground:
    """Coordinates straight from the matrix; searches by brute force over them."""
    embedding = embed(network.rtt_ms, config, seed)
    hosts = [GroundHost(f"n{index}", coordinate) for index, coordinate in enumerate(embedding.coordinates)]
    return Ground(hosts, network.rtt_ms, embedding.peers, network.route)


def by_overlay(network: KnownNetwork, config: OverlayConfig, seed: int, minutes: float, show: Progress) -> Ground:
    """A living overlay of the shipped protocol."""
    return grow(network, config, seed, minutes, None, show)


def believed(ground: Ground) -> Truth:
    """The network as coordinates have it."""
    rtt_ms = ground.places.rtt_ms(ground.places)
    np.fill_diagonal(rtt_ms, 0.0)
    return Truth.of(ground.node_ids, (rtt_ms + rtt_ms.T) / 2.0, takes=ground.truth.takes)


def plans_by_asking(ground: Ground) -> Plans:
    """The joint planner, its questions answered by ``ground``."""

    def plan(query: JoinQuery, situation: Situation) -> Planned:
        planner = AskingPlanner(query, situation.running.usable(query), ground.node_ids, ground.view)
        work = ground.place_all([cast(Course, planner.go())])[0]
        asked = cast(Asked, work.placement)
        hosts = [ground.index[node_id] for node_id in asked.node_ids]
        return Planned(Plan(renumbered(asked.tree, hosts), asked.cost, asked.work), work.seconds, asked.measured)

    return plan
