"""What a choice of hosts is told as: plain values, without what computes them (sbon.placement.full_optimizer)."""

from __future__ import annotations

import msgspec


class CandidateCost(msgspec.Struct, frozen=True):
    """One host for one operator. Costs are of the whole plan, in bytes, with all other operators at their best.

    ``measured``: whether the round trips of the operator's own links, with the chosen hosts at their other ends, were
    all measured; where one was not, the predicted one stands in for it in ``measured_cost``.
    """

    node_id: str
    name: str
    load: float
    predicted_cost: float
    measured_cost: float
    measured: bool


class OperatorChoice(msgspec.Struct, frozen=True):
    """Why an operator is where it is. Of ``candidates`` the chosen one is the first; others ascend by measured cost.

    One of these may cost less than the chosen one: where there is no room for it, or where data would take longer.
    """

    operator: str
    virtual_point_ms: tuple[float, ...]
    candidates: tuple[CandidateCost, ...]
    chosen: str
    cost: float
    runner_up: str | None
    runner_up_cost: float | None
    reason: str


class Placement(msgspec.Struct, frozen=True):
    """Hosts of all operators (operator -> node id), pinned ones among them.

    ``cost`` is the objective, usage plus load, and ``network_usage`` is usage alone; both in bytes in transit.
    """

    hosts: dict[str, str]
    cost: float
    network_usage: float
    choices: tuple[OperatorChoice, ...]
