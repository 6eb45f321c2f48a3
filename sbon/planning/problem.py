"""What a planner is given: a query as the join of several streams, and what it makes of it (a tree on hosts).

Sets of streams are bit masks: stream ``i`` of a query is ``1 << i``. What a planner may rely on is that the rate of a
join depends on the set of its streams alone, whatever the order in which they are joined (DESIGN: Placement). Hosts
are indices into a :class:`sbon.placement.optimum.Truth`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from sbon.planning.signature import Signature

#: A plan has at most so many streams: tables have a row for each set of them.
MAX_STREAMS = 8


@dataclass(frozen=True)
class JoinQuery:
    """``hosts[i]``: where stream i enters. ``rates`` (bytes/s) and ``signatures`` are by mask, [0] unused.

    A rate of infinity: these streams cannot be joined (nothing compares the one with the other). What goes to the host
    ``sink`` has ``result_rate``: filters behind the last join stay with it. Raises ValueError for what cannot be.
    """

    name: str
    hosts: tuple[int, ...]
    rates: tuple[float, ...]
    signatures: tuple[Signature, ...]
    sink: int
    result_rate: float
    result: Signature

    def __post_init__(self) -> None:
        count = len(self.hosts)
        if not 1 <= count <= MAX_STREAMS:
            raise ValueError(f"{count} streams in one query: 1 to {MAX_STREAMS} can be planned")
        if len(self.rates) != 1 << count or len(self.signatures) != 1 << count:
            raise ValueError("a rate and a signature for each set of streams")
        known = [*(self.rates[1 << i] for i in range(count)), self.rates[self.everything], self.result_rate]
        if not all(math.isfinite(rate) and rate >= 0.0 for rate in known):
            raise ValueError("rates of streams and of the result are finite and not negative")

    @property
    def everything(self) -> int:
        return (1 << len(self.hosts)) - 1

    def joinable(self, mask: int) -> bool:
        return math.isfinite(self.rates[mask])


@dataclass(frozen=True, eq=False, slots=True)
class Use:
    """A stream that is there already: the base stream of ``mask``, or the output ``running`` of another operator."""

    mask: int
    host: int
    running: RunningStream | None = None


@dataclass(frozen=True, eq=False, slots=True)
class Join:
    """A new operator on ``host``."""

    mask: int
    host: int
    left: Tree
    right: Tree


Tree = Use | Join


@dataclass(frozen=True, eq=False, slots=True)
class Feed:
    """A link that an operator reads: from ``host``, and from ``running`` there if that is not a base stream."""

    host: int
    running: RunningStream | None
    rate_bytes_per_s: float


@dataclass(frozen=True, eq=False, slots=True)
class RunningStream:
    """The output of an operator, or of a sink, that runs on ``host``; anyone may read it."""

    signature: Signature
    host: int
    feeds: tuple[Feed, ...]


@dataclass(slots=True)
class Work:
    """What planning took. ``plans``: pairs (tree, hosts) among which the choice was made (Seshadri et al. TPDS'09,
    lemma 1); ``steps``: table entries that were looked at for it."""

    plans: int = 0
    steps: int = 0

    def add(self, other: Work) -> None:
        self.plans += other.plans
        self.steps += other.steps


@dataclass(frozen=True, slots=True)
class Plan:
    """``cost``: bytes in transit, and load, that the planner expects to be added."""

    tree: Tree
    cost: float
    work: Work


def splits(mask: int) -> Iterator[tuple[int, int]]:
    """The ways to cut a set of streams in two, each once."""
    lowest = mask & -mask
    rest = mask ^ lowest
    part = rest
    while part:
        yield mask ^ part, part
        part = (part - 1) & rest


def submasks(mask: int) -> list[int]:
    """All subsets but the empty one, small ones first."""
    found = []
    part = mask
    while part:
        found.append(part)
        part = (part - 1) & mask
    return sorted(found, key=lambda part: (part.bit_count(), part))


def joins(tree: Tree) -> Iterator[Join]:
    """The new operators, producers before consumers."""
    if isinstance(tree, Join):
        yield from joins(tree.left)
        yield from joins(tree.right)
        yield tree


def uses(tree: Tree) -> Iterator[Use]:
    if isinstance(tree, Use):
        yield tree
    else:
        yield from uses(tree.left)
        yield from uses(tree.right)
