"""The local optimizer: whether what runs on this host should run elsewhere (SBON ICDE'06 section 3.2).

Every host re-evaluates its own unpinned operators, query by query. The operators of a query that run on one host and
are connected are evaluated *as a group*: a join and the aggregate behind it hold each other in place when each is
looked at alone, though moving both would pay. A group's problem is a small plan whose other ends are pinned where they
run now, so that the full optimizer's exact choice finds single moves and joint ones alike.

1. :func:`groups`, :func:`local_problem` and :func:`observe` say where the group would like to be;
2. :func:`reason_to_search` compares that with the last time: the displacement threshold saves searches;
3. after search, measurement and :func:`sbon.placement.full_optimizer.choose` over candidates (this host among them),
   :func:`decide` weighs the saving against the minimum migration threshold and what the move itself costs.

What a host remembers between two looks, and how a saving is confirmed: :mod:`sbon.placement.evaluator`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum

import msgspec

from sbon.coordinate import distance_ms
from sbon.network_usage import Link, link_usage, placement_cost
from sbon.placement.candidates import virtual_places
from sbon.placement.choice import OperatorChoice, Placement
from sbon.placement.problem import CostView, PlacementProblem
from sbon.placement.relaxation import Point


class LocalPolicy(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """When a move is worth it.

    ``displacement_threshold_ms``: hosts are looked for when a virtual point or a measured round trip to a neighbour has
    moved by more ("cost space threshold", section 3.2); a round trip also by more than its share
    ``displacement_ratio``.
    ``search_again_s``: when nothing has changed for so long, other hosts are measured; ever later.
    ``least_expected_saving``: no host is measured that may be expected to save less, as a share of the cost.
    ``minimum_saving_ratio``: share of the present cost that a move must save ("minimum migration threshold", same).
    ``repay_factor``: the saving over the remaining lifetime must be this many times the transfer of the state.
    ``rest_s``: a query that has just been moved is left alone for so long.
    ``confirmations``: how often a saving is measured anew, at least, before the move; 0: not at all. ``surety``: by so
    many standard errors the mean of these has to be above ``minimum_saving_ratio``, one of them being taken as
    ``least_spread`` at least (:func:`sbon.placement.evaluator.verdict`).
    ``require_measured``: never move on predictions alone.
    """

    displacement_threshold_ms: float = 5.0
    displacement_ratio: float = 0.1
    search_again_s: float = 60.0
    least_expected_saving: float = 0.001
    minimum_saving_ratio: float = 0.005
    repay_factor: float = 1.0
    rest_s: float = 10.0
    confirmations: int = 3
    surety: float = 3.5
    least_spread: float = 0.005
    require_measured: bool = True


class Action(StrEnum):
    STAY = "stay"
    MOVE = "move"


class Move(msgspec.Struct, frozen=True):
    operator: str
    source: str  # node id
    target: str  # node id


class Decision(msgspec.Struct, frozen=True):
    """``moves`` are carried out one after another, producers first. Costs are of the group's links, in bytes.

    ``repaid_after_s``: the move stays undone only because the query would have to go on for so long.
    """

    action: Action
    reason: str
    cost_now: float
    cost_then: float
    moves: tuple[Move, ...] = ()
    choices: tuple[OperatorChoice, ...] = ()
    repaid_after_s: float | None = None

    @property
    def saving(self) -> float:
        return self.cost_now - self.cost_then


@dataclass(frozen=True, slots=True)
class Observation:
    """Where a group would like to be, and how far its neighbours are. That of the last search is kept to compare with:
    compared with the last evaluation instead, slow drift would never add up to a search.

    ``virtual`` is operator -> point in ms; ``path_rtt_ms``: by the host of an operator and that of a neighbour.
    """

    virtual: Mapping[str, Point]
    path_rtt_ms: Mapping[tuple[str, str], float]


def groups(
    links: Iterable[Link], placement: Mapping[str, str], unpinned: Collection[str], host: str
) -> list[tuple[str, ...]]:
    """The connected groups of a query's unpinned operators on ``host`` (a node id), operators in the links' order."""
    links = tuple(links)
    ends = dict.fromkeys(end for link in links for end in (link.source, link.target))
    group_of = {end: {end} for end in ends if end in unpinned and placement[end] == host}
    for link in links:
        if link.source in group_of and link.target in group_of:
            merged = group_of[link.source] | group_of[link.target]
            for operator in merged:
                group_of[operator] = merged
    distinct = {id(group): group for group in group_of.values()}
    return [tuple(end for end in ends if end in group) for group in distinct.values()]


def local_problem(links: Iterable[Link], placement: Mapping[str, str], group: Collection[str]) -> PlacementProblem:
    """The group's own links, with everything else pinned to where it runs now.

    Raises ValueError if nothing else is linked to the group: then there is nothing to be near to.
    """
    own = tuple(link for link in links if link.source in group or link.target in group)
    ends = (end for link in own for end in (link.source, link.target))
    return PlacementProblem(own, {end: placement[end] for end in ends if end not in group})


def observe(
    problem: PlacementProblem, here: Mapping[str, str], view: CostView, before: Observation | None = None
) -> Observation:
    """Relax the group anew, from where it was ``before``, and note the round trips between its operators, which are
    ``here`` (operator -> node id), and their neighbours."""
    virtual = virtual_places(problem, view, before.virtual if before else None)
    placement = {**problem.pinned, **here}
    paths = {
        (host, placement[neighbour])
        for operator, host in here.items()
        for neighbour, _ in problem.neighbours(operator)
        if placement[neighbour] != host
    }
    rtts = {path: view.measured(*path) for path in paths}
    return Observation(virtual, {path: rtt for path, rtt in rtts.items() if rtt is not None})


def reason_to_search(before: Observation | None, now: Observation, policy: LocalPolicy) -> str | None:
    """Why hosts should be looked for, in words for a log; None if the group's wishes have not really changed.

    A changed path shows in the measured round trip long before coordinates have followed it, so both are watched.
    """
    if before is None:
        return "not evaluated before"
    threshold_ms = policy.displacement_threshold_ms
    for operator, point in now.virtual.items():
        if operator not in before.virtual:
            return f"{operator} is new here"
        moved_ms = distance_ms(point, before.virtual[operator])
        if moved_ms > threshold_ms:
            return f"the virtual point of {operator} moved by {moved_ms:.1f} ms"
    for path, rtt_ms in now.path_rtt_ms.items():
        known_ms, node_id = before.path_rtt_ms.get(path), path[1]
        if known_ms is None:
            return f"the path to {node_id} was not measured before"
        if abs(rtt_ms - known_ms) > max(threshold_ms, policy.displacement_ratio * known_ms):
            return f"the round trip to {node_id} went from {known_ms:.1f} to {rtt_ms:.1f} ms"
    return None


def decide(
    problem: PlacementProblem,
    here: Mapping[str, str],
    best: Placement,
    view: CostView,
    *,
    state_bytes: Mapping[str, int],
    remaining_lifetime_s: float,
    since_last_move_s: float,
    policy: LocalPolicy,
) -> Decision:
    """Stay ``here`` (operator -> node id), or move to ``best``, what :func:`choose` found for this problem.

    The move costs what its state's bytes spend in transit, and saves bytes in transit in every second that the query
    goes on: both are byte seconds. ``remaining_lifetime_s`` is as long again as the query has run if unknown (DESIGN:
    Queries, fragments, ports).
    """
    placement = {**problem.pinned, **here}
    cost_now = placement_cost(problem.links, placement, problem.unpinned, view.rtt_ms, view.load_ms)
    moves = tuple(
        Move(operator, here[operator], best.hosts[operator])
        for operator in problem.unpinned
        if best.hosts[operator] != here[operator]
    )
    saving = cost_now - best.cost
    move_cost = policy.repay_factor * sum(
        link_usage(state_bytes.get(move.operator, 0), view.rtt_ms(move.source, move.target)) for move in moves
    )

    def stay(reason: str, repaid_after_s: float | None = None) -> Decision:
        return Decision(Action.STAY, reason, cost_now, best.cost, (), best.choices, repaid_after_s)

    if not moves or saving <= 0.0:
        return stay("no host is better")
    if since_last_move_s < policy.rest_s:
        return stay(f"the query was moved {since_last_move_s:.0f} s ago and rests for {policy.rest_s:.0f} s")
    if saving < policy.minimum_saving_ratio * cost_now:
        share, least = saving / cost_now, policy.minimum_saving_ratio
        return stay(f"a move would save {share:.0%} of the cost; the least worth it is {least:.0%}")
    if saving * remaining_lifetime_s < move_cost:
        after_s, carried = move_cost / saving, sum(state_bytes.get(move.operator, 0) for move in moves)
        targets = " and ".join(dict.fromkeys(move.target for move in moves))
        return stay(
            f"moving {carried / 1000.0:.0f} kB of state to {targets} would be repaid after {after_s:.0f} s, and "
            f"{remaining_lifetime_s:.0f} s remain",
            after_s,
        )
    if policy.require_measured and not all(choice.candidates[0].measured for choice in best.choices):
        return stay("a move would save by prediction, but its paths have not been measured yet")
    reason = (
        f"saves {saving / cost_now:.0%} of the cost: {cost_now:.0f} bytes in transit and load now, {best.cost:.0f} then"
    )
    return Decision(Action.MOVE, reason, cost_now, best.cost, moves, best.choices)
