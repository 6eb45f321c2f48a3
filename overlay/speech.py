"""Saying and hearing: what lies between a node's protocols and its datagrams.

A node is built of layers, each a class that knows only those before it:

* :class:`Speech`, the lowest: sessions, and messages that go out and come in over them;
* :class:`overlay.neighbourhood.Neighbourhood`: whom the node knows, and who becomes its neighbour;
* :class:`overlay.measuring.Measuring`: pings, the paths that they measure, and the node's place that follows from them;
* :class:`overlay.liveness.Liveness`: who is still there, who was lost, and who came back;
* :class:`overlay.joining.Joining`: how the node comes in, and lets others in;
* :class:`overlay.talk.Talk`: what is done when, and which message is whose business;
* :class:`overlay.node.Overlay`: what shells and users see, and searches.

What a layer leaves to those after it is at its end, without a body.
"""

from __future__ import annotations

import math
import random
from collections import Counter, deque
from typing import Final

import msgspec

from overlay.budget import TRAFFIC_OF, Budget
from overlay.config import OverlayConfig
from overlay.events import Event
from overlay.identity import NodeId
from overlay.messages import HEARTBEAT, KIND_OF, Message
from overlay.packing import pack, unpack
from overlay.records import Address, NodeRecord
from overlay.session_events import SessionFailed, SessionOpened
from overlay.session_wire import SEAL_BYTES
from overlay.sessions import Sessions
from overlay.wire import decode, encode
from sbon.errors import RemoteProtocolError, UnknownKindError

MAX_QUEUED: Final = 2000
MAX_EVENTS: Final = 10_000
#: Messages that wait for a session to be opened: peers, and messages for one of them.
MAX_WAITING: Final = 32
MAX_WAITING_EACH: Final = 4
#: A wait that no timer explains: the process stood still, and silence until now says nothing about others.
STALL_S: Final = 0.5
#: Beside a message: it is the last one, the session ends with it.
CLOSE = "close"

_SENT: Final = {kind: f"sent.{name}" for kind, name in KIND_OF.items()}
_SENT_BYTES: Final = {kind: f"sent_bytes.{traffic}" for kind, traffic in TRAFFIC_OF.items()}
_RECEIVED: Final = {kind: f"received.{name}" for kind, name in KIND_OF.items()}


class Speech:
    """This node as it is advertised, its sessions, and what is to be sent."""

    def __init__(
        self, record: NodeRecord, config: OverlayConfig, rng: random.Random, now: float, sessions: Sessions
    ) -> None:
        """``record`` describes this node. Raises ValueError if it cannot be advertised."""
        self._config = config
        self._rng = rng
        self._sessions = sessions
        try:
            record.check(config.dimensions)
            self._advertise(record)
        except RemoteProtocolError as error:
            raise ValueError(f"this node cannot be advertised: {error}") from error
        #: Where those are with whom a session is open.
        self._addresses: dict[NodeId, Address] = {}
        #: What is to be said to those with whom none is open yet.
        self._waiting: dict[NodeId, list[tuple[Message, object]]] = {}
        self._outgoing: deque[tuple[NodeId, Message | None, object]] = deque()
        self._budget = Budget(now)
        self._events: deque[Event] = deque(maxlen=MAX_EVENTS)
        self._now = now
        self._woken_by = math.inf
        #: Datagrams by fate and kind: "received.ping", "sent.beat", "dropped.malformed", ...; bytes by kind of traffic.
        self.counters: Counter[str] = Counter()

    def _at(self, now: float) -> None:
        """Note the time. If we wake much later than we asked to, the silence was ours: nobody is blamed for it."""
        late_s = now - self._woken_by
        if late_s > STALL_S:
            self.counters["stalls"] += 1
            self._excuse(late_s)
            self._woken_by = now  # what comes next is not late once more
        if now > self._now:
            self._now = now

    # --- this node

    def _advertise(self, record: NodeRecord) -> None:
        """Be what others read, to whom numbers come with fewer digits: all are to rank this node alike, it included."""
        self._packed = pack(record)
        self._own = unpack(self._packed, self._config.dimensions)

    def _change_own(self, **changes: object) -> None:
        """Advertise something new about ourselves under a higher incarnation. Heartbeats spread it."""
        changed = {"incarnation": self._own.incarnation + 1, **changes}
        self._advertise(msgspec.structs.replace(self._own, **changed))

    # --- saying

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

    def _send(self, node_id: NodeId, body: Message | None, extra: object = None) -> None:
        """To one with whom a session is open; None is a heartbeat. ``extra`` is for :meth:`_finish`, or CLOSE."""
        if len(self._outgoing) >= MAX_QUEUED:
            other_id, _, its_extra = self._outgoing.popleft()
            self.counters["dropped.queue_full"] += 1
            self._end_if_last(other_id, its_extra)
        self._outgoing.append((node_id, body, extra))

    def datagrams_to_send(self, now: float) -> list[tuple[bytes, Address]]:
        """Everything that is to be sent now. Probes are timed from here: call it right before sending."""
        datagrams: list[tuple[bytes, Address]] = []
        if not self._outgoing and not self._sessions.outgoing:
            return datagrams
        counters, outgoing = self.counters, self._outgoing
        while outgoing:
            node_id, body, extra = outgoing.popleft()
            if not self._sessions.is_open(node_id):
                counters["dropped.no_session"] += 1
                self._addresses.pop(node_id, None)  # the session may have ended by itself
                continue
            data = self._sealed(node_id, body, extra, now)
            if data is not None:
                self._told(node_id, now)
                datagrams.append((data, self._addresses[node_id]))
                counters["sent_bytes"] += len(data)
            self._end_if_last(node_id, extra)
        if self._sessions.outgoing:
            for data, address in self._sessions.datagrams_to_send(now):
                counters["sent.handshake"] += 1
                counters["sent_bytes"] += len(data)
                counters["sent_bytes.handshake"] += len(data)
                datagrams.append((data, address))
        return datagrams

    def _sealed(self, node_id: NodeId, body: Message | None, extra: object, now: float) -> bytes | None:
        """The datagram, complete; None if it is not to be sent, or over the budget of its kind of traffic."""
        if body is None:
            data = self._sessions.seal(node_id, HEARTBEAT, now)
            self.counters["sent.heartbeat"] += 1
            self.counters["sent_bytes.heartbeat"] += len(data)
            return data
        finished = self._finish(node_id, body, extra, now)
        if finished is None:
            return None
        kind = type(finished)
        encoded = encode(finished)
        if not self._budget.take(kind, len(encoded) + SEAL_BYTES, now):
            self.counters["dropped.over_budget"] += 1
            return None
        data = self._sessions.seal(node_id, encoded, now)
        self.counters[_SENT[kind]] += 1
        self.counters[_SENT_BYTES[kind]] += len(data)
        return data

    def _end_if_last(self, node_id: NodeId, extra: object) -> None:
        """The session ends after the last word, whether that was sent, over the budget, or pushed out of the queue."""
        if extra == CLOSE and not self._sessions.is_kept(node_id):
            self._close(node_id)

    def _close(self, node_id: NodeId) -> None:
        """End the session, without a word."""
        self._sessions.close(node_id)
        self._addresses.pop(node_id, None)

    # --- hearing

    def receive(self, data: bytes, source: Address, now: float) -> bool:
        """Take one datagram. Bytes that break the protocol are counted and dropped; nothing is raised for them.

        Returns whether anything may have come of it. A mere sign of life, which is what most datagrams are, leaves
        nothing to send, to tell or to be woken for that was not there before.
        """
        self._at(now)
        counters = self.counters
        counters["received_bytes"] += len(data)
        try:
            received = self._sessions.receive(data, source, now)
            happened = bool(self._sessions.happened)
            if happened:
                self._take_session_events(now)
            if received is None:
                counters["received.handshake"] += 1
                return True
            sender, body = received.sender, received.body
            expected = self._heard(sender, source, now)
            if body == HEARTBEAT:
                counters["received.heartbeat"] += 1
                if expected:
                    return happened
                self._take_heartbeat(sender, now)
                return True
            message = decode(body)
            counters[_RECEIVED[type(message)]] += 1
            self._dispatch(sender, message, now)
        except UnknownKindError:
            counters["dropped.unknown"] += 1
        except RemoteProtocolError:
            counters["dropped.malformed"] += 1
        return True

    def _introduced(self, sender: NodeId, packed: bytes) -> NodeRecord:
        """What a node says about itself. Raises RemoteProtocolError if it is about somebody else."""
        record = unpack(packed, self._config.dimensions)
        if record.node_id != sender:
            raise RemoteProtocolError("a node that introduces itself as another one")
        if self._sessions.certified_name(sender) not in ("", record.name):
            raise RemoteProtocolError("a node with another name than its certificate has")
        return record

    def _take_session_events(self, now: float) -> None:
        for event in self._sessions.events():
            if isinstance(event, SessionOpened):
                self._session_opened(event, now)
            else:
                self._session_failed(event, now)

    # --- left to the layers above

    def _excuse(self, late_s: float) -> None:
        """This process stood still for so long: nobody is to blame for not having been heard."""
        raise NotImplementedError

    def _finish(self, node_id: NodeId, body: Message, extra: object, now: float) -> Message | None:
        """Complete a message right before it is sealed; None: it is not to be sent."""
        raise NotImplementedError

    def _told(self, node_id: NodeId, now: float) -> None:
        """Something is sent to that node now."""
        raise NotImplementedError

    def _heard(self, sender: NodeId, source: Address, now: float) -> bool:
        """An authentic datagram came from that node. Returns whether it is a neighbour, under no suspicion."""
        raise NotImplementedError

    def _take_heartbeat(self, sender: NodeId, now: float) -> None:
        raise NotImplementedError

    def _dispatch(self, sender: NodeId, message: Message, now: float) -> None:
        raise NotImplementedError

    def _session_opened(self, event: SessionOpened, now: float) -> None:
        raise NotImplementedError

    def _session_failed(self, event: SessionFailed, now: float) -> None:
        raise NotImplementedError
