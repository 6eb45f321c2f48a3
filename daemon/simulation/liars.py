"""Nodes that lie, all of them together. They speak the protocol well: only what they say is not true.

The attacks are those of the literature on coordinates (M. A. Kaafar et al., "Real attacks on virtual networks: Vivaldi
out of tune", LSAD 2006; E. Chan-Tin et al., "The frog-boiling attack", TISSEC 2011; J. Seibert et al., "Newton", ICDCS
2012), and one on the views.
"""

from __future__ import annotations

import heapq
import itertools
import math
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import msgspec

from overlay.config import OverlayConfig
from overlay.identity import NodeId
from overlay.messages import (
    Beat,
    Exchange,
    ExchangeReply,
    Join,
    JoinReply,
    LinkReply,
    LinkRequest,
    Message,
    Newcomer,
    Ping,
    Pong,
    SearchReply,
    SearchRequest,
    Surroundings,
)
from overlay.node import Overlay
from overlay.packing import pack
from overlay.records import NodeRecord
from overlay.sessions import Sessions
from sbon.coordinate import Coordinate

#: What a liar says of its own error: trust me.
CLAIMED_ERROR = 0.02
#: How far off an inflated place is from the true one, in ms.
INFLATION_MS = 2000.0
#: Random places are within this of the origin in each dimension, which is about where the true ones are.
RANDOM_MS = 300.0
#: A drifting liar moves by this, and so slowly that no step is implausible.
DRIFT_MS_PER_S = 0.5
#: Where a pulling cluster claims to be: a place that could well be true, and is not.
PULL_MS = 400.0
PULL_SPREAD_MS = 5.0
DELAYS_S = (0.05, 0.5)
#: Liars that a poisoner names at once, and how near to the asker it says that they are.
POISON_RECORDS = 8
POISON_MS = 1.0
#: Messages in which a node says where it is.
_INTRODUCTIONS = (Beat, Join, JoinReply, LinkRequest, LinkReply, Exchange, SearchReply, SearchRequest)


@dataclass
class Plot:
    """What the liars of one run have agreed upon. ``records`` are their own, as they were at first."""

    attack: Attack
    rng: random.Random
    direction: tuple[float, ...]
    records: list[NodeRecord] = field(default_factory=list)


Lie = Callable[["Liar", float], Coordinate | None]


@dataclass(frozen=True, slots=True)
class Attack:
    """``lie`` gives the place to claim, None for the true one."""

    name: str
    lie: Lie
    delays_replies: bool = False
    poisons_views: bool = False


class Liar(Overlay):
    """A node that follows the protocol but for what its plot says."""

    def __init__(
        self,
        plot: Plot,
        record: NodeRecord,
        config: OverlayConfig,
        rng: random.Random,
        now: float,
        sessions: Sessions,
    ) -> None:
        super().__init__(record, config, rng, now, sessions)
        self.plot = plot
        self.born_at = now
        self.own_delay_s = rng.uniform(*DELAYS_S)
        self.own_spread = tuple(rng.gauss(0.0, PULL_SPREAD_MS) for _ in range(config.dimensions))
        self._held_pongs: list[tuple[float, int, NodeId, Pong]] = []
        self._numbers = itertools.count()
        plot.records.append(record)

    # --- what it says

    def _finish(self, node_id: NodeId, body: Message, extra: object, now: float) -> Message | None:
        finished = super()._finish(node_id, body, extra, now)
        place = self.plot.attack.lie(self, now)
        if place is not None:
            if isinstance(finished, Ping | Pong):
                finished = msgspec.structs.replace(finished, place=place.to_bytes())
            elif isinstance(finished, _INTRODUCTIONS) and finished.record:
                own = pack(msgspec.structs.replace(self._own, coordinate=place))
                finished = msgspec.structs.replace(finished, record=own)
        return self._poisoned(node_id, finished) if self.plot.attack.poisons_views else finished

    def _poisoned(self, node_id: NodeId, body: Message | None) -> Message | None:
        """Whoever asks for others hears of liars, as near to it as can be."""
        if isinstance(body, Pong):
            return msgspec.structs.replace(body, sample=self._praised(node_id, 1)[0])
        if isinstance(body, ExchangeReply | SearchReply | Surroundings):
            return msgspec.structs.replace(body, records=self._praised(node_id, POISON_RECORDS))
        if isinstance(body, Newcomer):
            return msgspec.structs.replace(body, record=self._praised(node_id, 1)[0])
        if isinstance(body, JoinReply) and not body.reason:
            return msgspec.structs.replace(body, others=self._praised(node_id, len(body.others)))
        return body

    def _praised(self, asker: NodeId, count: int) -> tuple[bytes, ...]:
        known = self.known(asker)
        near = self.coordinate if known is None else known.coordinate
        rng, praised = self.plot.rng, []
        for _ in range(max(1, count)):
            liar = rng.choice(self.plot.records)
            vector = tuple(x + rng.gauss(0.0, POISON_MS) for x in near.vector_ms)
            place = msgspec.structs.replace(near, vector_ms=vector, error=CLAIMED_ERROR)
            praised.append(pack(msgspec.structs.replace(liar, coordinate=place, incarnation=self._own.incarnation)))
        return tuple(praised)

    # --- when it says it

    def _send(self, node_id: NodeId, body: Message | None, extra: object = None) -> None:
        if self.plot.attack.delays_replies and isinstance(body, Pong):
            due = self._now + self.own_delay_s * self._rng.uniform(0.9, 1.1)
            heapq.heappush(self._held_pongs, (due, next(self._numbers), node_id, body))
        else:
            super()._send(node_id, body, extra)

    def next_timer(self) -> float | None:
        timer = super().next_timer()
        if not self._held_pongs:
            return timer
        due = self._held_pongs[0][0]
        return due if timer is None else min(timer, due)

    def handle_timer(self, now: float) -> None:
        super().handle_timer(now)
        while self._held_pongs and self._held_pongs[0][0] <= now:
            _, _, node_id, pong = heapq.heappop(self._held_pongs)
            super()._send(node_id, pong)


# --- lies about one's place


def _claim(vector_ms: tuple[float, ...], like: Coordinate) -> Coordinate:
    return msgspec.structs.replace(like, vector_ms=vector_ms, error=CLAIMED_ERROR)


def _truth(liar: Liar, now: float) -> None:
    return None


def _random(liar: Liar, now: float) -> Coordinate:
    return _claim(tuple(liar.plot.rng.uniform(-RANDOM_MS, RANDOM_MS) for _ in liar.plot.direction), liar.coordinate)


def _inflated(liar: Liar, now: float) -> Coordinate:
    true = liar.coordinate
    length = math.hypot(*true.vector_ms) or 1.0
    return _claim(tuple(x * (1.0 + INFLATION_MS / length) for x in true.vector_ms), true)


def _deflated(liar: Liar, now: float) -> Coordinate:
    """Everybody is in one place, the middle."""
    return _claim((0.0,) * len(liar.plot.direction), liar.coordinate)


def _drifting(liar: Liar, now: float) -> Coordinate:
    true, way_ms = liar.coordinate, DRIFT_MS_PER_S * now
    return _claim(tuple(x + way_ms * d for x, d in zip(true.vector_ms, liar.plot.direction, strict=True)), true)


def _pulling(liar: Liar, now: float) -> Coordinate:
    point = (PULL_MS * d + spread for d, spread in zip(liar.plot.direction, liar.own_spread, strict=True))
    return _claim(tuple(point), liar.coordinate)


ATTACKS = (
    Attack("random", _random),
    Attack("inflation", _inflated),
    Attack("deflation", _deflated),
    Attack("drift", _drifting),
    Attack("delay", _truth, delays_replies=True),
    Attack("pull", _pulling),
    Attack("poison", _random, poisons_views=True),
)
BY_NAME = {attack.name: attack for attack in ATTACKS}


def make_plot(name: str, seed: int, dimensions: int) -> Plot:
    rng = random.Random(f"{seed}/plot")
    vector = [rng.gauss(0.0, 1.0) for _ in range(dimensions)]
    length = math.hypot(*vector)
    return Plot(BY_NAME[name], rng, tuple(x / length for x in vector))


def kind_of_liar(plot: Plot) -> Callable[..., Overlay]:
    """To be called as Overlay is."""

    def make(*arguments: Any) -> Overlay:
        return Liar(plot, *arguments)

    return make
