"""Fakes for tests of sessions: nodes with real or fake suites, and a wire between them that a test decides over."""

from __future__ import annotations

import random
from collections.abc import Callable

from daemon.simulation.plain_suite import FakeSuite
from overlay.certificates import Certificate, Trust
from overlay.identity import Identity
from overlay.records import Address
from overlay.sealing import CipherSuite
from overlay.session_events import Received, SessionEvent, SessionFailed, SessionOpened
from overlay.sessions import Sessions
from overlay.suite import Suite
from sbon.errors import RemoteProtocolError

#: What time it is at ``now`` 0, in seconds since the epoch.
EPOCH_S = 1_800_000_000
AUTHORITY = Identity.from_private_bytes(b"a" * 32)


def address_of(number: int) -> Address:
    return "10.0.0.1", 7000 + number


def identity(number: int) -> Identity:
    return Identity.from_private_bytes(number.to_bytes(32, "big"))


def certificate(
    number: int, *, serial: int = 1, from_s: int = 0, until_s: int = 86400, authority: Identity = AUTHORITY
) -> Certificate:
    public_key = identity(number).public_key
    return Certificate.issue(authority, public_key, f"node-{number}", serial, EPOCH_S + from_s, EPOCH_S + until_s)


def cluster_trust(number: int, authority: Identity = AUTHORITY, **validity: int) -> Trust:
    trust = Trust(is_open=False, clock_offset_s=EPOCH_S)
    trust.enrol(authority.public_key, certificate(number, authority=authority, **validity))
    return trust


class SessionNode:
    """A node with nothing but sessions: it keeps what it hears. ``boot`` counts its starts."""

    def __init__(self, number: int, *, trust: Trust | None = None, boot: int = 1, now: float = 0.0, capacity: int = 64):
        self.number = number
        self.boot = boot
        self.address = address_of(number)
        rng = random.Random(number * 1000 + boot)
        suite: Suite
        if trust is None:
            node_id = f"{number:032x}"
            suite = FakeSuite(node_id, boot, rng)
        else:
            own = identity(number)
            node_id = own.node_id
            suite = CipherSuite(own, boot, trust, rng.randbytes)
        self.node_id = node_id
        self.sessions = Sessions(suite, node_id, boot, rng, now, capacity)
        self.heard: list[Received] = []
        self.events: list[SessionEvent] = []
        self.dropped: list[str] = []

    def take(self, data: bytes, source: Address, now: float) -> None:
        try:
            received = self.sessions.receive(data, source, now)
        except RemoteProtocolError as error:
            self.dropped.append(str(error))
            received = None
        if received is not None:
            self.heard.append(received)
        self.events += self.sessions.events()
        self.sessions.validate()

    def opened(self) -> list[SessionOpened]:
        return [event for event in self.events if isinstance(event, SessionOpened)]

    def failed(self) -> list[SessionFailed]:
        return [event for event in self.events if isinstance(event, SessionFailed)]

    def say(self, other: SessionNode, body: bytes, now: float) -> bytes:
        return self.sessions.seal(other.node_id, body, now)


class Wire:
    """Delivers at once, in order, and all, unless told otherwise. ``sent`` is everything that was ever sent."""

    def __init__(self, *nodes: SessionNode) -> None:
        self.nodes = {node.address: node for node in nodes}
        self.sent: list[tuple[Address, bytes, Address]] = []
        self.now = 0.0

    def collect(self) -> list[tuple[Address, bytes, Address]]:
        """What the nodes want sent now, with its source and destination."""
        found = []
        for node in self.nodes.values():
            found += [(node.address, data, to) for data, to in node.sessions.datagrams_to_send(self.now)]
            node.events += node.sessions.events()
        self.sent += found
        return found

    def deliver(self, source: Address, data: bytes, to: Address) -> None:
        if to in self.nodes:
            self.nodes[to].take(data, source, self.now)

    def settle(self) -> None:
        for _ in range(20):
            found = self.collect()
            if not found:
                return
            for source, data, to in found:
                self.deliver(source, data, to)
        raise AssertionError("the nodes do not stop talking")

    def advance(self, seconds: float, step_s: float = 0.1) -> None:
        end = self.now + seconds
        while self.now < end:
            self.now = min(end, self.now + step_s)
            for node in self.nodes.values():
                if node.sessions.next_timer() <= self.now:
                    node.sessions.handle_timer(self.now)
                    node.sessions.validate()
            self.settle()

    def open(self, a: SessionNode, b: SessionNode) -> None:
        a.sessions.connect(b.address, self.now, b.node_id)
        self.settle()
        assert a.sessions.is_open(b.node_id)
        assert b.sessions.is_open(a.node_id)


MakeNode = Callable[..., SessionNode]


def fake_node(number: int, boot: int = 1) -> SessionNode:
    return SessionNode(number, boot=boot)


def open_node(number: int, boot: int = 1) -> SessionNode:
    return SessionNode(number, trust=Trust(is_open=True), boot=boot)


def member(number: int, boot: int = 1) -> SessionNode:
    return SessionNode(number, trust=cluster_trust(number), boot=boot)


def pair(make: MakeNode = fake_node) -> tuple[SessionNode, SessionNode, Wire]:
    a, b = make(1), make(2)
    wire = Wire(a, b)
    wire.open(a, b)
    return a, b, wire
