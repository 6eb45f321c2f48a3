"""Probes: what paths really cost. At most 32 peers at a time have a filter; the one probed longest ago makes room.

One probe an interval, to a stranger and to a neighbour by turns: near ones tell about the surroundings, random ones
about the whole, and fresh ones improve a coordinate more than many samples of the same (DESIGN: Cost space).
"""

from __future__ import annotations

import math
import random
from collections import deque
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field
from typing import Final

from overlay.identity import NodeId
from sbon.coordinate import Coordinate
from sbon.errors import RemoteProtocolError
from sbon.latency_filter import PercentileFilter

MAX_PROBE_PEERS: Final = 32
#: An answer is waited for so long; then the ping or the answer is lost.
PATIENCE_S: Final = 4.0
MAX_PENDING: Final = 512
#: A peer is at odds with its path if prediction and measurement differ by more than this ratio; round trips below
#: ODD_FROM_MS count as that much, and only who knows its own place to this relative error can tell.
ODD_RATIO: Final = 2.5
ODD_FROM_MS: Final = 10.0
KNOWS_ITS_PLACE: Final = 0.3
#: A place has jumped if it is unlike the one told before by more than so many times what the errors claimed with both,
#: and this much more, leave open over this round trip (which counts as so many ms at least). Of the samples of honest
#: nodes one in a hundred is a jump while an overlay is young; of those of liars who make up a place each time, 98.
JUMP_RATIO: Final = 6.0
JUMP_ERROR: Final = 0.1
JUMP_FROM_MS: Final = 50.0
#: Who jumps so often in a row is at odds with its path, too.
ODD_JUMPS: Final = 2
#: A path is reported as changed only once its filter is filled well enough to tell.
PATH_CHANGE_SAMPLES: Final = 5


@dataclass(slots=True)
class ProbedPath:
    """What is known about the path to one peer."""

    probed_at: float
    place: Coordinate | None = None  # of the other end, when it answered last; before, as it is known otherwise
    jumps: int = 0  # of that place, one after the other
    heard_at: float = -math.inf  # when the other end last told its place unasked, and that counted
    filter: PercentileFilter = field(default_factory=PercentileFilter)
    reported_ms: float | None = None  # the round trip that a change is measured against


@dataclass(frozen=True, slots=True)
class _Pending:
    node_id: NodeId
    sent_at: float
    is_probe: bool
    helper: NodeId | None


class Prober:
    """Decides whom to probe, and turns answers into round trips. It knows ids only, no records."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        #: Told of each ping that went straight to a peer: to whom, whether it was a probe, and whether it was answered.
        self.on_outcome: Callable[[NodeId, bool, bool], None] = lambda node_id, is_probe, answered: None
        self._paths: dict[NodeId, ProbedPath] = {}
        self._soon: dict[NodeId, None] = {}  # an ordered set
        self._pending: dict[int, _Pending] = {}
        self._order: deque[int] = deque()
        self._next_nonce = rng.getrandbits(31)
        self._stranger_next = False

    # --- reading

    def measured_rtt_ms(self, node_id: NodeId) -> float | None:
        path = self._paths.get(node_id)
        return path.filter.value if path else None

    def heard_rtt_ms(self, node_id: NodeId, now: float, interval_s: float) -> float | None:
        """The filtered round trip to a peer that tells its place unasked, if one was measured; None if it told it less
        than ``interval_s`` ago, too: who asks all the time is to have no more weight than the others."""
        path = self._paths.get(node_id)
        if path is None or path.filter.value is None or now - path.heard_at < interval_s:
            return None
        path.heard_at = now
        return path.filter.value

    def samples(self, node_id: NodeId) -> int:
        path = self._paths.get(node_id)
        return path.filter.samples if path else 0

    def measured(self) -> list[tuple[NodeId, Coordinate, float]]:
        """The paths with a filtered round trip, and where their other ends are."""
        return [
            (node_id, path.place, path.filter.value)
            for node_id, path in self._paths.items()
            if path.place is not None and path.filter.value is not None
        ]

    def contradicts(self, node_id: NodeId, here: Coordinate) -> bool:
        """Whether that peer cannot be where it says: no path is so far from what two right places predict."""
        path = self._paths.get(node_id)
        if path is None or path.place is None or path.filter.value is None:
            return False
        if path.jumps >= ODD_JUMPS:
            return True
        if here.error > KNOWS_ITS_PLACE:
            return False
        predicted_ms, measured_ms = here.rtt_ms(path.place), path.filter.value
        return max(predicted_ms, measured_ms) > ODD_RATIO * max(min(predicted_ms, measured_ms), ODD_FROM_MS)

    def peers(self) -> Collection[NodeId]:
        """Those of whose paths something is kept."""
        return self._paths.keys()

    # --- choosing

    def probe_soon(self, node_id: NodeId) -> None:
        self._soon[node_id] = None

    @property
    def wants_to_probe(self) -> bool:
        return bool(self._soon)

    def asked_for(self) -> list[NodeId]:
        """Whom to probe at once, out of turn."""
        chosen = list(self._soon)
        self._soon.clear()
        return chosen

    def choose(self, neighbours: Iterable[NodeId], strangers: Iterable[NodeId]) -> NodeId | None:
        """Whom to probe in turn: the least recently probed of the neighbours or of the strangers."""
        self._stranger_next = not self._stranger_next
        groups = (strangers, neighbours) if self._stranger_next else (neighbours, strangers)
        for group in groups:
            chosen = min(group, key=self._probed_at, default=None)
            if chosen is not None:
                return chosen
        return None

    def _probed_at(self, node_id: NodeId) -> float:
        path = self._paths.get(node_id)
        return -1.0 if path is None else path.probed_at

    # --- pings

    def sent(
        self,
        node_id: NodeId,
        now: float,
        *,
        is_probe: bool,
        helper: NodeId | None = None,
        said: Coordinate | None = None,
    ) -> int:
        """A ping to ``node_id`` leaves now; returns its nonce. Only a probe is a sample of the path.

        ``helper``: it goes by way of that node, whose answer is for :meth:`relayed`. ``said``: where the node is as
        far as is known; what it answers is compared with that if it never answered before.
        """
        nonce = self._next_nonce
        self._next_nonce += 1
        order = self._order
        while order and (len(order) >= MAX_PENDING or self._is_stale(order[0], now)):
            lost = self._pending.pop(order.popleft(), None)
            if lost is not None and lost.helper is None:
                self.on_outcome(lost.node_id, lost.is_probe, False)
        self._pending[nonce] = _Pending(node_id, now, is_probe, helper)
        order.append(nonce)
        if is_probe:
            path = self._path(node_id)
            path.probed_at = now
            path.place = path.place or said
        return nonce

    def _is_stale(self, nonce: int, now: float) -> bool:
        pending = self._pending.get(nonce)
        return pending is None or now - pending.sent_at > PATIENCE_S

    def _path(self, node_id: NodeId) -> ProbedPath:
        path = self._paths.get(node_id)
        if path is None:
            if len(self._paths) >= MAX_PROBE_PEERS:
                del self._paths[min(self._paths, key=self._probed_at)]
            path = self._paths[node_id] = ProbedPath(0.0)
        return path

    def answered(self, nonce: int, sender: NodeId, held_ms: float, now: float) -> ProbedPath | None:
        """Take the answer to a ping; the path, if it was a probe's and counts as a sample.

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
        if pending.helper is None:
            self.on_outcome(sender, pending.is_probe, True)
        if not pending.is_probe:
            return None
        path = self._path(sender)
        # Two nodes in one process or on a coarse clock: a microsecond stands for "no time at all".
        path.filter.add(max(0.001, elapsed_ms - held_ms))
        return path

    def is_at(self, path: ProbedPath, place: Coordinate) -> bool:
        """The other end of a path says where it is. Whether that can be, after where it was before.

        Nobody moves but slowly: what a node predicted for everybody a moment ago cannot be all wrong now, unless it
        said itself that it did not know (implausible steps: J. Seibert et al., "Newton", ICDCS 2012).
        """
        before, path.place = path.place, place
        if before is not None and path.filter.value is not None:
            open_ms = (before.error + place.error + JUMP_ERROR) * max(path.filter.value, JUMP_FROM_MS)
            path.jumps = path.jumps + 1 if before.unlike_ms(place) > JUMP_RATIO * open_ms else 0
        return path.jumps == 0

    def awaits(self, nonce: int) -> bool:
        """Whether the answer to that ping is waited for."""
        return nonce in self._pending

    def relayed(self, nonce: int, sender: NodeId) -> NodeId | None:
        """A helper had an answer to the ping of that nonce; whose answer, if that helper was asked for it."""
        pending = self._pending.get(nonce)
        if pending is None or pending.helper != sender:
            return None
        del self._pending[nonce]
        return pending.node_id

    def has_changed(self, path: ProbedPath, least_ms: float, least_ratio: float) -> tuple[float, float] | None:
        """The round trips before and after, in ms, if the filtered one is really another than at the last report."""
        value_ms = path.filter.value
        if value_ms is None or path.filter.samples < PATH_CHANGE_SAMPLES:
            return None
        before_ms = path.reported_ms
        if before_ms is None:
            path.reported_ms = value_ms
            return None
        changed_ms = abs(value_ms - before_ms)
        if changed_ms < least_ms or changed_ms < least_ratio * before_ms:
            return None
        path.reported_ms = value_ms
        return before_ms, value_ms

    # --- membership

    def forget(self, node_id: NodeId) -> None:
        """The node is gone, or at another place now: what was measured is void, and so are answers to come."""
        self._paths.pop(node_id, None)
        self._soon.pop(node_id, None)
        for nonce in [nonce for nonce, pending in self._pending.items() if pending.node_id == node_id]:
            del self._pending[nonce]

    def validate(self) -> None:
        """Assert the bounds."""
        assert len(self._pending) <= MAX_PENDING
        assert len(self._paths) <= MAX_PROBE_PEERS
