"""Why each operator of a query is where it is, and what the query shares with others."""

from __future__ import annotations

from daemon.control.messages import Candidate, Explanation, LinkInfo, OperatorExplanation, Reuse
from daemon.peering.peers import Peers
from daemon.peering.query_messages import FragmentView, QueryView, Reused
from sbon.network_usage import link_usage
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
        reused=tuple(_reuse(each, view.elsewhere.get(each.fragment_id), peers) for each in view.reused),
        readers=tuple(
            Reuse(reader.fragment_id, reader.query_id, peers.name(view.elsewhere[cursor]))
            if cursor in view.elsewhere
            else Reuse(reader.fragment_id, reader.query_id, None)
            for cursor, reader in view.readers.items()
        ),
        links=links(view, peers),
    )


def _reuse(reused: Reused, read_at: str | None, peers: Peers) -> Reuse:
    node_id = reused.location.node_id
    through = None if read_at in (None, node_id) else peers.name(read_at or "")
    return Reuse(
        reused.fragment_id, reused.query_id, peers.name(node_id), reused.computes, reused.start.from_ms, through
    )


def links(view: QueryView, peers: Peers) -> tuple[LinkInfo, ...]:
    """What flows in a query that goes on; none if it has ended."""
    if view.network_usage is None:
        return ()
    placement = {fragment.spec.fragment_id: fragment.node_id for fragment in view.fragments} | view.elsewhere
    return tuple(
        LinkInfo(
            query_id=view.query_id,
            source=flow.source,
            source_node=peers.name(placement[flow.source]),
            target=flow.target,
            target_node=peers.name(placement[flow.target]),
            estimated_bytes_per_s=flow.estimated_bytes_per_s,
            bytes_per_s=None if flow.measured is None else flow.measured.bytes_per_s,
            rows_per_s=None if flow.measured is None else flow.measured.rows_per_s,
            rtt_ms=flow.rtt_ms,
            is_measured=view.is_measured,
            in_transit_bytes=link_usage(link.rate_bytes_per_s, flow.rtt_ms),
        )
        for flow, link in zip(view.flows, view.links, strict=True)
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
