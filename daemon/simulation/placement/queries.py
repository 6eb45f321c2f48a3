"""Queries to be placed: a plan of some shape, and hosts drawn for its pinned ends.

- ``aggregate-4``: four producers of 2 KB/s, one aggregator of selectivity 8:1, one consumer (SBON ICDE'06 section 4.1).
- ``chain``: one producer, up to N operators one behind the other, one consumer.
- ``tree``: up to N operators in a random tree, each with two or three inputs; producers where no operator is.
- ``multi-join``: up to N joins, each of the stream so far with one more producer.

In the last three a producer sends 1 to 10 KB/s, and an operator lets a tenth of its input through, or all of it, or any
share between; all drawn on a logarithmic scale.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence

from sbon.network_usage import Link
from sbon.placement.problem import PlacementProblem

PRODUCERS = 4
PRODUCER_RATE = 2000.0
SELECTIVITY = 1.0 / 8.0
LEAST_RATE, MOST_RATE = 1000.0, 10_000.0
LEAST_SELECTIVITY = 0.1
CONSUMER = "consumer"


def draw(shape: str, hosts: Sequence[str], max_operators: int, rng: random.Random) -> PlacementProblem:
    """A query of one of :data:`SHAPES`, its ends on different hosts as long as there are enough."""
    links = SHAPES[shape](max_operators, rng)
    targets = {link.target for link in links}
    producers = list(dict.fromkeys(link.source for link in links if link.source not in targets))
    ends = [*producers, CONSUMER]
    drawn = rng.sample(hosts, len(ends)) if len(ends) <= len(hosts) else [rng.choice(hosts) for _ in ends]
    return PlacementProblem(tuple(links), dict(zip(ends, drawn, strict=True)))


def _aggregate_4(_max_operators: int, _rng: random.Random) -> list[Link]:
    links = [Link(f"producer{k}", "aggregate", PRODUCER_RATE) for k in range(1, PRODUCERS + 1)]
    return [*links, Link("aggregate", CONSUMER, PRODUCERS * PRODUCER_RATE * SELECTIVITY)]


def _chain(max_operators: int, rng: random.Random) -> list[Link]:
    rate, links, source = _rate(rng), [], "producer1"
    for k in range(1, rng.randint(1, max_operators) + 1):
        links.append(Link(source, f"operator{k}", rate))
        source, rate = f"operator{k}", rate * _selectivity(rng)
    return [*links, Link(source, CONSUMER, rate)]


def _multi_join(max_operators: int, rng: random.Random) -> list[Link]:
    rate, links, source = _rate(rng), [], "producer0"
    for k in range(1, rng.randint(min(2, max_operators), max_operators) + 1):
        other = _rate(rng)
        links += [Link(source, f"join{k}", rate), Link(f"producer{k}", f"join{k}", other)]
        source, rate = f"join{k}", (rate + other) * _selectivity(rng)
    return [*links, Link(source, CONSUMER, rate)]


def _tree(max_operators: int, rng: random.Random) -> list[Link]:
    count = rng.randint(min(2, max_operators), max_operators)
    inputs: dict[int, list[str]] = {k: [] for k in range(1, count + 1)}
    parents: dict[int, int] = {}
    for k in range(2, count + 1):
        parents[k] = rng.choice([one for one in range(1, k) if len(inputs[one]) < 3])
        inputs[parents[k]].append(f"operator{k}")
    links: list[Link] = []
    into: dict[int, float] = dict.fromkeys(inputs, 0.0)
    producers = 0
    for k in range(count, 0, -1):  # children have higher numbers than their parents
        for _ in range(len(inputs[k]), max(rng.randint(2, 3), len(inputs[k]))):
            producers += 1
            links.append(Link(f"producer{producers}", f"operator{k}", _rate(rng)))
            into[k] += links[-1].rate_bytes_per_s
        rate = into[k] * _selectivity(rng)
        target = f"operator{parents[k]}" if k in parents else CONSUMER
        links.append(Link(f"operator{k}", target, rate))
        if k in parents:
            into[parents[k]] += rate
    return links


def _rate(rng: random.Random) -> float:
    return LEAST_RATE * math.pow(MOST_RATE / LEAST_RATE, rng.random())


def _selectivity(rng: random.Random) -> float:
    return math.pow(LEAST_SELECTIVITY, rng.random())


SHAPES: dict[str, Callable[[int, random.Random], list[Link]]] = {
    "aggregate-4": _aggregate_4,
    "chain": _chain,
    "tree": _tree,
    "multi-join": _multi_join,
}
