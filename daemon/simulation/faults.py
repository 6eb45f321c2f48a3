"""What can go wrong between and at hosts: a state that the world asks at each datagram, and mixes drawn from a seed.

Loss works on what leaves a host and on what comes to it: a datagram gets through with probability
``keep_out[a] * keep_in[b]``.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass, field


@dataclass(slots=True)
class Conditions:
    """The state of the network and of the hosts. All sequences are indexed by endpoint."""

    loss: float = 0.0
    keep_out: list[float] = field(default_factory=list)
    keep_in: list[float] = field(default_factory=list)
    #: A host's clock shows ``at * rate + offset_s``.
    rate: list[float] = field(default_factory=list)
    offset_s: list[float] = field(default_factory=list)
    #: Nothing is processed at the host before this time (virtual seconds): it stands still, and its mail waits.
    held_until: list[float] = field(default_factory=list)
    duplication: float = 0.0
    reordering: float = 0.0
    #: A reordered datagram, or the copy of one, comes up to this much later.
    late_s: float = 0.0
    jitter_s: float = 0.0
    #: (from, to) that nothing passes.
    cut: set[tuple[int, int]] = field(default_factory=set)

    def add_endpoint(self, like: int | None = None, *, rate: float = 1.0, offset_s: float = 0.0) -> None:
        """One more; with the losses of ``like``, whose place it takes."""
        self.keep_out.append(1.0 - self.loss if like is None else self.keep_out[like])
        self.keep_in.append(1.0 if like is None else self.keep_in[like])
        self.rate.append(rate)
        self.offset_s.append(offset_s)
        self.held_until.append(-math.inf)

    @property
    def lossy(self) -> bool:
        return any(keep < 1.0 for keep in self.keep_out) or any(keep < 1.0 for keep in self.keep_in)

    @property
    def disturbed(self) -> bool:
        """Whether :meth:`delays_s` has to be asked at all."""
        return bool(self.cut) or self.duplication > 0.0 or self.reordering > 0.0 or self.jitter_s > 0.0

    def delays_s(self, source: int, target: int, rng: random.Random) -> Sequence[float]:
        """What to add to the delay of each copy that arrives; none arrives over a cut path."""
        if (source, target) in self.cut:
            return ()
        extra = rng.expovariate(1.0) * self.jitter_s if self.jitter_s else 0.0
        if rng.random() < self.reordering:
            extra += rng.random() * self.late_s
        if rng.random() < self.duplication:
            return extra, extra + rng.random() * self.late_s
        return (extra,)

    def lose(self, endpoints: Sequence[int], share: float, lost: float, rng: random.Random) -> list[int]:
        """Let a ``share`` of them lose ``lost`` of their datagrams in one direction, each in its own; returns them."""
        chosen = rng.sample(list(endpoints), round(share * len(endpoints)))
        for endpoint in chosen:
            kept = self.keep_out if rng.random() < 0.5 else self.keep_in
            kept[endpoint] *= 1.0 - lost
        return sorted(chosen)

    def heal(self) -> None:
        """No more faults. Clocks go on as they are, and whoever stands still wakes up by itself."""
        self.loss = self.duplication = self.reordering = self.jitter_s = 0.0
        self.keep_out = [1.0] * len(self.keep_out)
        self.keep_in = [1.0] * len(self.keep_in)
        self.cut.clear()


@dataclass(frozen=True, slots=True)
class Partition:
    """From ``start_s`` to ``end_s`` the ``share`` of hosts that come first cannot reach the others.

    ``one_way``: the others still reach them.
    """

    start_s: float
    end_s: float
    share: float
    one_way: bool


@dataclass(frozen=True, slots=True)
class Stroke:
    """Something that happens to one host, or to a share of them, at a time. ``for_s``: until it is back, if ever."""

    at_s: float
    kind: str  # "crash", "leave", "stall" or "mass-restart"
    for_s: float
    share: float = 0.0


@dataclass(frozen=True, slots=True)
class FaultMix:
    """All faults of one run, drawn from one seed. Times are seconds from the start of the faults."""

    loss: float
    asymmetric_share: float
    asymmetric_loss: float
    duplication: float
    reordering: float
    late_s: float
    jitter_s: float
    drift: float  # the clocks' rates differ from 1 by up to this
    partitions: tuple[Partition, ...]
    strokes: tuple[Stroke, ...]

    @classmethod
    def draw(cls, rng: random.Random, nodes: int, duration_s: float) -> FaultMix:
        """Each kind of fault is in about half of the mixes, so that they are also seen without each other."""

        def some(most: float) -> float:
            return rng.random() * most if rng.random() < 0.5 else 0.0

        return cls(
            loss=some(0.05),
            asymmetric_share=some(0.10),
            asymmetric_loss=0.2 + rng.random() * 0.3,
            duplication=some(0.05),
            reordering=some(0.10),
            late_s=0.05 + rng.random() * 0.5,
            jitter_s=some(0.02),
            drift=some(1e-3),
            partitions=_partitions(rng, duration_s),
            strokes=_strokes(rng, nodes, duration_s),
        )


def _partitions(rng: random.Random, duration_s: float) -> tuple[Partition, ...]:
    """At most two, one after the other, and at times a last one that only the end of all faults ends."""
    drawn = []
    for third in range(rng.choice((0, 0, 1, 2))):
        start = duration_s * (0.1 + 0.45 * third + 0.1 * rng.random())
        length = min(rng.uniform(2.0, 30.0), 0.3 * duration_s)
        drawn.append(Partition(start, start + length, rng.uniform(0.05, 0.5), rng.random() < 0.3))
    if rng.random() < 0.25:
        start = max([0.6 * duration_s, *(partition.end_s for partition in drawn)])
        drawn.append(Partition(start, duration_s, rng.uniform(0.05, 0.5), rng.random() < 0.3))
    return tuple(drawn)


def _strokes(rng: random.Random, nodes: int, duration_s: float) -> tuple[Stroke, ...]:
    drawn = []
    for _ in range(rng.randrange(1 + nodes // 6)):
        kind = rng.choice(("crash", "crash", "leave", "stall", "stall"))
        back = rng.uniform(0.5, 20.0) if kind != "stall" else rng.uniform(0.2, 5.0)
        gone_for_good = kind != "stall" and rng.random() < 0.5
        drawn.append(Stroke(rng.random() * duration_s, kind, math.inf if gone_for_good else back))
    if rng.random() < 0.15:
        at = duration_s * rng.uniform(0.3, 0.8)
        drawn.append(Stroke(at, "mass-restart", rng.uniform(0.5, 10.0), share=rng.uniform(0.3, 1.0)))
    return tuple(sorted(drawn, key=lambda stroke: stroke.at_s))
