"""Three nodes that lose, repeat, reorder and misdirect datagrams, restart and forget: nothing is heard twice, nor what
was not said to this very node, and when the faults end everybody can talk to everybody."""

from __future__ import annotations

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from sbon.errors import UnavailableError
from tests.overlay.session_nodes import SessionNode, Wire, address_of

NUMBERS = (1, 2, 3)
numbers = st.sampled_from(NUMBERS)
MAX_IN_FLIGHT = 200


class SessionsMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.wire = Wire(*(SessionNode(number, capacity=2) for number in NUMBERS))
        self.in_flight: list[tuple[tuple[str, int], bytes, tuple[str, int]]] = []
        self.said = 0
        #: Body -> sender's id, sender's boot, receiver's number, receiver's boot.
        self.sayings: dict[bytes, tuple[str, int, int, int]] = {}
        self.heard: set[bytes] = set()

    def node(self, number: int) -> SessionNode:
        return self.wire.nodes[address_of(number)]

    def collect(self) -> None:
        self.in_flight += self.wire.collect()
        del self.in_flight[:-MAX_IN_FLIGHT]

    @rule(a=numbers, b=numbers, known=st.booleans())
    def connect(self, a: int, b: int, known: bool) -> None:
        self.node(a).sessions.connect(address_of(b), self.wire.now, self.node(b).node_id if known else None)

    @rule(a=numbers, b=numbers)
    def say(self, a: int, b: int) -> None:
        sender, receiver = self.node(a), self.node(b)
        body = b"saying %d" % self.said
        try:
            data = sender.say(receiver, body, self.wire.now)
        except UnavailableError:
            assert not sender.sessions.is_open(receiver.node_id)
            return
        self.said += 1
        # A session may be with the receiver's boot before: then nobody hears it.
        self.sayings[body] = (sender.node_id, sender.boot, b, receiver.boot)
        self.in_flight.append((sender.address, data, receiver.address))

    @precondition(lambda self: self.in_flight)
    @rule(data=st.data(), twice=st.booleans())
    def deliver(self, data: st.DataObject, twice: bool) -> None:
        index = data.draw(st.integers(0, len(self.in_flight) - 1))
        item = self.in_flight[index] if twice else self.in_flight.pop(index)
        self.wire.deliver(*item)
        self.take_note()

    @rule()
    def deliver_all(self) -> None:
        self.collect()
        items, self.in_flight = self.in_flight, []
        for item in items:
            self.wire.deliver(*item)
        self.take_note()

    @precondition(lambda self: self.in_flight)
    @rule(data=st.data())
    def lose(self, data: st.DataObject) -> None:
        del self.in_flight[data.draw(st.integers(0, len(self.in_flight) - 1))]

    @precondition(lambda self: self.in_flight)
    @rule(data=st.data(), number=numbers)
    def send_elsewhere(self, data: st.DataObject, number: int) -> None:
        source, body, _ = data.draw(st.sampled_from(self.in_flight))
        self.wire.deliver(source, body, address_of(number))
        self.take_note()

    @rule(number=numbers)
    def restart(self, number: int) -> None:
        old = self.node(number)
        self.wire.nodes[old.address] = SessionNode(number, boot=old.boot + 1, now=self.wire.now, capacity=2)

    @rule(a=numbers, b=numbers)
    def forget(self, a: int, b: int) -> None:
        self.node(a).sessions.close(self.node(b).node_id)

    @rule(seconds=st.sampled_from((0.05, 0.3, 1.0, 4.0, 15.0)))
    def wait(self, seconds: float) -> None:
        self.wire.now += seconds
        for node in self.wire.nodes.values():
            if node.sessions.next_timer() <= self.wire.now:
                node.sessions.handle_timer(self.wire.now)

    def take_note(self) -> None:
        self.collect()
        for node in self.wire.nodes.values():
            for received in node.heard:
                sender, sender_boot, receiver, receiver_boot = self.sayings[received.body]
                assert (received.sender, received.boot_id) == (sender, sender_boot)
                assert (node.number, node.boot) == (receiver, receiver_boot)
                assert received.body not in self.heard, "heard twice"
                self.heard.add(received.body)
            node.heard.clear()

    @invariant()
    def valid(self) -> None:
        for node in self.wire.nodes.values():
            node.sessions.validate()

    def teardown(self) -> None:
        self.in_flight.clear()
        self.wire.advance(20.0)
        for a in NUMBERS:
            for b in NUMBERS:
                if a < b:
                    self.node(a).sessions.connect(address_of(b), self.wire.now, self.node(b).node_id)
        self.wire.advance(5.0)
        for a in NUMBERS:
            for b in NUMBERS:
                if a != b:
                    body = b"at last from %d to %d" % (a, b)
                    self.node(b).heard.clear()
                    self.wire.deliver(address_of(a), self.node(a).say(self.node(b), body, self.wire.now), address_of(b))
                    assert [received.body for received in self.node(b).heard] == [body]


TestSessions = SessionsMachine.TestCase
TestSessions.settings = settings(
    max_examples=60, stateful_step_count=40, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
