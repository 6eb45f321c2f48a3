"""What a node says to others, and what it makes of what they say: the protocols of :class:`overlay.node.Overlay`.

Theory of operation. Once per tick a node probes one peer, lets its neighbours hear of it, and looks after its links.
A pong may name a random far neighbour of the answerer: so probing walks the overlay at random, and brings fresh nodes
to probe and to link with. Neighbours are asked, less and less often, whom they know near our place. A neighbour that is
silent is checked (:mod:`overlay.checks`); one that is dead is tried again now and then, so that the overlay grows
together after an outage.
"""

from __future__ import annotations

import math
import random
from collections import Counter, deque
from dataclasses import dataclass

import msgspec

from overlay.checks import Checks
from overlay.config import MAX_LOST, MAX_SAMPLES, OverlayConfig
from overlay.events import (
    Event,
    Joined,
    JoinFailed,
    MemberFailed,
    MemberJoined,
    MemberLeft,
    MemberRecovered,
    MemberRestarted,
    MemberSuspected,
    PathChanged,
)
from overlay.identity import NodeId
from overlay.links import Link, Links
from overlay.messages import (
    HEARTBEAT,
    KIND_OF,
    MAX_REASON_LENGTH,
    Beat,
    Exchange,
    ExchangeReply,
    Join,
    JoinReply,
    Leave,
    LinkReply,
    LinkRequest,
    Message,
    Ping,
    Pong,
    Relay,
    Relayed,
    SearchReply,
    SearchRequest,
    Unlink,
    id_end,
    id_ends,
)
from overlay.packing import pack, packed_node_id, packed_version, unpack
from overlay.probing import Prober
from overlay.records import Address, NodeRecord, Status
from overlay.session_events import NO_ANSWER, SessionFailed, SessionOpened
from overlay.sessions import Sessions
from overlay.wire import decode, encode
from sbon.coordinate_estimator import CoordinateEstimator
from sbon.errors import RemoteProtocolError, UnknownKindError

MAX_QUEUED = 2000
MAX_EVENTS = 10_000
MAX_RELAYS = 32
#: Messages that wait for a session to be opened: peers, and messages for one of them.
MAX_WAITING = 32
MAX_WAITING_EACH = 4
#: A wait that no timer explains: the process stood still, and silence until now says nothing about others.
STALL_S = 0.5
#: An error estimate is advertised anew when it changed by this much.
ADVERTISE_ERROR = 0.1
#: Records in one answer to an exchange or a join.
EXCHANGE_RECORDS = 8
#: News about ourselves go to a neighbour this often at most.
NEWS_INTERVAL_S = 8.0
#: A surplus neighbour is parted with this often at most.
DROP_INTERVAL_S = 3.0
#: Share of the exchanges that go to near neighbours; the others look further.
NEAR_EXCHANGES = 0.75
#: A neighbour that only helpers can reach is of no use as a neighbour: it is given up after so many checks in a row.
MAX_RELAYED_CHECKS = 3
#: One who was met just now may be about to become a neighbour: it is not probed yet, nor told that it is none.
UNEXPECTED_S = 2.0

_SENT = {kind: f"sent.{name}" for kind, name in KIND_OF.items()}
_RECEIVED = {kind: f"received.{name}" for kind, name in KIND_OF.items()}


@dataclass(slots=True)
class JoinAttempt:
    nonce: int
    deadline: float
    retry_at: float
    node_id: NodeId | None = None
    #: Nobody asked for it, so nobody is told how it ends.
    quiet: bool = False


@dataclass(slots=True)
class Stranger:
    """Somebody with whom a session is open and who is no neighbour."""

    boot_id: int
    since: float


@dataclass(slots=True)
class Lost:
    """A former neighbour, given up for dead."""

    record: NodeRecord
    since: float


@dataclass(frozen=True, slots=True)
class _Relay:
    asker: NodeId
    nonce: int


class Talk:
    """One node's conversations. :class:`overlay.node.Overlay` adds the verbs and the searches."""

    def __init__(
        self, record: NodeRecord, config: OverlayConfig, rng: random.Random, now: float, sessions: Sessions
    ) -> None:
        config.check()
        self._config = config
        self._rng = rng
        self._sessions = sessions
        sessions.is_kept = self._is_kept
        self._estimator = CoordinateEstimator(config.dimensions, use_height=config.use_height)
        self._own = msgspec.structs.replace(record, coordinate=self._estimator.coordinate, status=Status.ALIVE)
        try:
            self._own.check(config.dimensions)
            self._packed = pack(self._own)
        except RemoteProtocolError as error:
            raise ValueError(f"this node cannot be advertised: {error}") from error
        self._has_left = False
        self._links = Links(config, rng)
        self._checks = Checks(config)
        self._prober = Prober(rng)
        #: By when they were last heard of, the longest ago first.
        self._strangers: dict[NodeId, Stranger] = {}
        self._samples: deque[tuple[NodeRecord, bytes]] = deque(maxlen=MAX_SAMPLES)
        self._lost: dict[NodeId, Lost] = {}
        self._addresses: dict[NodeId, Address] = {}
        self._waiting: dict[NodeId, list[tuple[Message, object]]] = {}
        self._relays: dict[int, _Relay] = {}
        self._relayed_checks: Counter[NodeId] = Counter()
        self._joins: dict[Address, JoinAttempt] = {}
        #: Where we were taken in: asked again when we are alone.
        self._entry: Address | None = None
        self._outgoing: deque[tuple[NodeId, Message | None, object]] = deque()
        self._events: deque[Event] = deque(maxlen=MAX_EVENTS)
        self._tick_s = min(1.0, config.probe_interval_s)
        # Nodes that start together shall not speak together.
        self._tick_at = now + rng.random() * self._tick_s
        self._probe_at = self._fresh_at = now
        self._exchange_at, self._exchange_interval_s = now, config.min_exchange_interval_s
        self._drop_at = now
        self._reconnect_at = now + config.reconnect_interval_s
        self._silent_at = math.inf
        self._now = now
        self._woken_by = math.inf
        #: Datagrams by fate and kind: "received.ping", "sent.beat", "dropped.malformed", ...
        self.counters: Counter[str] = Counter()

    def _is_kept(self, node_id: NodeId) -> bool:
        return node_id in self._links

    # --- time

    def _at(self, now: float) -> None:
        """Note the time. If we wake much later than we asked to, the silence was ours: nobody is blamed for it."""
        late_s = now - self._woken_by
        if late_s > STALL_S:
            self.counters["stalls"] += 1
            self._checks.grant(late_s)
            for link in self._links.table.values():
                link.heard_at += late_s
        self._woken_by = math.inf
        if now > self._now:
            self._now = now

    def _timer(self) -> float:
        timer = self._sessions.next_timer()
        if self._joins:
            timer = min(timer, min(min(attempt.deadline, attempt.retry_at) for attempt in self._joins.values()))
        if self._has_left:
            return timer
        if self._prober.wants_to_probe:
            return self._now
        if self._checks.table:
            timer = min(timer, self._checks.next_timer())
        if self._links.table or self._strangers or self._lost or self._links.candidates or self._entry:
            timer = min(timer, self._tick_at, self._silent_at)
        return timer

    def _do_what_is_due(self, now: float) -> None:
        self._sessions.handle_timer(now)
        self._take_session_events(now)
        if self._joins:
            self._retry_joins(now)
        if self._has_left:
            return
        for node_id in self._prober.asked_for():
            self._ping(node_id, is_probe=True)
        if now >= self._tick_at:
            self._tick_at = max(self._tick_at + self._tick_s, now + self._tick_s / 2)
            self._tick(now)
        if now >= self._silent_at:
            self._find_silent(now)
        if self._checks.table:
            self._go_on_checking(now)

    def _tick(self, now: float) -> None:
        if now >= self._probe_at:
            self._probe_at = max(self._probe_at + self._config.probe_interval_s, now)
            self._probe(now)
        self._beat(now)
        self._find_silent(now)
        self._links.expire(now)
        if now >= self._exchange_at:
            self._exchange(now)
        if now >= self._drop_at:
            self._drop_at = now + DROP_INTERVAL_S
            surplus = self._links.to_drop(now)
            if surplus is not None and (self._samples or not self._links.table[surplus].far):
                self._unlink(surplus, now)
        self._mix(now)
        if now >= self._reconnect_at and (self._lost or not self._links.table):
            self._reconnect(now)

    # --- probing

    def _probe(self, now: float) -> None:
        if now >= self._fresh_at and self._samples:
            self._fresh_at = now + (0.0 if self._links.are_few else self._config.fresh_peer_interval_s)
            record, _ = self._samples.popleft()
            if not self._sessions.is_open(record.node_id) and record.node_id not in self._links.candidates:
                self._say(record, Ping(0), now, True)
                return
        candidates = self._links.candidates
        chosen = self._prober.choose(
            [node_id for node_id, link in self._links.table.items() if not link.suspect],
            [
                node_id
                for node_id, stranger in self._strangers.items()
                if now - stranger.since > UNEXPECTED_S and node_id not in candidates
            ],
        )
        if chosen is not None:
            self._ping(chosen, is_probe=True)

    def _ping(self, node_id: NodeId, *, is_probe: bool) -> None:
        self._send(node_id, Ping(0, wants_sample=len(self._samples) < MAX_SAMPLES), is_probe)

    def _take_pong(self, sender: NodeId, pong: Pong, now: float) -> None:
        relay = self._relays.pop(pong.nonce, None)
        if relay is not None and self._sessions.is_open(relay.asker):
            self._send(relay.asker, Relayed(relay.nonce))
        if not pong.linked and sender in self._links and now - self._links.table[sender].since > UNEXPECTED_S:
            self._forget_link(sender, now)
        pong.coordinate.check(self._config.dimensions)
        if pong.sample:
            self._take_sample(pong.sample, now)
        path = self._prober.answered(pong.nonce, sender, pong.held_us / 1000.0, now)
        if path is None or path.filter.value is None:
            return
        self._estimator.update(path.filter.value, pong.coordinate, self._rng)
        self._advertise_if_moved()
        config = self._config
        changed = self._prober.has_changed(path, config.path_change_ms, config.path_change_ratio)
        link = self._links.table.get(sender)
        if changed is not None and link is not None:
            self._events.append(PathChanged(link.record, *changed))

    def _take_place(self, record: NodeRecord) -> None:
        """A neighbour has moved: what its path measured tells more about our own place now."""
        rtt_ms = self._prober.measured_rtt_ms(record.node_id)
        if rtt_ms is not None and self._estimator.is_settling:
            self._estimator.hear(rtt_ms, record.coordinate, self._rng)
            self._advertise_if_moved()

    def _take_sample(self, packed: bytes, now: float) -> None:
        record = unpack(packed, self._config.dimensions)
        if record.node_id != self._own.node_id and record.node_id not in self._lost:
            # A random node is asked as one first: a full one may have a place for such only.
            if not self._ask_for_far_link(record, packed, now):
                self._consider(record, packed, now)
            self._samples.append((record, packed))

    def _advertise_if_moved(self) -> None:
        """The advertised coordinate stays until the raw one has really moved (DESIGN: Cost space)."""
        raw, advertised = self._estimator.coordinate, self._own.coordinate
        if (
            raw.moved_ms(advertised) >= self._config.advertise_distance_ms
            or abs(raw.error - advertised.error) >= ADVERTISE_ERROR
        ):
            self._change_own(coordinate=raw)
            self._links.moved(raw)

    def _change_own(self, **changes: object) -> None:
        """Advertise something new about ourselves under a higher incarnation. Heartbeats spread it."""
        self._own = msgspec.structs.replace(self._own, **{"incarnation": self._own.incarnation + 1, **changes})
        self._packed = pack(self._own)

    # --- links

    def _beat(self, now: float) -> None:
        """Be heard by those to whom nothing was said for a while, or to whom there is news."""
        silence_s = self._config.beat_interval_s - self._tick_s / 2
        incarnation = self._own.incarnation
        for node_id, link in self._links.table.items():
            if link.told_incarnation != incarnation and now - link.news_at >= NEWS_INTERVAL_S:
                link.told_incarnation, link.news_at = incarnation, now
                self._send(node_id, Beat(self._packed))
            elif now - link.told_at >= silence_s:
                self._send(node_id, None)

    def _exchange(self, now: float) -> None:
        """Ask a neighbour whom it knows near our place."""
        config = self._config
        self._exchange_interval_s = min(config.max_exchange_interval_s, 2.0 * self._exchange_interval_s)
        self._exchange_at = now + self._exchange_interval_s * (0.75 + 0.5 * self._rng.random())
        groups: tuple[list[NodeId], list[NodeId]] = ([], [])
        for node_id, link in self._links.table.items():
            groups[link.far].append(node_id)
        first = self._rng.random() >= NEAR_EXCHANGES
        chosen = groups[first] or groups[not first]
        if chosen:
            # With few neighbours any others are welcome, and in a small overlay all of them are to become known.
            known = b"".join(map(id_end, self._links.table)) if self._links.are_few else b""
            self._send(self._rng.choice(chosen), Exchange(self._packed, known))

    def _mix(self, now: float) -> None:
        """Look for random neighbours among those that probing brought."""
        if self._samples:
            self._ask_for_far_link(*self._samples[-1], now)

    def _ask_for_far_link(self, record: NodeRecord, packed: bytes, now: float) -> bool:
        is_asked = self._links.propose_far(record, packed, now)
        if is_asked:
            self._say(record, LinkRequest(self._packed, far=True), now)
        return is_asked

    def _consider(self, record: NodeRecord, packed: bytes, now: float) -> None:
        """We heard of a node: bring up to date what we know of it, or ask it to be our neighbour if it is near."""
        link = self._links.table.get(record.node_id)
        if link is not None:
            if record.boot_id == link.record.boot_id and record.supersedes(link.record):
                self._links.update(link, record, packed, self._own.coordinate)
        elif (
            record.node_id != self._own.node_id
            and record.node_id not in self._lost
            and self._links.propose(record, packed, self._own.coordinate, now)
        ):
            self._exchange_interval_s = self._config.min_exchange_interval_s
            self._say(record, LinkRequest(self._packed, far=False), now)

    def _answer_link_request(self, sender: NodeId, request: LinkRequest, now: float) -> None:
        record = self._introduced(sender, request.record)
        accepted, instead = self._links.accepts(record, request.far, self._own.coordinate)
        if accepted:
            if instead is not None:
                self._unlink(instead, now)
            self._add_link(record, request.record, request.far, now)
        self._send(sender, LinkReply(accepted, self._packed))

    def _take_link_reply(self, sender: NodeId, reply: LinkReply, now: float) -> None:
        record = self._introduced(sender, reply.record)
        candidate = self._links.candidates.get(sender)
        if not reply.accepted:
            if sender in self._links:
                self._drop_link(sender)
            self._links.refused(record, reply.record, now)
        elif sender in self._links or (
            (candidate is not None or sender in self._lost) and len(self._links) < self._config.max_links
        ):
            # Who was lost is asked again without being a candidate, as a far one.
            self._add_link(record, reply.record, candidate is None or candidate.far, now)
        else:
            self._send(sender, Unlink(True))

    def _consider_packed(self, packed: bytes, now: float) -> None:
        """As :meth:`_consider`; most of what is heard is known already, and not even read."""
        link = self._links.table.get(packed_node_id(packed))
        if link is None or packed_version(packed) > link.record.version:
            self._consider(unpack(packed, self._config.dimensions), packed, now)

    def _introduced(self, sender: NodeId, packed: bytes) -> NodeRecord:
        """What a node says about itself. Raises RemoteProtocolError if it is about somebody else."""
        record = unpack(packed, self._config.dimensions)
        if record.node_id != sender:
            raise RemoteProtocolError("a node that introduces itself as another one")
        if self._sessions.certified_name(sender) not in ("", record.name):
            raise RemoteProtocolError("a node with another name than its certificate has")
        return record

    def _add_link(self, record: NodeRecord, packed: bytes, far: bool, now: float) -> None:
        node_id = record.node_id
        is_new = node_id not in self._links
        link = self._links.add(record, packed, far, self._own.coordinate, now)
        self._strangers.pop(node_id, None)
        if is_new:
            link.told_incarnation, link.news_at = self._own.incarnation, now
            if self._lost.pop(node_id, None) is not None:
                self._reconnect_at = now  # the others may be back, too
            if len(self._links) <= self._config.near_links:
                self._prober.probe_soon(node_id)
            self._events.append(MemberJoined(record))
            self._silent_at = min(self._silent_at, now + self._config.silence_s)

    def _unlink(self, node_id: NodeId, now: float) -> None:
        """Part with a neighbour that is there and well."""
        link = self._drop_link(node_id)
        if link is not None:
            self._send(node_id, Unlink(True))
            self._links.refused(link.record, link.packed, now)

    def _forget_link(self, node_id: NodeId, now: float) -> None:
        """The other end does not hold us for a neighbour: ask it again, if we want it."""
        link = self._drop_link(node_id)
        if link is not None:
            self._consider(link.record, link.packed, now)

    def _drop_link(self, node_id: NodeId) -> Link | None:
        """It becomes a stranger again."""
        link = self._links.remove(node_id)
        if link is not None:
            self._checks.drop(node_id)
            self._relayed_checks.pop(node_id, None)
            if self._sessions.is_open(node_id):
                self._meet(node_id, link.record.boot_id)
            else:
                self._prober.forget(node_id)
        return link

    def _take_unlink(self, sender: NodeId, surplus: bool, now: float) -> None:
        link = self._links.table.get(sender)
        if link is None:
            self._part_with_stranger(sender)
        elif surplus:
            self._drop_link(sender)
            self._links.refused(link.record, link.packed, now)
        elif now - link.since > UNEXPECTED_S:
            self._forget_link(sender, now)

    # --- strangers

    def _meet(self, node_id: NodeId, boot_id: int) -> None:
        """Remember somebody with whom a session is open; the one not heard of for longest makes room."""
        self._strangers[node_id] = Stranger(boot_id, self._now)
        while len(self._strangers) > self._config.max_strangers:
            oldest = next(iter(self._strangers))
            self._send(oldest, Unlink(True), "close")
            self._part_with_stranger(oldest, close=False)

    def _part_with_stranger(self, node_id: NodeId, *, close: bool = True) -> None:
        if self._strangers.pop(node_id, None) is not None:
            self._prober.forget(node_id)
        if close and node_id not in self._links:
            self._sessions.close(node_id)
            self._addresses.pop(node_id, None)

    # --- life and death

    def _find_silent(self, now: float) -> None:
        """Check the neighbours that were not heard for too long, and note when the next one would be."""
        silence_s = self._config.silence_s
        next_at = now + 10.0 * silence_s
        table = self._links.table
        for node_id, link in table.items():
            silent_at = link.heard_at + silence_s
            if link.suspect:
                continue
            if silent_at <= now:
                link.suspect = True
                self._checks.start(node_id, link.loss, link.away_ms, len(table), now)
                self._events.append(MemberSuspected(link.shown))
            elif silent_at < next_at:
                next_at = silent_at
        self._silent_at = next_at

    def _go_on_checking(self, now: float) -> None:
        pings, dead = self._checks.due(now)
        for node_id, relayed in pings:
            if not self._sessions.is_open(node_id):
                link = self._links.table[node_id]
                self._sessions.connect(link.record.address, now, node_id)
            if relayed:
                self._ask_a_helper(node_id)
            else:
                self._ping(node_id, is_probe=False)
        for node_id in dead:
            self._give_up(node_id, now)

    def _ask_a_helper(self, node_id: NodeId) -> None:
        helpers = [other for other, link in self._links.table.items() if not link.suspect]
        if helpers:
            nonce = self._prober.sent(node_id, self._now, is_probe=False)
            self._send(self._rng.choice(helpers), Relay(nonce, self._links.table[node_id].packed))
        else:
            self._ping(node_id, is_probe=False)

    def _answer_relay(self, sender: NodeId, relay: Relay, now: float) -> None:
        target = unpack(relay.target, self._config.dimensions)
        if target.node_id != self._own.node_id:
            self._say(target, Ping(0), now, _Relay(sender, relay.nonce))

    def _take_relayed(self, relayed: Relayed, now: float) -> None:
        node_id = self._prober.relayed(relayed.nonce)
        if node_id is None or node_id not in self._checks.table:
            return
        self._relayed_checks[node_id] += 1
        if self._relayed_checks[node_id] <= MAX_RELAYED_CHECKS:
            self._alive(self._links.table[node_id], now)

    def _alive(self, link: Link, now: float) -> None:
        """A suspected neighbour is there after all."""
        link.suspect = False
        link.heard_at = now
        link.loss = self._checks.heard(link.record.node_id, link.loss)
        self._events.append(MemberRecovered(link.record))

    def _give_up(self, node_id: NodeId, now: float) -> None:
        link = self._links.remove(node_id)
        if link is None:
            return
        self._relayed_checks.pop(node_id, None)
        self._prober.forget(node_id)
        self._sessions.close(node_id)
        self._addresses.pop(node_id, None)
        self._lose(link.record, now)
        self._events.append(MemberFailed(msgspec.structs.replace(link.record, status=Status.DEAD)))
        self._exchange_interval_s = self._config.min_exchange_interval_s
        self._exchange_at = min(self._exchange_at, now + self._exchange_interval_s)

    def _lose(self, record: NodeRecord, now: float) -> None:
        while len(self._lost) >= MAX_LOST:
            del self._lost[next(iter(self._lost))]
        self._lost[record.node_id] = Lost(record, now)

    def _reconnect(self, now: float) -> None:
        """Try one of the lost again, so that the overlay grows together after an outage."""
        self._reconnect_at = now + self._config.reconnect_interval_s
        for node_id in [node_id for node_id, lost in self._lost.items() if self._is_forgotten(lost, now)]:
            del self._lost[node_id]
        if self._lost:
            lost = self._lost[self._rng.choice(list(self._lost))]
            self._say(lost.record, LinkRequest(self._packed, far=True), now)
        if not self._links.table and self._entry is not None and not self._joins:
            # All whom we heard of had no room for us, or are gone.
            deadline = now + self._config.join_timeout_s
            self._joins[self._entry] = JoinAttempt(self._rng.getrandbits(31), deadline, now, quiet=True)
            self._retry_joins(now)

    def _is_forgotten(self, lost: Lost, now: float) -> bool:
        return now - lost.since > self._config.forget_after_s

    def _take_leave(self, sender: NodeId) -> None:
        link = self._links.remove(sender)
        if link is not None:
            self._checks.drop(sender)
            self._prober.forget(sender)
            self._events.append(MemberLeft(msgspec.structs.replace(link.record, status=Status.LEFT)))
        self._lost.pop(sender, None)
        self._links.candidates.pop(sender, None)
        self._part_with_stranger(sender)

    def _forget_everybody(self) -> None:
        for node_id in [*self._links.table, *self._strangers]:
            self._prober.forget(node_id)
        self._links.table.clear()
        self._links.candidates.clear()
        self._checks.table.clear()
        for table in (self._strangers, self._lost, self._waiting, self._relays, self._relayed_checks, self._joins):
            table.clear()
        self._samples.clear()
        self._entry = None

    # --- joining

    def _join_failed(self, address: Address, reason: str) -> None:
        if not self._joins.pop(address).quiet:
            self._events.append(JoinFailed(address, reason))

    def _retry_joins(self, now: float) -> None:
        for address, attempt in list(self._joins.items()):
            if attempt.deadline <= now:
                within_s = self._config.join_timeout_s
                self._join_failed(address, f"no answer within {within_s:g} s: is a node listening there?")
            elif attempt.retry_at <= now:
                attempt.retry_at = now + self._config.join_retry_s
                if attempt.node_id is not None and self._sessions.is_open(attempt.node_id):
                    self._send(attempt.node_id, Join(attempt.nonce, self._config.dimensions, self._packed))
                else:
                    self._sessions.connect(address, now)

    def _answer_join(self, sender: NodeId, join: Join, now: float) -> None:
        if join.dimensions != self._config.dimensions:
            reason = f"it uses {self._config.dimensions} dimensions, this node {join.dimensions}"
            self._send(sender, JoinReply(join.nonce, b"", reason=f"{reason}: set [overlay] dimensions alike"))
            return
        self._introduced(sender, join.record)
        links = [link.packed for link in self._links.table.values() if not link.suspect]
        others = self._rng.sample(links, min(EXCHANGE_RECORDS, len(links)))
        self._send(sender, JoinReply(join.nonce, self._packed, tuple(others)))

    def _take_join_reply(self, sender: NodeId, reply: JoinReply, now: float) -> None:
        address = next((address for address, attempt in self._joins.items() if attempt.nonce == reply.nonce), None)
        if address is None:
            return
        if reply.reason:
            self._join_failed(address, "".join(c for c in reply.reason[:MAX_REASON_LENGTH] if c.isprintable()))
            return
        record = self._introduced(sender, reply.record)
        self._entry = address
        if not self._joins.pop(address).quiet:
            self._events.append(Joined(address, record))
        self._exchange_at = now
        self._exchange_interval_s = self._config.min_exchange_interval_s
        self._consider(record, reply.record, now)
        for packed in reply.others[:EXCHANGE_RECORDS]:
            self._take_sample(packed, now)

    # --- sessions

    def _take_session_events(self, now: float) -> None:
        for event in self._sessions.events():
            if isinstance(event, SessionOpened):
                self._session_opened(event, now)
            else:
                self._session_failed(event, now)

    def _session_opened(self, event: SessionOpened, now: float) -> None:
        node_id = event.node_id
        self._addresses[node_id] = event.address
        attempt = self._joins.get(event.address)
        if attempt is not None:
            attempt.node_id = node_id
            attempt.retry_at = now + self._config.join_retry_s
        link = self._links.table.get(node_id)
        if link is None:
            known = self._strangers.pop(node_id, None)
            if known is not None and known.boot_id != event.boot_id:
                self._prober.forget(node_id)
            self._meet(node_id, event.boot_id)
        elif link.record.boot_id < event.boot_id:
            self._restarted(link, event, now)
        if attempt is not None:
            self._send(node_id, Join(attempt.nonce, self._config.dimensions, self._packed))
        for body, extra in self._waiting.pop(node_id, ()):
            self._send(node_id, body, extra)

    def _restarted(self, link: Link, event: SessionOpened, now: float) -> None:
        """The same node in a new process, perhaps at a new address: what was measured and agreed on is void."""
        previous = link.record
        host, port = event.address
        link.record = msgspec.structs.replace(previous, boot_id=event.boot_id, incarnation=0, host=host, port=port)
        link.packed = pack(link.record)
        self._prober.forget(event.node_id)
        self._prober.probe_soon(event.node_id)
        self._events.append(MemberRestarted(link.record, previous))
        self._send(event.node_id, LinkRequest(self._packed, link.far))

    def _session_failed(self, event: SessionFailed, now: float) -> None:
        attempt = self._joins.get(event.address)
        if attempt is not None and event.reason != NO_ANSWER:
            self._join_failed(event.address, event.reason)
        if event.node_id is not None:
            self._cannot_reach(event.node_id, now)

    def _cannot_reach(self, node_id: NodeId, now: float) -> None:
        self._waiting.pop(node_id, None)
        self._links.candidates.pop(node_id, None)

    def _say(self, record: NodeRecord, body: Message, now: float, extra: object = None) -> None:
        """Send to a node that may be a stranger yet: shake hands first if need be."""
        node_id = record.node_id
        if self._sessions.is_open(node_id):
            self._send(node_id, body, extra)
            return
        waiting = self._waiting.get(node_id)
        if waiting is None:
            if len(self._waiting) >= MAX_WAITING:
                del self._waiting[next(iter(self._waiting))]
                self.counters["dropped.waiting_full"] += 1
            waiting = self._waiting[node_id] = []
        if len(waiting) < MAX_WAITING_EACH:
            waiting.append((body, extra))
        self._sessions.connect(record.address, now, node_id)

    # --- datagrams

    def _send(self, node_id: NodeId, body: Message | None, extra: object = None) -> None:
        """To one with whom a session is open. ``extra``: whether a ping is a probe or for whom it is; when the ping
        that a pong answers was received; or "close", the session then."""
        if len(self._outgoing) >= MAX_QUEUED:
            self._outgoing.popleft()
            self.counters["dropped.queue_full"] += 1
        self._outgoing.append((node_id, body, extra))

    def datagrams_to_send(self, now: float) -> list[tuple[bytes, Address]]:
        """Everything that is to be sent now. Probes are timed from here: call it right before sending."""
        datagrams: list[tuple[bytes, Address]] = []
        counters, outgoing, table = self.counters, self._outgoing, self._links.table
        while outgoing:
            node_id, body, extra = outgoing.popleft()
            if not self._sessions.is_open(node_id):
                counters["dropped.no_session"] += 1
                continue
            if body is not None:
                body = self._finish(node_id, body, extra, now)
                if body is None:
                    continue
                data = self._sessions.seal(node_id, encode(body), now)
                counters[_SENT[type(body)]] += 1
            else:
                data = self._sessions.seal(node_id, HEARTBEAT, now)
                counters["sent.heartbeat"] += 1
            link = table.get(node_id)
            if link is not None:
                link.told_at = now
            datagrams.append((data, self._addresses[node_id]))
            counters["sent_bytes"] += len(data)
            if extra == "close" and link is None:
                self._sessions.close(node_id)
                self._addresses.pop(node_id, None)
        for data, address in self._sessions.datagrams_to_send(now):
            counters["sent.handshake"] += 1
            counters["sent_bytes"] += len(data)
            datagrams.append((data, address))
        return datagrams

    def _finish(self, node_id: NodeId, body: Message, extra: object, now: float) -> Message | None:
        """Complete a message right before it is sealed; None: it is not to be sent."""
        if isinstance(body, Ping):
            nonce = self._prober.sent(node_id, now, is_probe=extra is True and self._is_peer(node_id))
            if isinstance(extra, _Relay):
                while len(self._relays) >= MAX_RELAYS:
                    del self._relays[next(iter(self._relays))]
                self._relays[nonce] = extra
            return Ping(nonce, body.wants_sample)
        if isinstance(body, Pong) and isinstance(extra, float):
            held_us = int(max(0.0, now - extra) * 1e6)
            return Pong(body.nonce, held_us, body.coordinate, body.linked, body.sample)
        return body

    def _is_peer(self, node_id: NodeId) -> bool:
        return node_id in self._links or node_id in self._strangers

    def receive(self, data: bytes, source: Address, now: float) -> None:
        """Take one datagram. Bytes that break the protocol are counted and dropped; nothing is raised for them."""
        self._at(now)
        counters = self.counters
        counters["received_bytes"] += len(data)
        try:
            received = self._sessions.receive(data, source, now)
            self._take_session_events(now)
            if received is None:
                counters["received.handshake"] += 1
                return
            sender, body = received.sender, received.body
            self._heard(sender, source, now)
            if body == HEARTBEAT:
                counters["received.heartbeat"] += 1
                self._take_heartbeat(sender, now)
                return
            message = decode(body)
            counters[_RECEIVED[type(message)]] += 1
            self._dispatch(sender, message, now)
        except UnknownKindError:
            counters["dropped.unknown"] += 1
        except RemoteProtocolError:
            counters["dropped.malformed"] += 1

    def _heard(self, sender: NodeId, source: Address, now: float) -> None:
        """Any authentic datagram is a sign of life."""
        self._addresses[sender] = source
        link = self._links.table.get(sender)
        if link is not None:
            link.heard_at = now
            if link.suspect:
                self._relayed_checks.pop(sender, None)
                self._alive(link, now)
            return
        stranger = self._strangers.pop(sender, None)
        if stranger is not None:
            self._strangers[sender] = stranger  # to the end: heard of last

    def _take_heartbeat(self, sender: NodeId, now: float) -> None:
        """One who thinks that we are neighbours, and is mistaken, is told."""
        stranger = self._strangers.get(sender)
        if stranger is not None and now - stranger.since > UNEXPECTED_S:
            self._send(sender, Unlink(False))

    def _dispatch(self, sender: NodeId, message: Message, now: float) -> None:
        if self._has_left:
            if not isinstance(message, Leave):
                self._send(sender, Leave(), "close")  # it missed our goodbye
            return
        match message:
            case Ping():
                far = self._links.random_far() if message.wants_sample else None
                sample = b"" if far is None or far.suspect or far.record.node_id == sender else far.packed
                pong = Pong(message.nonce, 0, self._estimator.coordinate, sender in self._links, sample)
                self._send(sender, pong, now)
            case Pong():
                self._take_pong(sender, message, now)
            case Beat():
                link = self._links.table.get(sender)
                if link is None:
                    self._take_heartbeat(sender, now)
                else:
                    record = self._introduced(sender, message.record)
                    self._consider(record, message.record, now)
                    self._take_place(record)
            case LinkRequest():
                self._answer_link_request(sender, message, now)
            case LinkReply():
                self._take_link_reply(sender, message, now)
            case Unlink():
                self._take_unlink(sender, message.surplus, now)
            case Exchange():
                place = self._introduced(sender, message.record)
                self._consider(place, message.record, now)
                known = id_ends(message.known) | {id_end(sender)}
                near = self._links.nearest(place.coordinate, EXCHANGE_RECORDS, lambda other: id_end(other) in known)
                self._send(sender, ExchangeReply(tuple(link.packed for link in near)))
            case ExchangeReply():
                for packed in message.records[:EXCHANGE_RECORDS]:
                    self._consider_packed(packed, now)
            case Relay():
                self._answer_relay(sender, message, now)
            case Relayed():
                self._take_relayed(message, now)
            case Join():
                self._answer_join(sender, message, now)
            case JoinReply():
                self._take_join_reply(sender, message, now)
            case Leave():
                self._take_leave(sender)
            case SearchRequest():
                self._answer_search(sender, message)
            case SearchReply():
                self._take_search_reply(sender, message, now)

    def _answer_search(self, sender: NodeId, request: SearchRequest) -> None:
        raise NotImplementedError

    def _take_search_reply(self, sender: NodeId, reply: SearchReply, now: float) -> None:
        raise NotImplementedError
