"""The join order that a planner without a network would choose: the one whose intermediate results are smallest."""

from __future__ import annotations

from sbon.errors import UnavailableError
from sbon.planning.problem import JoinQuery, splits, submasks


def order_by_size(query: JoinQuery) -> dict[int, list[tuple[int, int]]]:
    """Mask -> the one split of it, for the sets of the best tree: that of least sum of the rates of all joins.

    Raises UnavailableError if the streams cannot all be joined.
    """
    least: dict[int, float] = {}
    chosen: dict[int, tuple[int, int]] = {}
    for mask in submasks(query.everything):
        if mask.bit_count() == 1:
            least[mask] = 0.0
            continue
        ways = [(one, other) for one, other in splits(mask) if one in least and other in least]
        if query.joinable(mask) and ways:
            chosen[mask] = min(ways, key=lambda way: least[way[0]] + least[way[1]])
            least[mask] = query.rates[mask] + sum(least[part] for part in chosen[mask])
    if query.everything not in least:
        raise UnavailableError(f"{query.name} cannot be planned: not all of its streams are joined with each other")
    tree: dict[int, list[tuple[int, int]]] = {}
    pending = [query.everything]
    while pending:
        mask = pending.pop()
        if mask in chosen:
            tree[mask] = [chosen[mask]]
            pending += chosen[mask]
    return tree
