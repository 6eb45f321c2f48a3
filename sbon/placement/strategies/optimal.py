"""``optimal``: the placement of least cost among all hosts, with every path known (SBON ICDE'06 section 4.1, OPTIMAL).

To compare with, and for networks small enough that everything is measured anyway. Where hosts can be full, the optimum
among what fits.
"""

from __future__ import annotations

from sbon.placement.questions import Course, SurveyAll, Task, TellRoom, placement_without_choices


class Placer:
    def place(self, task: Task) -> Course:
        truth = yield SurveyAll()
        room = dict(task.room)
        if task.demand:
            room.update((yield TellRoom(truth.node_ids)))
        from sbon.placement.capacitated import capacitated_optimum

        best = capacitated_optimum(task.problem, truth, task.demand, room)
        return placement_without_choices(task.problem, best.hosts, task.view)
