"""Finding out whether a silent neighbour is dead (A. Das et al., "SWIM", DSN 2002; A. Dadgar, J. Phillips, J. Currey,
"Lifeguard", DSN-W 2018).

A neighbour that was not heard for ``silence_s`` is suspected and checked: a burst of pings, from the fourth on every
fourth one through a helper, for the case that only the path between the two is broken. Any sign of life ends the
check. How many pings it takes follows from how many of them usually get lost, on that link and on our own access, so
that a lossy access is not mistaken for a death; and while many neighbours are silent at once the fault is probably our
own, and everybody gets more time (Lifeguard's local health).

Unlike SWIM, nobody is taken for dead on another's word: a node has few neighbours, they all listen for it, and each
finds out by itself. So there is no rumour of a death to be refuted, nor for a liar to start.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

from overlay.config import OverlayConfig
from overlay.identity import NodeId

#: The pings that go straight to a living node are all lost once in so many checks, at most.
FALSE_REMOVAL_RATE: Final = 1e-8
#: As far as we know, half of what passes the other's access is lost: allow for that at least, beside our own losses.
OTHERS_LOSS: Final = 0.5
MAX_LOSS: Final = 0.85
#: The first pings go slowly: most silences are one lost heartbeat.
SLOW_PINGS: Final = 3
SLOW_INTERVAL_S: Final = 0.3
#: No faster than this, or they share one fate; with more pings the check takes longer.
LEAST_INTERVAL_S: Final = 0.05
#: Of so many pings one goes through a helper.
RELAY_EVERY: Final = 4
#: The last ping has this much time for its answer, beside what the path takes.
GRACE_S: Final = 0.2
#: If all neighbours are silent at once, a check takes this many times as long.
WORST_HEALTH: Final = 4.0

#: Weight of one ping in the average of a link's losses, and of one probe in that of our own.
LINK_GAIN: Final = 0.1
OWN_GAIN: Final = 0.02
#: Nothing is known of our own losses at first: assume some, with the weight of so many probes.
FIRST_OWN_LOSS: Final = 0.3
FIRST_PROBES: Final = 4


class OwnLoss:
    """The share of our probes that go unanswered: what our own access loses, as they go to all kinds of peers."""

    __slots__ = ("_probes", "value")

    def __init__(self) -> None:
        self.value = FIRST_OWN_LOSS
        self._probes = FIRST_PROBES

    def note(self, *, answered: bool) -> None:
        self._probes += 1
        self.value += max(OWN_GAIN, 1.0 / self._probes) * ((not answered) - self.value)


@dataclass(slots=True)
class Check:
    """A burst of pings to one neighbour."""

    started_at: float
    pings: int
    interval_s: float
    deadline: float
    next_at: float
    sent: int = 0


def pings_needed(link_loss: float, own_loss: float) -> int:
    """How many pings make a check, of which those that go straight to a living node are all lost only once in
    1 / FALSE_REMOVAL_RATE. The measured loss of a link counts if it is worse than what has to be allowed for."""
    loss = min(MAX_LOSS, max(link_loss, 1.0 - (1.0 - own_loss) * (1.0 - OTHERS_LOSS)))
    straight = math.ceil(math.log(FALSE_REMOVAL_RATE) / math.log(loss))
    return straight + straight // (RELAY_EVERY - 1)


class Checks:
    """All checks under way at one node."""

    def __init__(self, config: OverlayConfig) -> None:
        self._config = config
        self.table: dict[NodeId, Check] = {}

    def start(self, node_id: NodeId, pings: int, rtt_ms: float, neighbours: int, now: float) -> None:
        """Begin a check; ``neighbours`` is how many there are in all. Nothing happens if one is under way."""
        if node_id in self.table:
            return
        share = (len(self.table) + 1) / max(4, neighbours)
        health = 1.0 + (WORST_HEALTH - 1.0) * max(0.0, share - 0.25) / 0.75
        fast_pings = pings - SLOW_PINGS
        fast_s = max(self._config.check_s * health - SLOW_PINGS * SLOW_INTERVAL_S, LEAST_INTERVAL_S * fast_pings)
        total_s = SLOW_PINGS * SLOW_INTERVAL_S + fast_s + GRACE_S + min(1.0, 1.5 * rtt_ms / 1000.0)
        self.table[node_id] = Check(now, pings, fast_s / fast_pings, now + total_s, now)

    def drop(self, node_id: NodeId) -> None:
        """The neighbour is alive, or is none any more."""
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
                relayed = check.sent % RELAY_EVERY == RELAY_EVERY - 1
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
