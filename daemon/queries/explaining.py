"""Why each operator of a query is where it is, and what the query shares with others."""

from __future__ import annotations

from daemon.control.messages import Candidate, Explanation, OperatorExplanation, Reuse
from daemon.peering.peers import Peers
from daemon.peering.query_messages import FragmentView, QueryView
from sbon.placement.choice import OperatorChoice


def explanation(view: QueryView, peers: Peers) -> Explanation:
    choices = {choice.operator: choice for choice in view.choices}
    return Explanation(
        query_id=view.query_id,
        sql=view.sql,
        operators=tuple(
            _explained(view, fragment, choices.get(fragment.spec.fragment_id), peers) for fragment in view.fragments
        ),
        network_usage=view.network_usage,
        network_usage_at_consumer=view.network_usage_at_consumer,
        reused=tuple(
            Reuse(each.fragment_id, each.query_id, peers.name(each.location.node_id), each.computes, each.start.from_ms)
            for each in view.reused
        ),
        readers=tuple(
            Reuse(reader.fragment_id, reader.query_id, peers.name(view.elsewhere[cursor]))
            if cursor in view.elsewhere
            else Reuse(reader.fragment_id, reader.query_id, None)
            for cursor, reader in view.readers.items()
        ),
    )


def _explained(
    view: QueryView, fragment: FragmentView, choice: OperatorChoice | None, peers: Peers
) -> OperatorExplanation:
    """Why a fragment is where it is: its last move, or else the choice at the start."""
    spec, node = fragment.spec, peers.name(fragment.node_id)
    moves = [move for move in view.moves if move.fragment_id == spec.fragment_id]
    if spec.pinned:
        reason = f"pinned: {node} owns its {spec.kind}"
    elif moves:
        reason = f"moved there from {moves[-1].source}: {moves[-1].reason}"
    else:
        reason = "all operators are placed at the consumer" if choice is None else choice.reason
    if choice is None:
        return OperatorExplanation(spec.fragment_id, str(spec.kind), node, spec.pinned, spec.sql, reason)
    return OperatorExplanation(
        fragment_id=spec.fragment_id,
        kind=str(spec.kind),
        node=node,
        pinned=spec.pinned,
        sql=spec.sql,
        reason=reason,
        virtual_point_ms=choice.virtual_point_ms,
        candidates=tuple(
            Candidate(
                node=candidate.name,
                load=candidate.load,
                predicted_cost=candidate.predicted_cost,
                measured_cost=candidate.measured_cost,
                measured=candidate.measured,
            )
            for candidate in choice.candidates
        ),
        cost=choice.cost,
        runner_up=None if choice.runner_up is None else peers.name(choice.runner_up),
        runner_up_cost=choice.runner_up_cost,
    )
