"""``consumer``: every operator beside its consumer (SBON ICDE'06 section 4.1, CONSUMER): all data go all the way."""

from __future__ import annotations

from sbon.placement.flow import Flow
from sbon.placement.questions import Course, Task, placement_without_choices


class Placer:
    def place(self, task: Task) -> Course:
        flow = Flow.of(task.problem)
        hosts = {operator: flow.consumers(operator)[0] for operator in task.problem.unpinned}
        return placement_without_choices(task.problem, hosts, task.view)
        yield
