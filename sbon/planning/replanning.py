"""Old decisions revisited: what was best when a query came need not be so when others have come since.

One query at a time has its turn, within a budget of moves (:mod:`sbon.planning.turns`), and gets another plan if that
pays (:mod:`sbon.planning.worth`), as in the daemon. In :func:`replan` it is taken out and planned anew given what runs.
Operators that other queries read stay where they are, so a query that is taken out loses those that it alone uses.
"""

from __future__ import annotations

from collections.abc import Iterable

from sbon.planning.planners.joint import Planner
from sbon.planning.problem import JoinQuery
from sbon.planning.situation import Situation
from sbon.planning.turns import turns
from sbon.planning.worth import pays


def replan(queries: Iterable[JoinQuery], situation: Situation, moves: int) -> int:
    """Plan the running ones of ``queries`` anew, at most ``moves`` times with another result; how often it was."""
    known = {query.name: query for query in queries if query.name in situation.running.queries}
    course = turns(list(known), moves)
    moved = None
    while True:
        try:
            name = next(course) if moved is None else course.send(moved)
        except StopIteration as end:
            return int(end.value)
        moved = _plan_anew(known[name], situation)


def _plan_anew(query: JoinQuery, situation: Situation) -> int:
    """1 if that pays, and it was done; 0 otherwise."""
    running, network = situation.running, situation.network
    undo = running.snapshot()
    usage_now = running.network_usage(network)
    running.withdraw(query.name)
    of_others = running.network_usage(network)
    running.deploy(query, Planner().plan(query, situation).tree)
    if pays(usage_now - of_others, running.network_usage(network) - of_others):
        return 1
    running.restore(undo)
    return 0
