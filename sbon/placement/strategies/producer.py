"""``producer``: each operator beside one of its producers, drawn at random (SBON ICDE'06 section 4.1, PRODUCER)."""

from __future__ import annotations

from sbon.placement.flow import Flow
from sbon.placement.questions import Course, Task, placement_without_choices


class Placer:
    def place(self, task: Task) -> Course:
        flow = Flow.of(task.problem)
        hosts = {operator: task.rng.choice(flow.producers(operator)) for operator in task.problem.unpinned}
        return placement_without_choices(task.problem, hosts, task.view)
        yield
