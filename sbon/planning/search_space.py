"""How many plans there are to choose from (Seshadri et al., TPDS'09: lemma 1, theorems 2 and 4)."""

from __future__ import annotations

from math import factorial


def exhaustive(streams: int, hosts: int) -> int:
    """Lemma 1: orders in which ``streams`` can be joined, two at a time, times placements of the joins on ``hosts``."""
    orders: int = factorial(streams) * factorial(streams - 1) // 2 ** (streams - 1)
    return orders * int(hosts ** (streams - 1))


def hierarchical_bound(streams: int, max_cs: int, height: int) -> int:
    """Theorems 2 and 4: what Top-Down and Bottom-Up look at, at most: an exhaustive search in one cluster of each
    level."""
    return height * exhaustive(streams, max_cs)
