"""``relaxation``: the founding paper's (SBON ICDE'06 sections 3.1.2 and 3.1.3).

VIRTUAL-PLACE finds the point of every operator; of the k hosts nearest to it in the cost space, the nearest one that
takes operators gets it. Load is one more dimension, and the point's is zero. Nothing is measured.
"""

from __future__ import annotations

import math

from sbon.coordinate import Coordinate
from sbon.errors import UnavailableError
from sbon.objectives import HasProperty
from sbon.placement.candidates import virtual_places
from sbon.placement.knowledge import Knowledge
from sbon.placement.questions import Course, FindHosts, Task, placement_without_choices


class Placer:
    def place(self, task: Task) -> Course:
        problem = task.problem
        knowledge = Knowledge(task.view)
        points = virtual_places(problem, task.view)
        chosen = {}
        for operator in problem.unpinned:
            point = Coordinate(tuple(points[operator]), 0.0, 0.0)
            found = yield FindHosts(HasProperty(point, accepts_operators=True), task.candidates)
            knowledge.found(found)
            if not found:
                raise UnavailableError(f"no host was found for {operator}: does any take operators?")
            view = knowledge.view
            away = {
                host.node_id: math.hypot(point.rtt_ms(host.coordinate), view.load_ms(host.node_id)) for host in found
            }
            chosen[operator] = min(away, key=lambda node_id: away[node_id])
        return placement_without_choices(problem, chosen, knowledge.view)
