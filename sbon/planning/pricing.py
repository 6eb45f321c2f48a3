"""What a plan would cost on known hosts, by known paths: to choose between plans of different shapes.

Which of several plans is the cheapest is asked before any of them is placed; the chosen one is then placed with care.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from sbon.errors import UnavailableError
from sbon.network_usage import Link
from sbon.placement.optimum import Truth, optimum
from sbon.placement.problem import CostView, PlacementProblem


class Prices:
    """Of plans whose ends are on ``ends`` (node ids), and whose operators may be on ``takers``."""

    def __init__(self, ends: Iterable[str], takers: Sequence[str], view: CostView) -> None:
        node_ids = list(dict.fromkeys((*ends, *takers)))
        rtt_ms = np.zeros((len(node_ids), len(node_ids)))
        for row, one in enumerate(node_ids):
            for column, other in enumerate(node_ids[:row]):
                rtt_ms[row, column] = rtt_ms[column, row] = view.rtt_ms(one, other)
        taking = set(takers)
        self._truth = Truth.of(
            node_ids,
            rtt_ms,
            takes=np.array([node_id in taking for node_id in node_ids]),
            load_ms=np.array([view.load_ms(node_id) for node_id in node_ids]),
        )

    def of(self, links: Sequence[tuple[str, str, float]], pinned: Mapping[str, str]) -> float:
        """Bytes in transit, and load, of the best placement; ``links`` are (producer, consumer, bytes/s).

        Infinite if no host takes operators.
        """
        named = {end for source, target, _ in links for end in (source, target)}
        ends = {end: node_id for end, node_id in pinned.items() if end in named}
        problem = PlacementProblem(tuple(Link(*link) for link in links), ends)
        try:
            return optimum(problem, self._truth).cost
        except UnavailableError:
            return math.inf
