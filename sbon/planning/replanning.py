"""Old decisions revisited: what was best when a query came need not be so when others have come since.

One query at a time is taken out, planned anew given what runs, and put back as it is cheaper. Operators that other
queries read stay where they are, so a query that is taken out loses those that it alone uses.
"""

from __future__ import annotations

from collections.abc import Iterable

from sbon.planning.planners.joint import Planner
from sbon.planning.problem import JoinQuery
from sbon.planning.situation import Situation

#: A new plan has to save this share of the whole usage: moving is not free.
LEAST_SAVING = 1e-6
#: Passes over all queries; the second finds little, the third hardly anything.
MOST_PASSES = 3


def replan(queries: Iterable[JoinQuery], situation: Situation, moves: int) -> int:
    """Plan the running ones of ``queries`` anew, at most ``moves`` times with another result; how often it was."""
    running, network, planner = situation.running, situation.network, Planner()
    known = [query for query in queries if query.name in running.queries]
    moved = 0
    for _ in range(MOST_PASSES):
        before = moved
        for query in known:
            if moved >= moves:
                return moved
            usage = running.network_usage(network)
            undo = running.snapshot()
            running.withdraw(query.name)
            running.deploy(query, planner.plan(query, situation).tree)
            if running.network_usage(network) < usage * (1.0 - LEAST_SAVING):
                moved += 1
            else:
                running.restore(undo)
        if moved == before:
            break
    return moved
