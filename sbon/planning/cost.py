"""What a plan adds to the usage of the network: bytes in transit on its new links, and load (DESIGN: Cost space)."""

from __future__ import annotations

from collections.abc import Iterator

from sbon.placement.optimum import Truth
from sbon.planning.problem import Join, JoinQuery, Tree, joins


def links(query: JoinQuery, tree: Tree) -> Iterator[tuple[int, int, float]]:
    """New links within the tree as (from host, to host, bytes/s)."""
    for join in joins(tree):
        for part in (join.left, join.right):
            yield part.host, join.host, query.rates[part.mask]


def inner_cost(query: JoinQuery, tree: Tree, truth: Truth) -> float:
    """Bytes, without the way to the sink."""
    usage = sum(rate * float(truth.one_way_s[a, b]) for a, b, rate in links(query, tree))
    return usage + sum(_input_rate(query, join) * float(truth.load_s[join.host]) for join in joins(tree))


def cost(query: JoinQuery, tree: Tree, truth: Truth) -> float:
    """Bytes: what minimising is about."""
    return inner_cost(query, tree, truth) + query.result_rate * float(truth.one_way_s[tree.host, query.sink])


def _input_rate(query: JoinQuery, join: Join) -> float:
    return query.rates[join.left.mask] + query.rates[join.right.mask]
