"""How long data takes from a producer to a consumer (SBON ICDE'06 section 4.1, "Delay Penalty").

The delay of a placement is the longest way from any producer to any consumer that it feeds, over the hosts of the
operators between, as one-way latencies. The *delay penalty* is its increase over the longest direct way from a producer
to such a consumer; it is below zero where a detour over an operator's host is shorter than the direct route.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

from sbon.cost_space import one_way_ms
from sbon.network_usage import Link, RttMs


def longest_delay_ms(links: Sequence[Link], placement: Mapping[str, str], rtt_ms: RttMs) -> float:
    """The longest one-way delay from a producer (no input) to a consumer (no output), over all hosts between.

    ``placement`` is operator -> node id. Raises ValueError for links that go round in a circle.
    """
    delay_ms: dict[str, float] = defaultdict(float)
    for link in _in_order(links):
        a, b = placement[link.source], placement[link.target]
        hop_ms = 0.0 if a == b else one_way_ms(rtt_ms(a, b))
        delay_ms[link.target] = max(delay_ms[link.target], delay_ms[link.source] + hop_ms)
    return max((delay_ms[consumer] for consumer in _ends(links)[1]), default=0.0)


def longest_direct_ms(links: Sequence[Link], placement: Mapping[str, str], rtt_ms: RttMs) -> float:
    """The longest one-way delay from a producer straight to a consumer that it feeds."""
    producers, consumers = _ends(links)
    feeds: dict[str, set[str]] = {producer: {producer} for producer in producers}
    for link in _in_order(links):
        feeds.setdefault(link.target, set()).update(feeds[link.source])
    longest_ms = 0.0
    for consumer in consumers:
        for producer in feeds[consumer]:
            a, b = placement[producer], placement[consumer]
            longest_ms = max(longest_ms, 0.0 if a == b else one_way_ms(rtt_ms(a, b)))
    return longest_ms


def delay_penalty(links: Sequence[Link], placement: Mapping[str, str], rtt_ms: RttMs) -> float:
    """0.1 means that the longest way takes a tenth longer than the longest direct one; 0 if that takes no time."""
    direct_ms = longest_direct_ms(links, placement, rtt_ms)
    return longest_delay_ms(links, placement, rtt_ms) / direct_ms - 1.0 if direct_ms > 0.0 else 0.0


def _ends(links: Sequence[Link]) -> tuple[list[str], list[str]]:
    """Producers and consumers: operators without inputs, and without outputs."""
    sources, targets = {link.source for link in links}, {link.target for link in links}
    operators = dict.fromkeys(end for link in links for end in (link.source, link.target))
    return [one for one in operators if one not in targets], [one for one in operators if one not in sources]


def _in_order(links: Sequence[Link]) -> list[Link]:
    """The links, each after all links into its source."""
    waiting: dict[str, int] = defaultdict(int)
    outputs: dict[str, list[Link]] = defaultdict(list)
    for link in links:
        waiting[link.target] += 1
        outputs[link.source].append(link)
    ready = _ends(links)[0]
    ordered: list[Link] = []
    for operator in ready:  # it grows while it is gone through
        for link in outputs[operator]:
            ordered.append(link)
            waiting[link.target] -= 1
            if not waiting[link.target]:
                ready.append(link.target)
    if len(ordered) != len(links):
        raise ValueError("the links of a plan go round in a circle")
    return ordered
