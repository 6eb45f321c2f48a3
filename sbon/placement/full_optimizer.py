"""The full optimizer: hosts for all unpinned operators of a new plan at once (SBON ICDE'06 sections 3.1.3 and 3.2).

In two steps, because measuring takes time and this module knows none:

1. :mod:`sbon.placement.candidates` says where to look for hosts;
2. when round trips between those found are known as well as can be, :func:`choose` minimises the sum of
   rate x one-way latency + input rate x load exactly over the candidates.

The second step alone needs numpy: a daemon that has nothing to place never imports this module.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache

import numpy as np

from sbon.errors import UnavailableError
from sbon.network_usage import RttMs, link_usage, load_cost, network_usage, placement_cost
from sbon.objectives import Host
from sbon.placement.choice import CandidateCost, OperatorChoice, Placement
from sbon.placement.exact import Term, bounded, minimise, minimum_with
from sbon.placement.near_ties import quickest
from sbon.placement.problem import CostView, PlacementProblem
from sbon.placement.relaxation import Point

#: Candidates per operator (SBON ICDE'06 section 3.1.3: k = 10).
CANDIDATES = 10


def choose(
    problem: PlacementProblem,
    candidates: Mapping[str, Sequence[Host]],
    view: CostView,
    virtual: Mapping[str, Point],
    *,
    explained: int = CANDIDATES,
    pooled: bool = True,
    settled: Mapping[str, str] | None = None,
    slack: float = 0.0,
) -> Placement:
    """The hosts of least cost, exactly, over the candidates of all operators taken together; of those that cost a share
    of ``slack`` more at most, quicker ones (:mod:`sbon.placement.near_ties`).

    ``candidates`` (operator -> hosts, most promising first) are pooled, so that any two operators may share a host; not
    ``pooled``: each operator gets one of its own. Of equal costs the earlier candidate wins. ``explained`` bounds the
    candidates listed for each operator. Raises UnavailableError if there are operators to place and no host accepts
    any.
    """
    domains = _domains(problem, candidates, pooled)
    sizes = {operator: len(hosts) for operator, hosts in domains.items()}
    ids = {operator: [host.node_id for host in hosts] for operator, hosts in domains.items()}
    rtt_ms = cache(view.rtt_ms)
    by_measurement = _terms(problem, domains, view, rtt_ms)
    by_prediction = _terms(problem, domains, view, cache(view.predicted))
    if settled is None:
        indices, _ = minimise(by_measurement, sizes)
        settled = {operator: ids[operator][index] for operator, index in indices.items()}
    hosts = dict(problem.pinned) | {operator: settled[operator] for operator in problem.unpinned}
    if slack:
        hosts = quickest(problem, ids, hosts, view, rtt_ms, slack)
    choices = []
    for operator in problem.unpinned:
        measured_costs = minimum_with(operator, by_measurement, sizes)
        predicted_costs = minimum_with(operator, by_prediction, sizes)
        costs = [
            CandidateCost(
                node_id=host.node_id,
                name=host.name,
                load=view.load_of(host.node_id),
                predicted_cost=float(predicted_costs[index]),
                measured_cost=float(measured_costs[index]),
                measured=_is_measured(problem, operator, host.node_id, hosts, view),
            )
            for index, host in enumerate(domains[operator])
        ]
        chosen = costs.pop(ids[operator].index(hosts[operator]))
        ranked = (chosen, *sorted(costs, key=lambda candidate: candidate.measured_cost))
        choices.append(_explained(operator, virtual[operator], ranked, explained))
    return Placement(
        hosts=hosts,
        cost=placement_cost(problem.links, hosts, problem.unpinned, view.rtt_ms, view.load_ms),
        network_usage=network_usage(problem.links, hosts, view.rtt_ms),
        choices=tuple(choices),
    )


def _domains(
    problem: PlacementProblem, candidates: Mapping[str, Sequence[Host]], pooled: bool
) -> dict[str, list[Host]]:
    """The hosts that each operator may get: its own candidates first, then those of the others, as many as can be
    searched exactly. The least promising are left out first."""
    domains: dict[str, list[Host]] = {}
    for operator in problem.unpinned:
        own_first = [candidates.get(operator, ()), *(candidates.values() if pooled else ())]
        pool = {host.node_id: host for hosts in own_first for host in hosts if host.accepts_operators}
        if not pool:
            raise UnavailableError(
                f"no known host takes {operator}: set accept_operators = true on at least one node that is up"
            )
        domains[operator] = list(pool.values())
    return bounded(domains, _scopes(problem))


def _scopes(problem: PlacementProblem) -> list[tuple[str, ...]]:
    """For each link the operators whose hosts its cost depends on."""
    return [tuple(end for end in (link.source, link.target) if end not in problem.pinned) for link in problem.links]


def _terms(problem: PlacementProblem, domains: Mapping[str, list[Host]], view: CostView, rtt_ms: RttMs) -> list[Term]:
    """The objective as a sum over links and operators. Links between pinned operators are a constant term."""

    def places(operator: str) -> list[str]:
        pinned = problem.pinned.get(operator)
        return [host.node_id for host in domains[operator]] if pinned is None else [pinned]

    terms = []
    for link, scope in zip(problem.links, _scopes(problem), strict=True):
        costs = np.array(
            [
                [link_usage(link.rate_bytes_per_s, 0.0 if a == b else rtt_ms(a, b)) for b in places(link.target)]
                for a in places(link.source)
            ]
        )
        terms.append(Term(scope, costs.reshape([len(domains[operator]) for operator in scope])))
    for operator in problem.unpinned:
        input_rate = problem.input_rate_bytes_per_s(operator)
        load = np.array([load_cost(input_rate, view.load_ms(host.node_id)) for host in domains[operator]])
        terms.append(Term((operator,), load))
    return terms


def _is_measured(
    problem: PlacementProblem, operator: str, node_id: str, hosts: Mapping[str, str], view: CostView
) -> bool:
    return all(view.measured(node_id, hosts[neighbour]) is not None for neighbour, _ in problem.neighbours(operator))


def _explained(
    operator: str, virtual_point_ms: Point, ranked: Sequence[CandidateCost], explained: int
) -> OperatorChoice:
    chosen = ranked[0]
    runner_up = ranked[1] if len(ranked) > 1 else None
    basis = "measured" if chosen.measured else "partly predicted"
    reason = f"with it on {chosen.name} the plan costs {chosen.measured_cost:.0f} bytes ({basis})"
    if runner_up is None:
        reason = f"{chosen.name} is the only host that takes operators"
    elif runner_up.measured_cost < chosen.measured_cost:
        reason += f"; on {runner_up.name} less, but there is no room, or data would take longer"
    elif runner_up.measured_cost == chosen.measured_cost:
        reason += f", and no less on {runner_up.name}"
    else:
        reason += f", on the runner-up {runner_up.name} {runner_up.measured_cost:.0f}"
    return OperatorChoice(
        operator=operator,
        virtual_point_ms=virtual_point_ms,
        candidates=tuple(ranked[: max(1, explained)]),
        chosen=chosen.node_id,
        cost=chosen.measured_cost,
        runner_up=runner_up.node_id if runner_up else None,
        runner_up_cost=runner_up.measured_cost if runner_up else None,
        reason=reason,
    )
