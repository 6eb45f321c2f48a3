"""``random``: each operator on a host drawn from all of them (SBON ICDE'06 section 4.1, RANDOM).

A daemon draws from the hosts that it knows, the simulator from all.
"""

from __future__ import annotations

from sbon.errors import UnavailableError
from sbon.placement.knowledge import Knowledge
from sbon.placement.questions import Course, SurveyHosts, Task, placement_without_choices


class Placer:
    def place(self, task: Task) -> Course:
        hosts = [host for host in (yield SurveyHosts()) if host.accepts_operators]
        if not hosts:
            raise UnavailableError("no known host takes operators: set accept_operators = true on at least one")
        knowledge = Knowledge(task.view)
        knowledge.found(hosts)
        chosen = {operator: task.rng.choice(hosts).node_id for operator in task.problem.unpinned}
        return placement_without_choices(task.problem, chosen, knowledge.view)
