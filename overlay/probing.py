"""Probes: what each path really costs, and who still answers.

Members are probed in turn, in an order shuffled anew each time round (SWIM, DSN 2002, section 4.3: it bounds the time
until a failure is seen). Every link has its own percentile filter; a probe's time-out follows from the link's own
round trips.
"""

from __future__ import annotations

import math
import random
from collections.abc import Collection
from dataclasses import dataclass, field, replace

from overlay.config import OverlayConfig
from overlay.identity import NodeId
from sbon.errors import RemoteProtocolError
from sbon.latency_filter import PercentileFilter

#: An answer that comes after the time-out still counts as a sample and as a sign of life, for this long.
LATE_ANSWER_S = 10.0
MAX_PENDING = 8192
#: Times the slowest recent round trip, before a probe counts as missed.
TIMEOUT_FACTOR = 3.0
#: A wait that no timer explains: the process stood still, and silence until now says nothing about others.
STALL_S = 0.5
#: Suspicion of a member behind a bad path backs off up to 2^6 times the usual misses.
MAX_REFUTED = 6


@dataclass(slots=True)
class LinkState:
    """What is known about the path to one member."""

    filter: PercentileFilter = field(default_factory=PercentileFilter)
    missed: int = 0  # probes in a row
    refuted: int = 0  # suspicions of ours in a row that turned out to be wrong: the path is bad, not the member
    reported_ms: float | None = None  # the round trip that a change is measured against


@dataclass(frozen=True, slots=True)
class _Pending:
    node_id: NodeId
    sent_at: float
    deadline: float
    missed: bool = False


class Prober:
    """Decides whom to probe when, and turns answers into round trips. It knows ids only, no records."""

    def __init__(self, config: OverlayConfig, rng: random.Random, now: float) -> None:
        self._config = config
        self._rng = rng
        self._links: dict[NodeId, LinkState] = {}
        self._round: list[NodeId] = []  # still to be probed this time round, last first
        self._soon: dict[NodeId, None] = {}  # an ordered set
        self._pending: dict[int, _Pending] = {}
        self._next_nonce = rng.getrandbits(48)
        self._next_probe_at = now

    # --- reading

    def measured_rtt_ms(self, node_id: NodeId) -> float | None:
        link = self._links.get(node_id)
        return link.filter.value if link else None

    def samples(self, node_id: NodeId) -> int:
        link = self._links.get(node_id)
        return link.filter.samples if link else 0

    # --- membership

    def probe_soon(self, node_id: NodeId) -> None:
        self._soon[node_id] = None

    def reset(self, node_id: NodeId) -> None:
        """The member is at another place now: what was measured is void, and answers to come are not from there."""
        self._links.pop(node_id, None)
        self._pending = {nonce: pending for nonce, pending in self._pending.items() if pending.node_id != node_id}

    def forget(self, node_id: NodeId) -> None:
        self.reset(node_id)
        self._soon.pop(node_id, None)

    # --- probing

    def due(self, members: Collection[NodeId], now: float) -> list[NodeId]:
        """Whom to probe now: everyone asked for, and the next in turn if it is time."""
        chosen = [node_id for node_id in self._soon if node_id in members]
        self._soon.clear()
        if now >= self._next_probe_at:
            self._next_probe_at = now + self._config.probe_interval_s
            node_id = self._next_in_turn(members)
            if node_id is not None and node_id not in chosen:
                chosen.append(node_id)
        return chosen

    def _next_in_turn(self, members: Collection[NodeId]) -> NodeId | None:
        for _ in range(2):
            while self._round:
                node_id = self._round.pop()
                if node_id in members:
                    return node_id
            self._round = sorted(members)
            self._rng.shuffle(self._round)
        return None

    def sent(self, node_id: NodeId, now: float) -> int:
        """A ping to ``node_id`` leaves now; returns its nonce."""
        nonce = self._next_nonce
        self._next_nonce += 1
        while len(self._pending) >= MAX_PENDING:
            del self._pending[next(iter(self._pending))]
        self._pending[nonce] = _Pending(node_id, now, now + self._timeout_s(node_id))
        return nonce

    def _timeout_s(self, node_id: NodeId) -> float:
        link = self._links.get(node_id)
        slowest_ms = link.filter.largest if link else None
        if slowest_ms is None:
            return self._config.max_probe_timeout_s
        wanted_s = TIMEOUT_FACTOR * slowest_ms / 1000.0
        return min(self._config.max_probe_timeout_s, max(self._config.min_probe_timeout_s, wanted_s))

    def answered(self, nonce: int, sender: NodeId, held_ms: float, now: float) -> LinkState | None:
        """Take the answer to a ping as a sample; None if no such ping is waited for (any more).

        Raises RemoteProtocolError if the answer cannot be true.
        """
        pending = self._pending.get(nonce)
        if pending is None:
            return None
        if pending.node_id != sender:
            raise RemoteProtocolError("a pong from another node than was asked")
        elapsed_ms = (now - pending.sent_at) * 1000.0
        if not 0.0 <= held_ms <= elapsed_ms:
            raise RemoteProtocolError(f"a ping held for {held_ms} ms of {elapsed_ms}")
        del self._pending[nonce]
        link = self._links.setdefault(sender, LinkState())
        link.missed = link.refuted = 0
        # Two nodes in one process or on a coarse clock: a microsecond stands for "no time at all".
        link.filter.add(max(0.001, elapsed_ms - held_ms))
        return link

    def heard(self, node_id: NodeId) -> None:
        """Any datagram is a sign of life."""
        link = self._links.get(node_id)
        if link is not None:
            link.missed = 0

    def refuted(self, node_id: NodeId) -> None:
        """A member that did not answer here is alive after all: be twice as slow to suspect it the next time."""
        link = self._links.get(node_id)
        if link is not None and link.missed:
            link.missed = 0
            link.refuted = min(link.refuted + 1, MAX_REFUTED)

    # --- time

    def next_timer(self, has_members: bool) -> float:
        """When a probe is due or an answer is overdue; infinity if there is nobody to probe."""
        if not has_members:
            return math.inf
        if self._soon:
            return -math.inf
        overdue = min((pending.deadline for pending in self._pending.values()), default=math.inf)
        return min(self._next_probe_at, overdue)

    def overdue(self, now: float) -> list[NodeId]:
        """Those with too many answers overdue in a row. Others with one overdue are probed again at once."""
        suspects: dict[NodeId, None] = {}
        waited_for = {pending.node_id for pending in self._pending.values() if pending.deadline > now}
        for nonce, pending in list(self._pending.items()):
            if pending.deadline > now:
                continue
            if pending.missed:
                del self._pending[nonce]  # too late even for a late answer
                continue
            self._pending[nonce] = replace(pending, missed=True, deadline=pending.sent_at + LATE_ANSWER_S)
            link = self._links.setdefault(pending.node_id, LinkState())
            link.missed += 1
            if link.missed >= self._config.suspect_after_misses << link.refuted:
                suspects[pending.node_id] = None
            elif link.missed < self._config.suspect_after_misses and pending.node_id not in waited_for:
                self._soon[pending.node_id] = None
        return list(suspects)

    def grant(self, seconds: float) -> None:
        """Put off all deadlines: it was this process that stood still."""
        for nonce, pending in self._pending.items():
            self._pending[nonce] = replace(pending, deadline=pending.deadline + seconds)

    def validate(self, known: Collection[NodeId]) -> None:
        """Assert that everything here is about nodes that membership knows."""
        assert len(self._pending) <= MAX_PENDING
        assert set(self._links) <= set(known)
        assert {pending.node_id for pending in self._pending.values()} <= set(known)
