"""Mutated datagrams and frames by the million: none raises past the wire layer, none is accepted without the key.

    python -m tests.overlay.fuzzing --count 1000000 --seed 1

prints what became of them. ``tests/overlay/test_fuzz.py`` runs 20,000 with every test run.
"""

from __future__ import annotations

import argparse
import math
import random
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, Protocol, get_args

import msgspec
import trio

from daemon.control.messages import CONTROL_VERSION, Answer, Call, Done, Join, Latency, Request, Status, Submit
from daemon.control.server import Control
from daemon.peering.envelopes import REQUEST_VERSION, ReplyEnvelope, RequestEnvelope
from daemon.peering.peer_tls import Caller, PeerTls, _read_x509
from daemon.peering.requests import PeerRequests
from daemon.simulation.plain_suite import FakeSuite
from overlay.certificates import Certificate, RevocationList
from overlay.config import OverlayConfig
from overlay.identity import NodeId
from overlay.node import Overlay
from overlay.records import NodeRecord
from overlay.session_events import SessionOpened
from overlay.session_wire import MAX_BODY_BYTES, REFUSED, RESET, WELCOME
from overlay.sessions import GIVE_UP_S, MAX_BAD_ANSWERS, Sessions
from sbon.coordinate import origin
from sbon.errors import RemoteProtocolError, UnknownKindError
from sbon.frames import FrameReader, frame
from sbon.objectives import NearestTo
from tests.overlay.session_nodes import (
    AUTHORITY,
    EPOCH_S,
    SessionNode,
    Wire,
    address_of,
    certificate,
    cluster_trust,
    identity,
)

STEP_S = 0.01


class Target(Protocol):
    """``step`` tries one mutation and tells what became of it."""

    @property
    def name(self) -> str: ...

    def step(self, rng: random.Random) -> str: ...


def mutate(data: bytes, others: list[bytes], rng: random.Random) -> bytes:
    """One to four small changes."""
    changed = bytearray(data)
    for _ in range(rng.choice((1, 1, 1, 2, 4))):
        at = rng.randrange(len(changed) + 1)
        match rng.randrange(9):
            case 0 | 1:
                if changed:
                    changed[at % len(changed)] ^= 1 << rng.randrange(8)
            case 2:
                if changed:
                    changed[at % len(changed)] = rng.choice((0, 1, 0x7F, 0x80, 0xC0, 0xFF, rng.randrange(256)))
            case 3:
                del changed[at:]
            case 4:
                del changed[at : at + rng.randrange(1, 9)]
            case 5:
                changed[at:at] = rng.randbytes(rng.randrange(1, 9))
            case 6:
                changed[at : at + 8] = rng.randbytes(8)
            case 7:
                other = rng.choice(others)
                changed[at:] = other[rng.randrange(len(other)) :]
            case _:
                if changed:
                    start = rng.randrange(len(changed))
                    changed[at:at] = changed[start : start + rng.randrange(1, 40)]
    return bytes(changed[:2000])


class SessionTarget:
    """A member with open sessions and a handshake under way; whoever mutates has seen everything and has no key."""

    name = "datagram"

    def __init__(self) -> None:
        self.now = 0.0
        self.refresh()

    def refresh(self) -> None:
        """From the start, with certificates: also what a long run has done to the state is over then."""
        self.victim, self.peer, self.other = (SessionNode(number, trust=cluster_trust(number)) for number in (1, 2, 3))
        self.now = 0.0
        self.steps = 0
        wire = Wire(self.victim, self.peer, self.other)
        wire.open(self.victim, self.peer)
        handshakes = [data for _, data, to in wire.sent if to == self.victim.address]
        hello = self._greeting(self.other)
        sealed = [self.peer.say(self.victim, rng_body, 0.0) for rng_body in (b"x", b"y" * 60, b"z" * 1000)]
        refused = bytes((REFUSED,)) + hello[1:5] + b"\1"
        reset = bytes((RESET,)) + self.victim.say(self.peer, b"", 0.0)[1:9]
        self.corpus = [hello, hello, *sealed, *sealed, *handshakes, refused, reset]
        self.allowed = set(self.corpus)
        self.events_seen = len(self.victim.opened())
        self._ask_for_welcome()

    def _greeting(self, node: SessionNode) -> bytes:
        node.sessions.connect(self.victim.address, self.now)
        return node.sessions.datagrams_to_send(self.now)[0][0]

    def _ask_for_welcome(self) -> None:
        """A WELCOME that the victim waits for, and never gets as it is."""
        self.victim.sessions.connect(self.other.address, self.now)
        ((hello, _),) = self.victim.sessions.datagrams_to_send(self.now)
        self.other.sessions.receive(hello, self.victim.address, self.now)
        answers = [data for data, _ in self.other.sessions.datagrams_to_send(self.now) if data[0] == WELCOME]
        self.welcome = answers[-1] if answers else hello
        self.allowed |= {self.welcome, hello}
        self.welcomes = 0

    def step(self, rng: random.Random) -> str:
        self.now += STEP_S
        self.steps += 1
        use_welcome = rng.random() < 0.2
        original = self.welcome if use_welcome else rng.choice(self.corpus)
        data = mutate(original, self.corpus, rng)
        if data in self.allowed:
            return "unchanged"
        sessions = self.victim.sessions
        source = rng.choice((self.peer.address, self.other.address, address_of(9)))
        try:
            received = sessions.receive(data, source, self.now)
            outcome = "ignored"
        except UnknownKindError:
            received, outcome = None, "other version"
        except RemoteProtocolError:
            received, outcome = None, "refused"
        assert received is None, f"accepted without the key: {data.hex()}"
        self.welcomes += use_welcome
        if self.welcomes >= MAX_BAD_ANSWERS or self.steps % int(GIVE_UP_S / STEP_S / 2) == 0:
            self._check()
        return outcome

    def _check(self) -> None:
        sessions = self.victim.sessions
        sessions.validate()
        assert set(sessions.peers()) == {self.peer.node_id}, "a session was opened without the key"
        assert not [event for event in sessions.events() if isinstance(event, SessionOpened)]
        self.refresh()


class RecordingSessions(Sessions):
    """Notes every body before it is sealed."""

    said: list[bytes]

    def seal(self, node_id: NodeId, body: bytes, now: float) -> bytes:
        if body and len(self.said) < 20_000:
            self.said.append(body)
        return super().seal(node_id, body, now)


class OverlayTarget:
    """A small overlay in which one member, with a key of its own, seals what it likes to another."""

    name = "message of a member"

    def __init__(self) -> None:
        self.refresh()

    def refresh(self) -> None:
        """Let a few nodes meet; all that they say to each other is what is mutated then."""
        self.now = 0.0
        self.steps = 0
        self.said: list[bytes] = []
        self.nodes = {address_of(number): self._node(number) for number in range(1, 7)}
        first, *others = self.nodes
        for address in others:
            self.nodes[address].join(first, self.now)
        for _ in range(200):
            self._turn(0.05)
        self.nodes[others[0]].search(NearestTo(origin(OverlayConfig().dimensions)), 3, self.now)
        self._turn(0.05)
        self._turn(0.05)
        self.victim, self.liar = self.nodes[first], self.nodes[others[-1]]
        self.corpus = sorted(set(self.said))
        #: Pings and pongs are most of it: each kind has the same chance.
        self.by_kind: dict[bytes, list[bytes]] = {}
        for body in self.corpus:
            self.by_kind.setdefault(body[:2], []).append(body)
        self.said.clear()

    def _node(self, number: int) -> Overlay:
        record = NodeRecord(f"{number:032x}", f"n{number}", *address_of(number), boot_id=1, coordinate=origin(2))
        rng = random.Random(number)
        sessions = RecordingSessions(FakeSuite(record.node_id, 1, rng), record.node_id, 1, rng, self.now)
        sessions.said = self.said
        return Overlay(record, OverlayConfig(), rng, self.now, sessions)

    def _turn(self, seconds: float) -> None:
        self.now += seconds
        for address, node in self.nodes.items():
            if (node.next_timer() or math.inf) <= self.now:
                node.handle_timer(self.now)
            for data, to in node.datagrams_to_send(self.now):
                if to in self.nodes:
                    self.nodes[to].receive(data, address, self.now)
            list(node.events())

    def step(self, rng: random.Random) -> str:
        self.steps += 1
        kind = rng.choice(list(self.by_kind))
        body = mutate(rng.choice(self.by_kind[kind]), self.corpus, rng)[:MAX_BODY_BYTES] or b"\0"
        victim, liar = self.victim, self.liar
        if not liar._sessions.is_open(victim.record.node_id):
            self.refresh()
            return "session lost"
        before = victim.counters["dropped.malformed"] + victim.counters["dropped.unknown"]
        data = liar._sessions.seal(victim.record.node_id, body, self.now)
        victim.receive(data, liar.record.address, self.now)
        dropped = victim.counters["dropped.malformed"] + victim.counters["dropped.unknown"] - before
        if self.steps % 20 == 0:
            self._turn(0.05)
        if self.steps % 100 == 0:
            victim.validate()
        if self.steps % 5000 == 0:
            self.refresh()
        return "refused" if dropped else "taken"


class FakeFrames:
    """One frame in, whatever out."""

    def __init__(self, *bodies: bytes) -> None:
        self.bodies = list(bodies)
        self.sent: list[bytes] = []

    async def receive(self) -> bytes | None:
        return self.bodies.pop(0) if self.bodies else None

    async def send(self, body: bytes) -> None:
        self.sent.append(body)


def run_without_loop(function: Callable[..., Coroutine[Any, Any, object]], *arguments: object) -> None:
    """Run an async function that never really waits; what it raises is raised here."""
    coroutine = function(*arguments)
    try:
        coroutine.send(None)
    except StopIteration:
        return
    raise AssertionError("it waits")


class ControlTarget:
    """The control socket: raw bytes of a stream of frames, cut anywhere."""

    name = "control frame"

    def __init__(self) -> None:
        self.control = Control(Path("/nonexistent"))

        async def carry_out(request: object) -> Done:
            assert isinstance(request, get_args(Request))
            return Done("")

        for kind in get_args(Request):
            self.control.handle(kind, carry_out)
        requests = (Status(), Join("192.0.2.7:7400", "sbon1-x"), Latency("a", "b"), Submit("INSERT INTO a SELECT 1"))
        self.corpus = [
            frame(msgspec.msgpack.encode(Call(CONTROL_VERSION, number, msgspec.Raw(msgspec.msgpack.encode(request)))))
            for number, request in enumerate(requests)
        ]

    def step(self, rng: random.Random) -> str:
        data = mutate(rng.choice(self.corpus), self.corpus, rng)
        reader = FrameReader(1 << 20)
        try:
            bodies = list(reader.receive(data))
        except RemoteProtocolError:
            return "refused"
        outcome = "unfinished"
        for body in bodies:
            outcome = self._call(body)
        return outcome

    def _call(self, body: bytes) -> str:
        frames = FakeFrames()
        run_without_loop(self.control._serve_call, body, frames)
        answer = msgspec.msgpack.decode(frames.sent[0], type=Answer)
        assert answer.error_kind != "InternalError", body.hex()
        return "answered" if answer.error is None else "refused"


class Question(msgspec.Struct, frozen=True):
    text: str
    numbers: tuple[int, ...] = ()
    records: tuple[NodeRecord, ...] = ()


class RequestTarget:
    """A request inside TLS, by a member who says what it likes."""

    name = "request frame"

    def __init__(self, folder: Path) -> None:
        tls = PeerTls(identity(1), cluster_trust(1), lambda: 0.0)
        self.requests = PeerRequests(tls, 1, folder, 2)
        self.caller = Caller(identity(2).node_id, identity(2).public_key, None)

        async def answer(message: Question, sender: NodeId) -> Question:
            assert isinstance(message, Question)
            assert sender == self.caller.node_id, "somebody passed for another"
            for record in message.records:
                record.check(2)
            return message

        self.requests.handle(Question, answer)
        record = NodeRecord(self.caller.node_id, "node-2", "192.0.2.7", 7400, 1, origin(2))
        bodies = (Question("hello"), Question("", tuple(range(30))), Question("", (), (record, record)))
        self.corpus = [
            msgspec.msgpack.encode(
                RequestEnvelope(
                    REQUEST_VERSION, self.caller.node_id, 1, target, kind, msgspec.Raw(msgspec.msgpack.encode(body))
                )
            )
            for body in bodies
            for kind, target in (("Question", ""), ("Question", identity(1).node_id), ("Unknown", ""))
        ]

    def step(self, rng: random.Random) -> str:
        frames = FakeFrames()
        try:
            request = mutate(rng.choice(self.corpus), self.corpus, rng)
            run_without_loop(self.requests._serve_request, request, frames, self.caller)
        except RemoteProtocolError:
            return "refused"
        reply = msgspec.msgpack.decode(frames.sent[0], type=ReplyEnvelope)
        assert "see that node's log" not in reply.error
        return "refused" if reply.error_kind else "answered"


class ProofTarget:
    """What shows who somebody is: introductions, X.509, certificates, revocation lists."""

    name = "proof"

    def __init__(self) -> None:
        self.tls = PeerTls(identity(1), cluster_trust(1), lambda: 0.0)
        self.tls._refresh()
        self.own_der = self.tls._own_der
        caller = PeerTls(identity(2), cluster_trust(2), lambda: 0.0)
        revocations = RevocationList.issue(AUTHORITY, 3, EPOCH_S, {identity(n).node_id: (n, EPOCH_S) for n in (4, 5)})
        self.introduction = msgspec.msgpack.encode(caller._introduction(self.own_der))
        self.certificate = certificate(2).encode()
        self.revocations = revocations.encode()
        self.corpus = [self.introduction, self.own_der, self.certificate, self.revocations]

    def step(self, rng: random.Random) -> str:
        original = rng.choice(self.corpus)
        data = mutate(original, self.corpus, rng)
        if data in self.corpus:
            return "unchanged"
        try:
            if original is self.introduction:
                caller = self.tls._check_client(data, self.own_der)
                # Some bytes say the same: but then it is the same node that says it.
                assert caller.node_id == identity(2).node_id
            elif original is self.own_der:
                _read_x509(data)
            elif original is self.certificate:
                assert not Certificate.decode(data).is_signed_by(AUTHORITY.public_key)
            else:
                assert not RevocationList.decode(data).is_signed_by(AUTHORITY.public_key)
        except RemoteProtocolError:
            return "refused"
        return "not signed" if original is not self.introduction else "same node"


async def _fuzz(count: int, seed: int, folder: Path, show: Callable[[int], None]) -> Counter[str]:
    rng = random.Random(seed)
    # Datagrams come from anybody, so most of the effort is theirs.
    targets: list[Target] = [SessionTarget(), SessionTarget(), ControlTarget(), RequestTarget(folder), ProofTarget()]
    targets += [OverlayTarget()]
    outcomes: Counter[str] = Counter()
    for number in range(count):
        target = targets[number % len(targets)]
        outcomes[f"{target.name}: {target.step(rng)}"] += 1
        if number % 20_000 == 0:
            show(number)
    return outcomes


def fuzz(count: int, seed: int, show: Callable[[int], None] = lambda number: None) -> Counter[str]:
    """Try ``count`` mutations; returns how often what became of them. AssertionError, or whatever got through."""
    with tempfile.TemporaryDirectory() as folder:
        return trio.run(_fuzz, count, seed, Path(folder) / "scratch", show)


def main() -> None:
    parser = argparse.ArgumentParser(description="Mutate what comes over the wire, and look what becomes of it.")
    parser.add_argument("--count", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    print(f"seed {arguments.seed}", flush=True)
    outcomes = fuzz(arguments.count, arguments.seed, lambda number: print(number, file=sys.stderr, flush=True))
    for outcome, times in sorted(outcomes.items()):
        print(f"{times:9d}  {outcome}")
    print(f"{outcomes.total():9d}  in all: none raised past the wire layer, none was accepted without the key")


if __name__ == "__main__":
    main()
