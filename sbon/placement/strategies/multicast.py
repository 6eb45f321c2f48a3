"""``multicast``: each operator where the routes of its producers meet (SBON ICDE'06 section 4.1, IP MULTICAST).

The routes from the producers below an operator to its consumer make a tree; the operator goes to its branch point, the
first node from the producers on that all of them pass. Where that takes no operators, to the next one on the way that
does. Between hosts that know nothing of the routers between them, routes meet at the consumer.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from sbon.placement.flow import Flow
from sbon.placement.questions import Course, SurveyHosts, Task, TellRoutes, placement_without_choices


class Placer:
    def place(self, task: Task) -> Course:
        problem = task.problem
        flow = Flow.of(problem)
        takes = {host.node_id for host in (yield SurveyHosts()) if host.accepts_operators}
        wanted = {
            operator: [(producer, flow.consumers(operator)[0]) for producer in flow.producers(operator)]
            for operator in problem.unpinned
        }
        pairs = dict.fromkeys(pair for pairs in wanted.values() for pair in pairs)
        routes = yield TellRoutes(tuple(pairs))
        hosts = {
            operator: branch_point([routes.get(pair, pair) for pair in pairs], takes)
            for operator, pairs in wanted.items()
        }
        return placement_without_choices(problem, hosts, task.view)


def branch_point(routes: Sequence[Sequence[str]], takes: Collection[str]) -> str:
    """The first node of ``takes`` on the first route that is on all others, too; the end of the routes if none is."""
    others = [set(route) for route in routes[1:]]
    for node_id in routes[0]:
        if node_id in takes and all(node_id in other for other in others):
            return node_id
    return routes[0][-1]
