"""The overlay as one node sees it, sans-I/O (DESIGN: Sans-I/O, and time as an argument).

An :class:`Overlay` is handed datagrams and the time; it hands back datagrams to send, when to be woken, and events. Its
shell keeps to this order: ``receive`` / ``handle_timer`` / a verb, then ``datagrams_to_send``, ``events`` and
``next_timer``. ``now`` is in seconds on any clock that never goes back; all randomness comes from the generator handed
in.

It puts together :mod:`overlay.membership` (who is there), :mod:`overlay.probing` (what paths cost, who answers) and
:class:`sbon.coordinate.VivaldiState` (where we are), and adds joining, leaving and the gossip between members.
"""

from __future__ import annotations

import math
import random
from collections import Counter, deque
from dataclasses import dataclass

import msgspec

from overlay.config import OverlayConfig
from overlay.events import (
    Event,
    Joined,
    JoinFailed,
    Left,
    MemberFailed,
    MemberJoined,
    MemberLeft,
    MemberRecovered,
    MemberRestarted,
    MemberSuspected,
    PathChanged,
)
from overlay.identity import NodeId
from overlay.membership import Membership
from overlay.messages import (
    KIND_OF,
    MAX_REASON_LENGTH,
    Gossip,
    Join,
    JoinAccepted,
    JoinRefused,
    Message,
    Ping,
    Pong,
)
from overlay.probing import STALL_S, LinkState, Prober
from overlay.records import Address, NodeRecord, Status
from overlay.search import Objective, least
from overlay.wire import ENVELOPE_BYTES, MAX_DATAGRAM_BYTES, Envelope, UnknownKindError, decode, encode
from sbon.coordinate import Coordinate, VivaldiState
from sbon.cost_space import MAX_LOAD
from sbon.errors import RemoteProtocolError, UnavailableError

#: Room for records in one gossip datagram: what is left beside the envelope and the body's own framing.
GOSSIP_BYTES = MAX_DATAGRAM_BYTES - ENVELOPE_BYTES - 16
MAX_QUEUED = 10_000
MAX_EVENTS = 10_000
MAX_JOINS = 16
#: A path is reported as changed only once its filter is filled well enough to tell.
PATH_CHANGE_SAMPLES = 5
#: An error estimate is advertised anew when it changed by this much.
ADVERTISE_ERROR = 0.1


class LatencyEstimate(msgspec.Struct, frozen=True):
    """What is known about the path between two nodes. ``error``: the relative error to expect of the prediction.

    ``measured_rtt_ms`` is the filtered direct measurement, None if this node is not an end of the path or never
    measured it; ``samples`` is how many measurements there were.
    """

    predicted_rtt_ms: float
    measured_rtt_ms: float | None
    samples: int
    error: float


@dataclass(frozen=True, slots=True)
class _Outgoing:
    """To be sent to ``address``. A ping has no nonce yet, and a pong does not know yet how long it was held."""

    body: Message
    address: Address
    probed: NodeId | None = None
    received_at: float | None = None


@dataclass(slots=True)
class _JoinAttempt:
    nonce: int
    deadline: float
    retry_at: float


class Overlay:
    """One node's part in the overlay. See the module's docstring for how to drive it."""

    def __init__(self, record: NodeRecord, config: OverlayConfig, rng: random.Random, now: float) -> None:
        """``record`` describes this node; its coordinate is replaced by the origin of the configured space.

        Raises ValueError if the record or the configuration cannot be used.
        """
        config.check()
        self._config = config
        self._rng = rng
        self._vivaldi = VivaldiState(config.dimensions, use_height=config.use_height)
        own = msgspec.structs.replace(record, coordinate=self._vivaldi.coordinate, status=Status.ALIVE)
        try:
            own.check(config.dimensions)
        except RemoteProtocolError as error:
            raise ValueError(f"this node cannot be advertised: {error}") from error
        self._membership = Membership(own, config)
        self._prober = Prober(config, rng, now)
        self._outgoing: deque[_Outgoing] = deque()
        self._events: deque[Event] = deque(maxlen=MAX_EVENTS)
        self._joins: dict[Address, _JoinAttempt] = {}
        self._last_gossip_at = now
        self._next_reconnect_at = now + config.reconnect_interval_s
        self._now = now
        self._woken_by = math.inf
        #: Datagrams by fate and kind: "received.ping", "sent.gossip", "dropped.malformed", ...
        self.counters: Counter[str] = Counter()

    # --- reading

    @property
    def record(self) -> NodeRecord:
        """This node as it is advertised."""
        return self._membership.own

    @property
    def coordinate(self) -> Coordinate:
        """The raw coordinate, which moves with every probe; ``record.coordinate`` is the advertised one."""
        return self._vivaldi.coordinate

    @property
    def has_left(self) -> bool:
        return self.record.status is Status.LEFT

    def members(self) -> list[NodeRecord]:
        """Everybody else who is here, by name; ``status`` tells who is suspected."""
        return self._membership.present()

    def find(self, name_or_id: str) -> NodeRecord | None:
        """The present member, or this node, of that id or else of that name."""
        everyone = [self.record, *self.members()]
        for record in everyone:
            if record.node_id == name_or_id:
                return record
        return next((record for record in everyone if record.name == name_or_id), None)

    def measured_rtt_ms(self, node_id: NodeId) -> float | None:
        """The filtered round trip from here to ``node_id``; None if it was never measured, 0 to ourselves."""
        return 0.0 if node_id == self.record.node_id else self._prober.measured_rtt_ms(node_id)

    def latency(self, a_id: NodeId, b_id: NodeId) -> LatencyEstimate:
        """What is known here about the path between two known nodes. Raises UnavailableError for an unknown id."""
        a, b = self._coordinate_of(a_id), self._coordinate_of(b_id)
        if a_id == b_id:
            return LatencyEstimate(0.0, 0.0, 0, 0.0)
        error = max(a.error, b.error)
        own_id = self.record.node_id
        if own_id not in (a_id, b_id):
            return LatencyEstimate(a.rtt_ms(b), None, 0, error)
        other = b_id if a_id == own_id else a_id
        return LatencyEstimate(a.rtt_ms(b), self._prober.measured_rtt_ms(other), self._prober.samples(other), error)

    def _coordinate_of(self, node_id: NodeId) -> Coordinate:
        if node_id == self.record.node_id:
            return self.coordinate
        record = self._membership.get(node_id)
        if record is None:
            raise UnavailableError(f"no node {node_id} is known here: see `sbon nodes`")
        return record.coordinate

    def search(self, objective: Objective, k: int) -> list[NodeRecord]:
        """At most ``k`` alive nodes of least objective, this one among them; infinity rules a node out."""
        return least([self.record, *self.members()], objective, k)

    def validate(self) -> None:
        """Assert what must always hold; for tests and simulations."""
        self._membership.validate()
        known = {record.node_id for record in self.members()} | {r.node_id for r in self._membership.dead()}
        self._prober.validate(known)
        assert len(self._outgoing) <= MAX_QUEUED
        assert len(self._joins) <= MAX_JOINS
        self.record.check(self._config.dimensions)

    # --- verbs

    def join(self, address: Address, now: float) -> None:
        """Ask the node at ``address`` to take us in. Answered by a Joined or JoinFailed event with that address."""
        if self.has_left:
            self._membership.change_own(status=Status.ALIVE)
        if address == self.record.address:
            self._events.append(JoinFailed(address, "this is the node's own address: name another member"))
        elif len(self._joins) >= MAX_JOINS and address not in self._joins:
            self._events.append(JoinFailed(address, "too many joins at once: wait for the others"))
        else:
            attempt = _JoinAttempt(self._rng.getrandbits(48), now + self._config.join_timeout_s, now)
            self._joins[address] = attempt
            self._retry_joins(now)

    def leave(self, now: float) -> None:
        """Say goodbye to everybody and forget them. Until the next join this node neither probes nor answers."""
        if self.has_left:
            return
        self._membership.change_own(status=Status.LEFT)
        for member in self.members():
            self._queue(Gossip((self.record,)), member.address)
            self._prober.forget(member.node_id)
        for dead in self._membership.dead():
            self._prober.forget(dead.node_id)
        self._membership.clear()
        self._joins.clear()
        self._events.append(Left())

    def set_load(self, load: float, now: float) -> None:
        """The host's load average per core, as measured. Advertised when it has changed enough."""
        if not load >= 0.0:
            raise ValueError(f"a load of {load}")
        load = min(load, MAX_LOAD)
        if abs(load - self.record.load) >= self._config.advertise_load:
            self._membership.change_own(load=load)

    def probe_soon(self, node_id: NodeId, now: float) -> None:
        """Probe a member at the next chance, out of turn. Unknown ids are ignored: it may just have gone."""
        record = self._membership.get(node_id)
        if record is not None and record.present and node_id != self.record.node_id:
            self._prober.probe_soon(node_id)

    # --- time

    def next_timer(self) -> float | None:
        """When :meth:`handle_timer` wants to be called next; None if never."""
        timers = [min(attempt.deadline, attempt.retry_at) for attempt in self._joins.values()]
        if not self.has_left:
            has_members = self._membership.has_present
            timers += [self._membership.next_timer(), self._prober.next_timer(has_members)]
            if has_members:
                timers.append(self._gossip_due_at())
            if self._membership.dead():
                timers.append(self._next_reconnect_at)
        self._woken_by = max(self._now, min(timers, default=math.inf))
        return None if self._woken_by == math.inf else self._woken_by

    def handle_timer(self, now: float) -> None:
        """Do what is due. Too early a call does no harm."""
        self._at(now)
        self._retry_joins(now)
        if self.has_left:
            return
        for node_id in self._prober.overdue(now):
            self._happened(self._membership.suspect(node_id, now))
        self._happened(self._membership.expire(now))
        self._reconnect(now)
        self._probe(now)
        self._gossip(now)

    def _at(self, now: float) -> None:
        """Note the time. If we wake much later than we asked to, the silence was ours: nobody is blamed for it."""
        late_s = now - self._woken_by
        if late_s > STALL_S:
            self.counters["stalls"] += 1
            self._prober.grant(late_s)
            self._membership.grant(late_s)
        self._woken_by = math.inf
        self._now = max(self._now, now)

    def _retry_joins(self, now: float) -> None:
        for address, attempt in list(self._joins.items()):
            if attempt.deadline <= now:
                del self._joins[address]
                reason = f"no answer within {self._config.join_timeout_s:g} s: is a node listening there?"
                self._events.append(JoinFailed(address, reason))
            elif attempt.retry_at <= now:
                attempt.retry_at = now + self._config.join_retry_s
                self._queue(Join(attempt.nonce, self.record), address)

    def _probed_ids(self) -> set[NodeId]:
        return {record.node_id for record in self.members()}

    def _probe(self, now: float) -> None:
        for node_id in self._prober.due(self._probed_ids(), now):
            record = self._membership.get(node_id)
            assert record is not None
            self._queue_ping(record)

    def _queue_ping(self, record: NodeRecord) -> None:
        self._enqueue(_Outgoing(Ping(0, self.record), record.address, probed=record.node_id))

    def _reconnect(self, now: float) -> None:
        """Try one of the dead again, so that the overlay grows together after an outage."""
        if now < self._next_reconnect_at:
            return
        self._next_reconnect_at = now + self._config.reconnect_interval_s
        dead = self._membership.dead()
        if dead:
            record = self._rng.choice(dead)
            # It refutes its own death when it is told of it; an answer to the ping alone would not outdate that.
            self._queue(Gossip((record,)), record.address)
            self._queue(Ping(0, self.record), record.address)

    def _gossip_due_at(self) -> float:
        config = self._config
        wait_s = config.rumor_interval_s if self._membership.has_rumors else config.gossip_interval_s
        return self._last_gossip_at + wait_s

    def _gossip(self, now: float) -> None:
        if now < self._gossip_due_at():
            return
        self._last_gossip_at = now
        members = self.members()
        for member in self._rng.sample(members, min(self._config.gossip_fanout, len(members))):
            news = self._membership.news(self._rng, GOSSIP_BYTES)
            if news:
                self._queue(Gossip(news), member.address)

    # --- datagrams

    def datagrams_to_send(self, now: float) -> list[tuple[bytes, Address]]:
        """Everything that is to be sent now. Probes are timed from here: call it right before sending."""
        datagrams = []
        while self._outgoing:
            outgoing = self._outgoing.popleft()
            body = outgoing.body
            if isinstance(body, Ping) and outgoing.probed is not None:
                if not self._is_probed(outgoing.probed):
                    continue  # it went while the ping was waiting
                body = msgspec.structs.replace(body, nonce=self._prober.sent(outgoing.probed, now))
            elif isinstance(body, Pong) and outgoing.received_at is not None:
                body = msgspec.structs.replace(body, held_ms=max(0.0, now - outgoing.received_at) * 1000.0)
            if isinstance(body, Ping | Pong | Join | JoinAccepted):
                # What was said of us since it was queued may have changed it.
                body = msgspec.structs.replace(body, record=self.record)
            data = encode(self.record.node_id, self.record.boot_id, body)
            self.counters[f"sent.{KIND_OF[type(body)]}"] += 1
            self.counters["sent_bytes"] += len(data)
            datagrams.append((data, outgoing.address))
        return datagrams

    def _is_probed(self, node_id: NodeId) -> bool:
        record = self._membership.get(node_id)
        return record is not None and record.present

    def _queue(self, body: Message, address: Address) -> None:
        self._enqueue(_Outgoing(body, address))

    def _enqueue(self, outgoing: _Outgoing) -> None:
        if len(self._outgoing) >= MAX_QUEUED:
            self._outgoing.popleft()
            self.counters["dropped.queue_full"] += 1
        self._outgoing.append(outgoing)

    def receive(self, data: bytes, source: Address, now: float) -> None:
        """Take one datagram. Bytes that break the protocol are counted and dropped; nothing is raised for them."""
        self._at(now)
        self.counters["received_bytes"] += len(data)
        try:
            envelope, body = decode(data)
            if envelope.sender == self.record.node_id:
                self._hear_ourselves(body)
            self.counters[f"received.{envelope.kind}"] += 1
            self._dispatch(envelope, body, source, now)
        except UnknownKindError:
            self.counters["dropped.unknown"] += 1
        except RemoteProtocolError:
            self.counters["dropped.malformed"] += 1

    def _dispatch(self, envelope: Envelope, body: Message, source: Address, now: float) -> None:
        if self.has_left:
            if isinstance(body, Ping):  # it missed our goodbye
                self._queue(Gossip((self.record,)), source)
            return
        match body:
            case Ping():
                self._accept_sender(envelope, body.record, now)
                pong = Pong(body.nonce, self.record, self.coordinate, held_ms=0.0)
                self._enqueue(_Outgoing(pong, source, received_at=now))
            case Pong():
                body.coordinate.check(self._config.dimensions)
                self._accept_sender(envelope, body.record, now)
                self._take_sample(envelope.sender, body, now)
            case Gossip():
                for record in body.records:
                    record.check(self._config.dimensions)
                for record in body.records:
                    self._happened(self._membership.merge(record, now))
                self._prober.heard(envelope.sender)
            case Join():
                self._answer_join(envelope, body, source, now)
            case JoinAccepted():
                self._accept_sender(envelope, body.record, now)
                self._end_join(body.nonce, body.record, "")
            case JoinRefused():
                reason = "".join(c for c in body.reason[:MAX_REASON_LENGTH] if c.isprintable())
                self._end_join(body.nonce, None, reason)

    def _accept_sender(self, envelope: Envelope, record: NodeRecord, now: float) -> None:
        """Merge what a node says about itself. Raises RemoteProtocolError if it is not about itself."""
        if (record.node_id, record.boot_id) != (envelope.sender, envelope.boot_id):
            raise RemoteProtocolError("a node that introduces itself as another one")
        record.check(self._config.dimensions)
        self._happened(self._membership.merge(record, now))
        self._prober.heard(record.node_id)
        known = self._membership.get(record.node_id)
        if known is None or not known.supersedes(record):
            return
        if known.status is not Status.ALIVE or known.boot_id > record.boot_id:
            # It does not know that it is suspected, or that it once had a higher boot id: tell it, so that it refutes.
            self._queue(Gossip((known,)), record.address)

    def _answer_join(self, envelope: Envelope, body: Join, source: Address, now: float) -> None:
        theirs = body.record.coordinate.dimensions
        if theirs != self._config.dimensions:
            reason = f"it uses {self._config.dimensions} dimensions, this node {theirs}: set [overlay] dimensions alike"
            self._queue(JoinRefused(body.nonce, reason), source)
            return
        self._accept_sender(envelope, body.record, now)
        self._queue(JoinAccepted(body.nonce, self.record), source)
        for portion in self._membership.everything(GOSSIP_BYTES):
            self._queue(Gossip(portion), source)

    def _hear_ourselves(self, body: Message) -> None:
        """A join that went to another of our own addresses fails; anything else is an impostor's."""
        if isinstance(body, Join):
            self._end_join(body.nonce, None, "this is the node's own address: name another member")
        raise RemoteProtocolError("a datagram that claims to be from this node itself")

    def _end_join(self, nonce: int, accepted_by: NodeRecord | None, reason: str) -> None:
        """Answers may come from another address than was asked, so it is the nonce that counts."""
        for address, attempt in list(self._joins.items()):
            if attempt.nonce == nonce:
                del self._joins[address]
                self._events.append(Joined(address, accepted_by) if accepted_by else JoinFailed(address, reason))

    # --- what follows from a datagram

    def _take_sample(self, sender: NodeId, pong: Pong, now: float) -> None:
        link = self._prober.answered(pong.nonce, sender, pong.held_ms, now)
        if link is None or link.filter.value is None:
            return
        self._vivaldi.update(link.filter.value, pong.coordinate, self._rng)
        self._advertise_if_moved()
        self._report_if_changed(sender, link, link.filter.value)

    def _advertise_if_moved(self) -> None:
        """The advertised coordinate stays until the raw one has really moved (DESIGN: Cost space)."""
        raw, advertised = self.coordinate, self.record.coordinate
        if (
            raw.moved_ms(advertised) >= self._config.advertise_distance_ms
            or abs(raw.error - advertised.error) >= ADVERTISE_ERROR
        ):
            self._membership.change_own(coordinate=raw)

    def _report_if_changed(self, node_id: NodeId, link: LinkState, value_ms: float) -> None:
        if link.filter.samples < PATH_CHANGE_SAMPLES:
            return
        before_ms = link.reported_ms
        if before_ms is None:
            link.reported_ms = value_ms
            return
        changed_ms = abs(value_ms - before_ms)
        if changed_ms < self._config.path_change_ms or changed_ms < self._config.path_change_ratio * before_ms:
            return
        link.reported_ms = value_ms
        record = self._membership.get(node_id)
        if record is not None:
            self._events.append(PathChanged(record, before_ms, value_ms))

    def _happened(self, events: list[Event]) -> None:
        for event in events:
            self._events.append(event)
            if isinstance(event, MemberFailed | MemberLeft):
                self._prober.forget(event.record.node_id)
            elif isinstance(event, MemberRestarted):
                self._prober.reset(event.record.node_id)
                self._prober.probe_soon(event.record.node_id)
            elif isinstance(event, MemberRecovered):
                self._prober.refuted(event.record.node_id)
            elif isinstance(event, MemberJoined | MemberSuspected):
                self._prober.probe_soon(event.record.node_id)

    def events(self) -> list[Event]:
        """What happened since the last call, oldest first."""
        happened = list(self._events)
        self._events.clear()
        return happened
