"""Finding out whether a silent neighbour is dead (A. Das et al., "SWIM", DSN 2002; A. Dadgar, J. Phillips, J. Currey,
"Lifeguard", DSN-W 2018).

A neighbour that was not heard for ``silence_s`` is suspected and checked: a burst of pings, from the fourth on every
second one through a helper. Any sign of life ends the check. How many pings it takes follows from how many of them
usually get lost on that link, so that a lossy access is not mistaken for a death; and while many neighbours are silent
at once the fault is probably our own, and everybody gets more time (Lifeguard's local health).

Unlike SWIM, nobody is taken for dead on another's word: a node has few neighbours, they all listen for it, and each
finds out by itself. So there is no rumour of a death to be refuted, nor for a liar to start.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from overlay.config import OverlayConfig
from overlay.identity import NodeId

#: A living node is taken for dead once in so many checks, at most.
FALSE_REMOVAL_RATE = 1e-9
#: Half of what goes through an access with 50 % loss one way and 5 % the other is answered: allow for that at least.
LEAST_LOSS = 0.53
MAX_LOSS = 0.85
#: The first pings go slowly: most silences are one lost heartbeat.
SLOW_PINGS = 3
SLOW_INTERVAL_S = 0.3
#: No faster than this, or they share one fate; with more pings the check takes longer.
LEAST_INTERVAL_S = 0.06
#: From this ping on every second one goes through a helper.
FIRST_RELAYED = 3
#: The last ping has this much time for its answer, beside what the path takes.
GRACE_S = 0.2
#: Weight of one check in the average of the losses.
LOSS_GAIN = 0.2
#: If all neighbours are silent at once, a check takes this many times as long.
WORST_HEALTH = 4.0


@dataclass(slots=True)
class Check:
    """A burst of pings to one neighbour."""

    started_at: float
    pings: int
    interval_s: float
    deadline: float
    next_at: float
    sent: int = 0


def pings_needed(loss: float) -> int:
    """How many pings go unanswered by a living node only once in 1 / FALSE_REMOVAL_RATE."""
    loss = min(MAX_LOSS, max(LEAST_LOSS, loss))
    return math.ceil(math.log(FALSE_REMOVAL_RATE) / math.log(loss))


class Checks:
    """All checks under way at one node."""

    def __init__(self, config: OverlayConfig) -> None:
        self._config = config
        self.table: dict[NodeId, Check] = {}

    def start(self, node_id: NodeId, loss: float, rtt_ms: float, neighbours: int, now: float) -> None:
        """Begin a check; ``neighbours`` is how many there are in all. Nothing happens if one is under way."""
        if node_id in self.table:
            return
        pings = pings_needed(loss)
        share = (len(self.table) + 1) / max(4, neighbours)
        health = 1.0 + (WORST_HEALTH - 1.0) * max(0.0, share - 0.25) / 0.75
        fast_s = max(self._config.check_s * health - SLOW_PINGS * SLOW_INTERVAL_S, LEAST_INTERVAL_S * pings)
        total_s = SLOW_PINGS * SLOW_INTERVAL_S + fast_s + GRACE_S + min(1.0, 1.5 * rtt_ms / 1000.0)
        self.table[node_id] = Check(now, pings, fast_s / (pings - SLOW_PINGS), now + total_s, now)

    def heard(self, node_id: NodeId, loss: float) -> float:
        """The neighbour is alive: end its check. Returns the new average of the link's losses."""
        check = self.table.pop(node_id, None)
        if check is None:
            return loss
        # The last ping's answer may still be on its way; one of those before it was answered.
        lost_share = max(0, check.sent - 2) / max(1, check.sent - 1)
        return loss + LOSS_GAIN * (lost_share - loss)

    def drop(self, node_id: NodeId) -> None:
        self.table.pop(node_id, None)

    def next_timer(self) -> float:
        """When a ping is to be sent or a check is over."""
        return min((min(check.next_at, check.deadline) for check in self.table.values()), default=math.inf)

    def due(self, now: float) -> tuple[list[tuple[NodeId, bool]], list[NodeId]]:
        """Whom to ping now, and whether through a helper; and who did not answer in time."""
        pings: list[tuple[NodeId, bool]] = []
        dead: list[NodeId] = []
        for node_id, check in self.table.items():
            if check.deadline <= now:
                dead.append(node_id)
            elif check.next_at <= now:
                relayed = check.sent >= FIRST_RELAYED and check.sent % 2 == 1
                check.sent += 1
                slow = check.sent <= SLOW_PINGS
                check.next_at = now + (SLOW_INTERVAL_S if slow else check.interval_s)
                if check.sent >= check.pings:
                    check.next_at = math.inf
                pings.append((node_id, relayed))
        for node_id in dead:
            del self.table[node_id]
        return pings, dead

    def grant(self, seconds: float) -> None:
        """Put off the ends of all checks: it was this process that stood still, not the others."""
        for check in self.table.values():
            check.deadline += seconds
