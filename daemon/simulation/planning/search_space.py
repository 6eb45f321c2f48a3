"""How many plans the hierarchical planners choose from, by the size of the network (Seshadri et al., TPDS'09, figure
15): queries over four of ten streams, nothing running yet."""

from __future__ import annotations

import random

import numpy as np

from daemon.simulation import transit_stub
from daemon.simulation.planning.figures import SearchSpace
from daemon.simulation.planning.workloads import STREAMS as ALL_STREAMS
from daemon.simulation.planning.workloads import synthetic
from daemon.simulation.progress import Progress
from sbon.placement.optimum import Truth
from sbon.planning import planners, search_space
from sbon.planning.hierarchy import build
from sbon.planning.running import Running
from sbon.planning.situation import Situation

SIZES = (64, 128, 256, 512, 1024)
STREAMS = 4
NAMES = ("top-down", "npc", "bottom-up")


def compare(seed: int, count: int, max_cs: int, shown: Progress) -> tuple[SearchSpace, ...]:
    """One row for each of :data:`SIZES`."""
    found = []
    for done, size in enumerate(SIZES):
        shown.show(done, len(SIZES), f"{size} nodes")
        rtt_ms = transit_stub.generate(seed, transit_stub.Shape.of(size)).rtt_ms
        network = Truth.of([f"n{index}" for index in range(len(rtt_ms))], rtt_ms)
        hierarchy = build(network.one_way_s, max_cs, random.Random(f"{seed}/clusters"))
        rng = random.Random(f"{seed}/queries")
        queries = synthetic(count, len(rtt_ms), rng, ALL_STREAMS, (STREAMS, STREAMS))
        situation = Situation(network, Running(), hierarchy)
        plans = {
            name: float(np.mean([planners.load(name).plan(query, situation).work.plans for query in queries]))
            for name in NAMES
        }
        found.append(
            SearchSpace(
                hosts=len(rtt_ms),
                height=hierarchy.height,
                top_down=round(plans["top-down"], 1),
                npc=round(plans["npc"], 1),
                bottom_up=round(plans["bottom-up"], 1),
                bound=float(search_space.hierarchical_bound(STREAMS, max_cs, hierarchy.height)),
                exhaustive=float(search_space.exhaustive(STREAMS, len(rtt_ms))),
            )
        )
    return tuple(found)
