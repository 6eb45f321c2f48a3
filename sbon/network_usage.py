"""Network usage: bytes in transit (SBON ICDE'06 section 2; DESIGN: Cost space).

The usage of a placement is the sum over its links of rate (bytes/s) x one-way latency (s). What placement minimises
adds, for every operator that it may place, the operator's input rate x the load part of its host in seconds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

import msgspec

from sbon.cost_space import one_way_ms

#: Round trip in ms between two node ids; 0 from a node to itself.
RttMs = Callable[[str, str], float]
#: Load part of a node id in ms.
LoadMs = Callable[[str], float]


class Link(msgspec.Struct, frozen=True):
    """A stream from one operator (fragment id) to another."""

    source: str
    target: str
    rate_bytes_per_s: float


def link_usage(rate_bytes_per_s: float, rtt_ms: float) -> float:
    """Bytes in transit on one link."""
    return rate_bytes_per_s * one_way_ms(rtt_ms) / 1000.0


def load_cost(input_rate_bytes_per_s: float, host_load_ms: float) -> float:
    """What a busy host adds to the cost of an operator, in the same unit: bytes."""
    return input_rate_bytes_per_s * host_load_ms / 1000.0


def input_rate_bytes_per_s(links: Iterable[Link], operator: str) -> float:
    """Sum of the rates of the links into ``operator``."""
    return sum(link.rate_bytes_per_s for link in links if link.target == operator)


def network_usage(links: Iterable[Link], placement: Mapping[str, str], rtt_ms: RttMs) -> float:
    """Bytes in transit of a placement (operator -> node id), without load: the reported figure.

    Raises KeyError if an end of a link is not placed.
    """
    usage = 0.0
    for link in links:
        a, b = placement[link.source], placement[link.target]
        if a != b:
            usage += link_usage(link.rate_bytes_per_s, rtt_ms(a, b))
    return usage


def placement_cost(
    links: Iterable[Link], placement: Mapping[str, str], unpinned: Iterable[str], rtt_ms: RttMs, load_ms: LoadMs
) -> float:
    """The objective that is minimised: usage, and for each unpinned operator its input rate x the load of its host."""
    links = tuple(links)
    cost = network_usage(links, placement, rtt_ms)
    for operator in unpinned:
        cost += load_cost(input_rate_bytes_per_s(links, operator), load_ms(placement[operator]))
    return cost
