"""Sessions: a key per pair of nodes and boot, behind which every other datagram is sealed (DESIGN: Trust). Sans-I/O.

Theory of operation. The one who wants to talk sends a HELLO: who it is, and a fresh salt. The other answers with a
WELCOME: who *it* is, a fresh salt of its own, and a proof that it has the keys that follow from both. With that the
session is open for the first; an empty sealed datagram opens it for the second, who until then holds it as *tentative*
and goes on with what it had. So nobody can close or replace a session by repeating somebody's old HELLO.

* Both at once: if each has a HELLO on its way to the other, the one of the smaller node id is answered. To the other
  one it is said again, as it may have got lost; once it is given up, the loser's turn comes.
* New keys for the same boot replace the old ones, which still open what is on its way for a while. A new boot replaces
  the sessions of the boot before; an older boot than the open one is refused while that one is in use (a clock may have
  been set back, so not for ever).
* Data for an unknown session index is answered with a RESET that repeats its index and counter. Whoever sent it shakes
  hands anew, and keeps what it has until that has succeeded: forged resets cost a handshake per second at most.
* A HELLO that is not accepted is answered with a REFUSED. It is not authenticated and only explains a failure.

What a session and a handshake weigh is bounded by tables and budgets; what they refuse is counted. How keys are made
and datagrams sealed is the :class:`Suite`'s business: :mod:`overlay.sealing`, or a fake one in simulations. How the
datagrams look is in :mod:`overlay.session_wire`.
"""

from __future__ import annotations

import math
import random
from collections import deque
from collections.abc import Callable, Collection
from typing import Final

from overlay.bucket import Bucket
from overlay.certificates import Refusal, RefusedError
from overlay.identity import NodeId
from overlay.records import Address
from overlay.session import WINDOW, Answer, Attempt, Session
from overlay.session_events import Received, SessionEvent, SessionOpened
from overlay.session_output import SessionOutput
from overlay.session_wire import (
    HEAD,
    HEADER_BYTES,
    HELLO,
    HELLO_HEAD_BYTES,
    MAX_BODY_BYTES,
    MAX_HANDSHAKE_BYTES,
    REFUSED,
    REFUSED_LAYOUT,
    RESET,
    SEALED,
    SESSION_VERSION,
    WELCOME,
    WELCOME_HEAD_BYTES,
)
from overlay.suite import TAG_BYTES, Claims, Suite
from sbon.errors import RemoteProtocolError, UnavailableError, UnknownKindError

#: New keys are made long before the counter, four bytes on the wire, is used up.
RENEW_COUNTER: Final = 2**31
MAX_COUNTER: Final = 2**32 - 1

FIRST_RETRY_S: Final = 0.3
GIVE_UP_S: Final = 3.0
#: How long an answered HELLO may remain unconfirmed.
TENTATIVE_S: Final = 10.0
#: How long replaced keys still open what was on its way.
RETIRED_S: Final = 10.0
#: Sessions are made anew so long before the peer's certificate expires, by then with its new one.
RENEW_BEFORE_S: Final = 600.0
#: At most one renewal per session in so long that was not asked for by :meth:`Sessions.connect`.
RENEW_PERIOD_S: Final = 60.0
RESET_PERIOD_S: Final = 1.0
#: A session is in use for so long after the last datagram.
IN_USE_S: Final = 30.0
CHECK_PERIOD_S: Final = 30.0

MAX_ATTEMPTS: Final = 32
MAX_TENTATIVE: Final = 64
MAX_BAD_ANSWERS: Final = 8
#: Handshakes answered per second: at 0.5 ms each, a tenth of a core.
HELLOS_PER_S: Final = 200.0


class Sessions:
    """All sessions of one node."""

    def __init__(
        self,
        suite: Suite,
        node_id: NodeId,
        boot_id: int,
        rng: random.Random,
        now: float,
        capacity: int = 64,
    ) -> None:
        """At most ``capacity`` peers: the one not used for longest makes room, unless it is kept."""
        self.node_id = node_id
        self.boot_id = boot_id
        #: Whose session is not to make room.
        self.is_kept: Callable[[NodeId], bool] = lambda node_id: False
        self._suite = suite
        self._rng = rng
        self._capacity = capacity
        self._peers: dict[NodeId, Session] = {}
        self._by_index: dict[int, Session] = {}
        self._attempts: dict[Address, Attempt] = {}
        self._attempt_by_index: dict[int, Attempt] = {}
        self._answers: dict[NodeId, Answer] = {}
        self._retired: deque[tuple[float, Session]] = deque()
        self._hellos = Bucket(HELLOS_PER_S, HELLOS_PER_S, now)
        self._output = SessionOutput(now)
        #: What :meth:`datagrams_to_send` and :meth:`events` would return: to see that there is nothing.
        self.outgoing = self._output.outgoing
        self.happened = self._output.happened
        self._timer = math.inf
        self._check_at = math.inf
        #: "hello_sent", "welcome_sent", "opened", "failed", "evicted", "refused", "over_budget", "forged", ...
        self.counters = self._output.counters

    # --- reading

    def is_open(self, node_id: NodeId) -> bool:
        return node_id in self._peers

    def peers(self) -> Collection[NodeId]:
        """Those with whom a session is open."""
        return self._peers.keys()

    def certified_name(self, node_id: NodeId) -> str:
        """The name that the authority has certified for a peer; empty in an open overlay, where all are free."""
        session = self._peers.get(node_id)
        return "" if session is None else session.name

    def validate(self) -> None:
        """Assert what must always hold; for tests and simulations."""
        assert len(self._peers) <= self._capacity
        assert len(self._answers) <= MAX_TENTATIVE
        assert len(self._attempts) <= MAX_ATTEMPTS
        self._output.validate()
        expected: set[int] = set()
        for node_id, session in self._peers.items():
            assert session.node_id == node_id != self.node_id
            assert not session.tentative
            expected.add(session.index)
            if session.previous is not None:
                assert session.previous.previous is None
                assert session.previous.boot_id == session.boot_id
                expected.add(session.previous.index)
        for node_id, answer in self._answers.items():
            assert answer.session.node_id == node_id
            assert answer.session.tentative
            expected.add(answer.session.index)
        assert set(self._by_index) == expected
        assert all(session.index == index for index, session in self._by_index.items())
        assert {attempt.index for attempt in self._attempts.values()} == set(self._attempt_by_index)
        assert not expected & set(self._attempt_by_index)
        assert all(session.missing >> WINDOW == 0 for session in self._by_index.values())
        assert all(session.highest <= MAX_COUNTER >= session.sent for session in self._by_index.values())

    # --- verbs

    def connect(self, address: Address, now: float, node_id: NodeId | None = None) -> None:
        """Shake hands with ``node_id``, or whoever is at ``address``; ends with an event. Does nothing while it is
        under way there."""
        attempt = self._attempts.get(address)
        if attempt is not None:
            attempt.expected = attempt.expected or node_id
        elif node_id == self.node_id:
            self._output.fail(address, node_id, Refusal.OWN_ADDRESS.text)
        elif len(self._attempts) >= MAX_ATTEMPTS:
            self._output.fail(address, node_id, "too many handshakes at once: try again")
        else:
            index, salt = self._new_index(), self._suite.salt()
            hello = b"".join((bytes((HELLO,)), index.to_bytes(4, "big"), salt, self._suite.credentials))
            attempt = Attempt(index, address, node_id, hello, salt, now + GIVE_UP_S, now, FIRST_RETRY_S)
            self._attempts[address] = self._attempt_by_index[index] = attempt
            self._send_hello(attempt, now)

    def knock(self, address: Address, now: float, node_id: NodeId) -> None:
        """Have ``node_id`` answer, if it lives: a handshake if no session is open, one HELLO more if one is under way.
        By itself a handshake says hello four times, which is enough for who need not be found."""
        if (attempt := self._attempts.get(address)) is not None:
            self._output.send(attempt.hello, address, "hello_sent")
        elif node_id not in self._peers:
            self.connect(address, now, node_id)

    def seal(self, node_id: NodeId, body: bytes, now: float) -> bytes:
        """A datagram for ``node_id``. Raises UnavailableError if no session is open, ValueError if ``body`` is over
        MAX_BODY_BYTES."""
        session = self._peers.get(node_id)
        if session is None:
            raise UnavailableError(f"no session with node {node_id}: it must shake hands first")
        if len(body) > MAX_BODY_BYTES:
            raise ValueError(f"a datagram of {len(body)} bytes is over the limit of {MAX_BODY_BYTES}")
        session.sent = counter = session.sent + 1
        if counter >= RENEW_COUNTER:
            self._renew_used_up(session, now)
        session.used_at = now
        return session.channel.seal(counter, HEAD.pack(SEALED, session.remote_index, counter), body)

    def receive(self, data: bytes, source: Address, now: float) -> Received | None:
        """Take a datagram. None if there is nothing in it for others; RemoteProtocolError if it is to be counted as
        malformed, its subclass UnknownKindError if it may be of a newer version."""
        if len(data) < HEADER_BYTES or data[0] != SEALED:
            self._receive_handshake(data, source, now)
            return None
        _, index, counter = HEAD.unpack_from(data)
        session = self._by_index.get(index)
        if session is None:
            self._output.hint(HEAD.pack(RESET, index, counter), source, now, "unknown_index")
            return None
        ahead = counter - session.highest
        if ahead <= 0 and (ahead <= -WINDOW or not session.missing >> -ahead & 1):
            self.counters["replayed"] += 1
            raise RemoteProtocolError("a datagram that was here before, or is far too late")
        body = session.channel.open(counter, data, HEADER_BYTES)
        if body is None or counter >= MAX_COUNTER:
            self.counters["forged"] += 1
            raise RemoteProtocolError("a datagram that its sender did not seal")
        if ahead == 1 and not session.missing:
            session.highest = counter
        else:
            session.mark(ahead)
        session.used_at = now
        if session.tentative:
            self._confirm(session, now)
        if not body:
            return None
        return Received(session.node_id, session.boot_id, body)

    def close(self, node_id: NodeId) -> None:
        """Forget the peer: at once, without a word, and with everything under way."""
        session = self._peers.pop(node_id, None)
        if session is not None:
            self._drop(session)
        answer = self._answers.pop(node_id, None)
        if answer is not None:
            del self._by_index[answer.session.index]
        for attempt in [a for a in self._attempts.values() if a.expected == node_id]:
            self._end_attempt(attempt)

    def renew(self, now: float) -> None:
        """Shake hands anew with every peer, as far as there is room: this node has a new certificate."""
        for attempt in list(self._attempts.values()):
            self._end_attempt(attempt)
            self.connect(attempt.address, now, attempt.expected)
        for session in list(self._peers.values()):
            if len(self._attempts) < MAX_ATTEMPTS:
                self.connect(session.address, now, session.node_id)

    def datagrams_to_send(self, now: float) -> list[tuple[bytes, Address]]:
        """Handshakes to be sent now."""
        return self._output.datagrams()

    def events(self) -> list[SessionEvent]:
        """What has happened since the last call."""
        return self._output.events()

    # --- time

    def next_timer(self) -> float:
        """When :meth:`handle_timer` wants to be called; infinity if never. It may turn out to have been too early."""
        return self._timer

    def handle_timer(self, now: float) -> None:
        if now < self._timer:
            return
        for attempt in list(self._attempts.values()):
            if now >= attempt.give_up_at:
                self._end_attempt(attempt)
                self._output.fail(attempt.address, attempt.expected, attempt.reason)
            elif now >= attempt.retry_at:
                self._send_hello(attempt, now)
        for node_id, answer in list(self._answers.items()):
            if now >= answer.forget_at:
                del self._answers[node_id]
                del self._by_index[answer.session.index]
        while self._retired and self._retired[0][0] <= now:
            _, session = self._retired.popleft()
            current = self._peers.get(session.node_id)
            if current is not None and current.previous is session:
                current.previous = None
                del self._by_index[session.index]
        if now >= self._check_at:
            self._check_expiry(now)
        self._timer = min(
            [self._check_at]
            + [min(attempt.retry_at, attempt.give_up_at) for attempt in self._attempts.values()]
            + [answer.forget_at for answer in self._answers.values()]
            + [at for at, _ in self._retired][:1]
        )

    def _wake_at(self, time: float) -> None:
        self._timer = min(self._timer, time)

    def _check_expiry(self, now: float) -> None:
        self._check_at = math.inf
        for session in list(self._peers.values()):
            if session.expires_at <= now:
                self.close(session.node_id)
                self._output.fail(session.address, session.node_id, Refusal.EXPIRED.text)
            elif session.expires_at < math.inf:
                self._check_at = now + CHECK_PERIOD_S
                if session.expires_at - now < RENEW_BEFORE_S:
                    self._renew(session, now, RENEW_PERIOD_S)

    def _renew(self, session: Session, now: float, period_s: float) -> None:
        if now >= session.renew_at and len(self._attempts) < MAX_ATTEMPTS:
            session.renew_at = now + period_s
            self.counters["renewed"] += 1
            self.connect(session.address, now, session.node_id)

    def _renew_used_up(self, session: Session, now: float) -> None:
        if session.sent >= MAX_COUNTER:
            session.sent -= 1
            raise UnavailableError(f"the session with node {session.node_id} is used up: it is being renewed")
        self._renew(session, now, RENEW_PERIOD_S)

    # --- handshakes

    def _receive_handshake(self, data: bytes, source: Address, now: float) -> None:
        if not data:
            raise RemoteProtocolError("an empty datagram")
        kind = data[0]
        if kind == HELLO and HELLO_HEAD_BYTES < len(data) <= MAX_HANDSHAKE_BYTES:
            self._on_hello(data, source, now)
        elif kind == WELCOME and WELCOME_HEAD_BYTES + TAG_BYTES < len(data) <= MAX_HANDSHAKE_BYTES:
            self._on_welcome(data, now)
        elif kind == RESET and len(data) == HEAD.size:
            self._on_reset(data, source, now)
        elif kind == REFUSED and len(data) == REFUSED_LAYOUT.size:
            self._on_refused(data)
        elif kind >> 4 != SESSION_VERSION or kind > REFUSED or kind < HELLO:
            raise UnknownKindError(f"a datagram of an unknown kind or version: {kind:#04x}")
        else:
            raise RemoteProtocolError(f"a datagram of kind {kind:#04x} with {len(data)} bytes")

    def _on_hello(self, hello: bytes, source: Address, now: float) -> None:
        if not self._hellos.take(1, now):
            self.counters["over_budget"] += 1
            return
        remote_index = int.from_bytes(hello[1:5], "big")
        try:
            claims = self._suite.check(hello[HELLO_HEAD_BYTES:], now)
            self._check_claims(claims.node_id, claims.boot_id, now)
            if (ours := self._that_counts(claims.node_id, source)) is not None:
                self._output.send(ours.hello, source, "crossed")
                return
            answer = self._answers.get(claims.node_id)
            if answer is None or answer.hello != hello:
                answer = self._answer(hello, remote_index, source, claims, now)
        except RefusedError as error:
            self._output.hint(REFUSED_LAYOUT.pack(REFUSED, remote_index, error.refusal), source, now, "refused")
            raise
        self._output.send(answer.welcome, source, "welcome_sent")

    def _check_claims(self, node_id: NodeId, boot_id: int, now: float) -> None:
        """Raise RefusedError unless a session with that boot of that node can be opened now."""
        if node_id == self.node_id:
            raise RefusedError(Refusal.OWN_ADDRESS)
        current = self._peers.get(node_id)
        if current is None:
            if len(self._peers) >= self._capacity and self._least_needed() is None:
                raise RefusedError(Refusal.FULL)
        elif boot_id < current.boot_id and now - current.used_at < IN_USE_S:
            raise RefusedError(Refusal.OLD_BOOT)

    def _that_counts(self, node_id: NodeId, source: Address) -> Attempt | None:
        """The HELLO of ours that is on its way to the same node, if it takes precedence over theirs."""
        attempt = self._attempts.get(source) if self.node_id < node_id else None
        return attempt if attempt is not None and attempt.expected in (None, node_id) else None

    def _answer(self, hello: bytes, remote_index: int, source: Address, claims: Claims, now: float) -> Answer:
        index, salt = self._new_index(), self._suite.salt()
        head = HEAD.pack(WELCOME, remote_index, index)
        said = b"".join((head, salt, self._suite.credentials))
        salts = hello[5:HELLO_HEAD_BYTES] + salt
        channel = self._suite.agree(claims, salts, hello + said, initiator=False)
        session = Session(index, remote_index, source, claims, channel)
        old = self._answers.pop(claims.node_id, None)
        if old is None and len(self._answers) >= MAX_TENTATIVE:
            self.counters["tentative_evicted"] += 1
            old = self._answers.pop(next(iter(self._answers)))
        if old is not None:
            del self._by_index[old.session.index]
        answer = Answer(hello, channel.seal(0, said, b""), session, now + TENTATIVE_S)
        self._answers[claims.node_id] = answer
        self._by_index[index] = session
        self._wake_at(answer.forget_at)
        return answer

    def _on_welcome(self, welcome: bytes, now: float) -> None:
        _, index, remote_index = HEAD.unpack_from(welcome)
        attempt = self._attempt_by_index.get(index)
        if attempt is None or attempt.bad_answers >= MAX_BAD_ANSWERS:
            self.counters["unexpected_welcome"] += 1
            return
        try:
            session = self._open_welcome(attempt, welcome, remote_index, now)
        except RemoteProtocolError as error:
            attempt.bad_answers += 1
            attempt.reason = f"its answer is not accepted: {error}"
            raise
        self._end_attempt(attempt)
        self._by_index[session.index] = session
        self._install(session, now)
        self._output.send(self.seal(session.node_id, b"", now), session.address, "confirm_sent")

    def _open_welcome(self, attempt: Attempt, welcome: bytes, remote_index: int, now: float) -> Session:
        said = welcome[:-TAG_BYTES]
        claims = self._suite.check(said[WELCOME_HEAD_BYTES:], now)
        self._check_claims(claims.node_id, claims.boot_id, now)
        if attempt.expected not in (None, claims.node_id):
            raise RemoteProtocolError("another node has that address now")
        salts = attempt.salt + said[HEADER_BYTES:WELCOME_HEAD_BYTES]
        channel = self._suite.agree(claims, salts, attempt.hello + said, initiator=True)
        if channel.open(0, welcome, len(said)) is None:
            raise RefusedError(Refusal.FORGED)
        return Session(attempt.index, remote_index, attempt.address, claims, channel)

    def _on_reset(self, data: bytes, source: Address, now: float) -> None:
        _, remote_index, counter = HEAD.unpack(data)
        for session in self._peers.values():
            # The counter shows that whoever sent this has seen a datagram of ours.
            if session.remote_index == remote_index and session.address == source:
                if session.sent - WINDOW < counter <= session.sent:
                    self.counters["reset"] += 1
                    self._renew(session, now, RESET_PERIOD_S)
                    return
                break
        self.counters["unexpected_reset"] += 1

    def _on_refused(self, data: bytes) -> None:
        _, index, code = REFUSED_LAYOUT.unpack(data)
        attempt = self._attempt_by_index.get(index)
        if attempt is None:
            self.counters["unexpected_refusal"] += 1
            return
        try:
            refusal = Refusal(code)
        except ValueError:
            attempt.reason = f"it refuses this node (reason {code})"
            return
        attempt.reason = f"it refuses this node: {refusal.text_for_refused}"

    def _confirm(self, session: Session, now: float) -> None:
        """The peer has shown that it has the keys. Much may have changed since it was answered."""
        del self._answers[session.node_id]
        try:
            self._check_claims(session.node_id, session.boot_id, now)
        except RefusedError:
            del self._by_index[session.index]
            raise
        self._install(session, now)

    def _install(self, session: Session, now: float) -> None:
        """Make ``session`` the one that is used for its peer."""
        session.tentative = False
        session.used_at = now
        old = self._peers.get(session.node_id)
        if old is None:
            self._make_room()
        elif old.boot_id != session.boot_id:
            self._drop(old)
        else:
            if old.previous is not None:
                del self._by_index[old.previous.index]
                old.previous = None
            session.previous = old
            session.renew_at = old.renew_at
            self._retired.append((now + RETIRED_S, old))
            self._wake_at(now + RETIRED_S)
        self._peers[session.node_id] = session
        if session.expires_at < math.inf:
            self._check_at = min(self._check_at, now + CHECK_PERIOD_S)
            self._wake_at(self._check_at)
        attempt = self._attempts.get(session.address)
        if attempt is not None and attempt.expected in (None, session.node_id):
            self._end_attempt(attempt)
        self.counters["opened"] += 1
        self._output.tell(SessionOpened(session.node_id, session.boot_id, session.address))

    def _make_room(self) -> None:
        if len(self._peers) >= self._capacity:
            least_needed = self._least_needed()
            assert least_needed is not None  # else it was refused
            self.counters["evicted"] += 1
            self.close(least_needed)

    def _least_needed(self) -> NodeId | None:
        free = [session for session in self._peers.values() if not self.is_kept(session.node_id)]
        return min(free, key=lambda session: session.used_at).node_id if free else None

    def _drop(self, session: Session) -> None:
        del self._by_index[session.index]
        if session.previous is not None:
            del self._by_index[session.previous.index]
            session.previous = None

    def _new_index(self) -> int:
        while True:
            index = self._rng.getrandbits(32)
            if index not in self._by_index and index not in self._attempt_by_index:
                return index

    def _send_hello(self, attempt: Attempt, now: float) -> None:
        self._output.send(attempt.hello, attempt.address, "hello_sent")
        attempt.retry_at = now + attempt.retry_after_s
        attempt.retry_after_s *= 2
        self._wake_at(min(attempt.retry_at, attempt.give_up_at))

    def _end_attempt(self, attempt: Attempt) -> None:
        del self._attempts[attempt.address]
        del self._attempt_by_index[attempt.index]
