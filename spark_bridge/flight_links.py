"""Links between engines over Arrow Flight: consumers pull segments and acknowledge what they will not need again.

Requests carry (fragment, generation, consumer). The server refuses a generation that is not the one it serves, the
client a segment that is newer than what it was pointed at: nobody listens to a former owner.

A reader may pull through another one, which relays what it pulls itself (:mod:`spark_bridge.relay`).

Links are inside TLS. Each engine makes a certificate and a secret when it starts. Both come to consumers with its
address, from daemon to daemon, over requests in which both sides are known: so a consumer accepts that certificate
only, and a server only those who know the secret.
"""

from __future__ import annotations

import hmac
import math
import sqlite3
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Protocol

import msgspec
import pyarrow as pa
from pyarrow import flight

from sbon.engine_messages import FlightAddress
from sbon.errors import RemoteProtocolError
from sbon.frames import decode_body
from spark_bridge.link_credentials import TLS_NAME, LinkCredentials, to_pem
from spark_bridge.link_log import LinkLog, LogFaultError
from spark_bridge.port_inbox import PortInbox, Segment
from spark_bridge.relay import NotHereError, Relay
from spark_bridge.segment import decode_segment
from spark_bridge.statistics import SMOOTHING_S, RateMeter

_PULL = "pull"
_RELAY = "relay"
_ACKNOWLEDGE = "acknowledge"
_IDLE_S = 1.0  # how long a pull waits for the next segment before the consumer asks again
_RETRY_S = 0.5
#: A host that is cut off closes no connection. A pull says something each second, so silence means that it has gone.
_KEEPALIVE = [("grpc.keepalive_time_ms", 5000), ("grpc.keepalive_timeout_ms", 5000)]
_MAX_UNREAD_BYTES = 64 * 1024 * 1024
#: After a relay had not what was asked for, the producer itself is pulled for so long, twice as long each time at most;
#: and once when the relay said nothing. No request to one takes longer than the last of these.
_RELAY_REST_S = 2.0
_LONGEST_RELAY_REST_S = 60.0
_RELAY_SILENCE_S = 10.0
_RELAY_CALL_S = 20.0


class PullRequest(msgspec.Struct, frozen=True):
    """Segments of ``fragment_id`` from ``from_batch`` on."""

    fragment_id: str
    generation: int
    consumer: str
    from_batch: int
    secret: bytes = b""


class Acknowledgement(msgspec.Struct, frozen=True):
    """``consumer`` has read ``up_to_batch`` and all before it for good."""

    fragment_id: str
    generation: int
    consumer: str
    up_to_batch: int
    secret: bytes = b""


_PULLS = msgspec.msgpack.Decoder(PullRequest)
_ACKNOWLEDGEMENTS = msgspec.msgpack.Decoder(Acknowledgement)


@dataclass(frozen=True, slots=True)
class Served:
    """A log that may be pulled, under which generation, until ``stopping``, and while its owner ``is_owner``."""

    log: LinkLog
    generation: int
    stopping: threading.Event
    is_owner: Callable[[], bool] = lambda: True
    #: Told what is wrong with the log.
    fault: Callable[[str], None] = lambda _: None


class Directory(Protocol):
    """What the server asks: which log a fragment has here, None if it does not run here; and what is kept of one that
    is read here, None if it is not."""

    def served(self, fragment_id: str) -> Served | None: ...

    def relayed(self, fragment_id: str) -> Relay | None: ...


class LinkServer(flight.FlightServerBase):  # type: ignore[misc]
    """Serves the link logs of one engine."""

    def __init__(self, bind_host: str, directory: Directory) -> None:
        self._credentials = LinkCredentials.generate()
        pair = (self._credentials.certificate_pem, self._credentials.key_pem)
        super().__init__(f"grpc+tls://{bind_host}:0", tls_certificates=[pair])
        self._bind_host = bind_host
        self._directory = directory

    @property
    def address(self) -> FlightAddress:
        """What consumers need to know."""
        return FlightAddress(self._bind_host, self.port, self._credentials.certificate, self._credentials.secret)

    def do_action(self, context: flight.ServerCallContext, action: flight.Action) -> Iterator[flight.Result]:
        body = action.body.to_pybytes()
        try:
            if action.type == _PULL:
                return self._pull(decode_body(_PULLS, body))
            if action.type == _RELAY:
                return self._relay(decode_body(_PULLS, body))
            if action.type == _ACKNOWLEDGE:
                return self._acknowledge(decode_body(_ACKNOWLEDGEMENTS, body))
        except RemoteProtocolError as error:
            raise flight.FlightServerError(str(error)) from None
        raise flight.FlightServerError(f"unknown request {action.type!r}")

    def _pull(self, request: PullRequest) -> Iterator[flight.Result]:
        served = self._served(request)
        try:
            for data in served.log.segments_from(request.from_batch, _IDLE_S, served.stopping):
                if not served.is_owner():
                    return
                yield flight.Result(pa.py_buffer(data))
        except LogFaultError as error:
            served.fault(str(error))
            raise flight.FlightServerError(str(error)) from None

    def _relay(self, request: PullRequest) -> Iterator[flight.Result]:
        self._check_secret(request)
        relay = self._directory.relayed(request.fragment_id)
        if relay is None:
            raise flight.FlightUnavailableError(f"{request.fragment_id} is not read here")
        try:
            for data in relay.segments_from(request.from_batch, _IDLE_S):
                yield flight.Result(pa.py_buffer(data))
        except NotHereError as error:
            raise flight.FlightUnavailableError(str(error)) from None

    def _acknowledge(self, request: Acknowledgement) -> Iterator[flight.Result]:
        self._served(request).log.acknowledge(request.consumer, request.up_to_batch)
        return iter(())

    def _check_secret(self, request: PullRequest | Acknowledgement) -> None:
        if not hmac.compare_digest(request.secret, self._credentials.secret):
            raise flight.FlightUnauthorizedError("whoever pulls from here knows this engine's secret")

    def _served(self, request: PullRequest | Acknowledgement) -> Served:
        self._check_secret(request)
        fragment_id, generation = request.fragment_id, request.generation
        served = self._directory.served(fragment_id)
        if served is None or served.stopping.is_set():
            raise flight.FlightUnavailableError(f"{fragment_id} does not run here")
        if not served.is_owner():
            raise flight.FlightUnavailableError(f"{fragment_id} may have another owner by now")
        if served.generation != generation:
            raise flight.FlightUnavailableError(
                f"{fragment_id} is served under generation {served.generation} here, not {generation}"
            )
        return served


def connect(address: FlightAddress) -> flight.FlightClient:
    """A client of the engine at ``address``, and of no other that may listen there."""
    host = f"[{address.host}]" if ":" in address.host else address.host
    return flight.connect(
        f"grpc+tls://{host}:{address.port}",
        tls_root_certs=to_pem(address.certificate),
        override_hostname=TLS_NAME,
        generic_options=_KEEPALIVE,
    )


@dataclass(frozen=True, slots=True)
class Target:
    """Where a producer is: its engine's Flight address and the generation it runs under.

    ``through``: the engine of another reader, which relays it.
    """

    address: FlightAddress
    generation: int
    through: FlightAddress | None = None


class Puller:
    """Keeps one port supplied from one producer, from ``wanted`` until :meth:`stop`.

    ``lost(reason)`` is called, at most every few hundred milliseconds, while the producer cannot be pulled.
    """

    def __init__(
        self,
        inbox: PortInbox,
        producer: str,
        consumer: str,
        wanted: threading.Event,
        lost: Callable[[str], None],
        read_for_good: Callable[[], int],
        arrived: Callable[[int, bool], None] = lambda *_: None,
    ) -> None:
        """``read_for_good()`` is the producer's newest batch that may be acknowledged, -1 for none; ``arrived()`` is
        called when a segment has come, with the number of its rows, and whether it is the last one."""
        self._inbox = inbox
        self._producer = producer
        self._consumer = consumer
        self._wanted = wanted
        self._lost = lost
        self._read_for_good = read_for_good
        self._arrived = arrived
        self._target: Target | None = None
        self._changed = threading.Condition()
        self._stopping = False
        self._acknowledged = -1
        self._relay = Relay()
        #: On the monotonic clock: no relay is asked before the one, and none has said anything since the other.
        self._direct_until = self._relayed_at = 0.0
        self._relay_rest_s = _RELAY_REST_S
        now = time.monotonic()
        self.bytes_in = RateMeter(now)
        self.rows_in = RateMeter(now)
        self._first_segment_at = math.inf

    def settled(self, now: float) -> bool:
        """Whether segments have come for long enough at monotonic time ``now`` that their rate means something."""
        return now - self._first_segment_at >= SMOOTHING_S

    @property
    def relay(self) -> Relay | None:
        """For others that read the same; None if it reads through one itself: there are no chains, nor circles."""
        return self._relay if self._target is not None and self._target.through is None else None

    def point_at(self, target: Target) -> None:
        """Pull from ``target`` from now on; an older generation than the present one is ignored.

        In a thread of its own: the one before may hang for long in a call to a host that is cut off.
        """
        with self._changed:
            if self._target is None or (target != self._target and target.generation >= self._target.generation):
                self._target = target
                self._acknowledged = -1
                self._changed.notify_all()
                name = f"pull {self._producer} for {self._consumer}"
                threading.Thread(target=self._run, args=(target,), name=name, daemon=True).start()

    def stop(self) -> None:
        """End soon: the thread may be waiting for the next segment. Close the inbox: then nothing is written to it."""
        with self._changed:
            self._stopping = True
            self._changed.notify_all()
        self._relay.close()

    def _run(self, target: Target) -> None:
        while self._is_current(target) and not self._wanted.wait(_RETRY_S):
            continue
        while self._is_current(target):
            try:
                with ExitStack() as stack:
                    client = stack.enter_context(connect(target.address))
                    relay = self._connect_to_relay(stack, target)
                    while self._is_current(target):
                        self._pull_once(client, relay, target)
                        self._acknowledge(client, target)
            except (flight.FlightError, pa.ArrowException, RemoteProtocolError, ValueError, sqlite3.Error) as error:
                # The last one: the disk here is full, say. Nothing of the segment is there then; it is pulled again.
                if self._is_current(target):
                    self._lost(str(error).split(". Detail:")[0].split("gRPC client debug")[0].strip())
                    self._pause(_RETRY_S)

    def _connect_to_relay(self, stack: ExitStack, target: Target) -> flight.FlightClient | None:
        """None as well if that cannot be one."""
        if target.through is None:
            return None
        try:
            client: flight.FlightClient = stack.enter_context(connect(target.through))
        except (flight.FlightError, pa.ArrowException, ValueError):
            return None
        return client

    def _is_current(self, target: Target) -> bool:
        return self._target is target and not self._stopping

    def _pull_once(self, client: flight.FlightClient, relay: flight.FlightClient | None, target: Target) -> None:
        if self._inbox.unread_bytes() > _MAX_UNREAD_BYTES:
            self._pause(_RETRY_S)
            return
        now = time.monotonic()
        if relay is None or now < self._direct_until:
            self._take(self._ask(client, _PULL, target.address, target), client, target)
        elif self._pull_through(relay, client, target):
            self._relayed_at, self._relay_rest_s = now, _RELAY_REST_S
        elif now >= self._direct_until and now - self._relayed_at >= _RELAY_SILENCE_S:
            # There is nothing, or the relay does not hear of it.
            self._relayed_at = now
            if self._take(self._ask(client, _PULL, target.address, target), client, target):
                self._leave_relay()

    def _pull_through(self, relay: flight.FlightClient, client: flight.FlightClient, target: Target) -> bool:
        """Whether anything came, or it is the first time."""
        assert target.through is not None
        before, is_first = self._inbox.next_batch(self._producer), self._relayed_at == 0.0
        try:
            self._take(self._ask(relay, _RELAY, target.through, target, _RELAY_CALL_S), client, target)
        except (flight.FlightError, pa.ArrowException, RemoteProtocolError):
            if self._inbox.next_batch(self._producer) == before:
                self._leave_relay()
                return False
        return is_first or self._inbox.next_batch(self._producer) > before

    def _leave_relay(self) -> None:
        """For a while, and longer each time that nothing has come there meanwhile."""
        self._direct_until = time.monotonic() + self._relay_rest_s
        self._relay_rest_s = min(_LONGEST_RELAY_REST_S, 2.0 * self._relay_rest_s)

    def _ask(
        self, client: flight.FlightClient, kind: str, address: FlightAddress, target: Target, timeout_s: float = -1.0
    ) -> Iterable[flight.Result]:
        next_batch = self._inbox.next_batch(self._producer)
        request = PullRequest(self._producer, target.generation, self._consumer, next_batch, address.secret)
        action = flight.Action(kind, msgspec.msgpack.encode(request))
        results: Iterable[flight.Result] = client.do_action(action, flight.FlightCallOptions(timeout=timeout_s))
        return results

    def _take(self, results: Iterable[flight.Result], client: flight.FlightClient, target: Target) -> bool:
        """Whether anything came. What is read for good is acknowledged to the producer itself."""
        came = False
        for result in results:
            if not self._is_current(target):
                break
            came = True
            data = result.body.to_pybytes()
            header, body = decode_segment(data)
            if header.fragment_id != self._producer or header.generation > target.generation:
                raise RemoteProtocolError(
                    f"asked for {self._producer} under generation {target.generation}, was sent "
                    f"{header.fragment_id} under {header.generation}"
                )
            segment = Segment(
                self._producer,
                header.generation,
                header.batch_id,
                header.rows,
                header.watermark_ms,
                body,
                header.newest_ms,
            )
            if self._inbox.append(segment):
                now = time.monotonic()
                self._first_segment_at = min(self._first_segment_at, now)
                self.bytes_in.add(len(data), now)
                self.rows_in.add(header.rows, now)
                self._relay.keep(header.batch_id, data)
                self._arrived(header.rows, header.end_of_stream)
            self._acknowledge(client, target)
        return came

    def _acknowledge(self, client: flight.FlightClient, target: Target) -> None:
        up_to = self._read_for_good()
        if up_to > self._acknowledged:
            secret = target.address.secret
            message = Acknowledgement(self._producer, target.generation, self._consumer, up_to, secret)
            list(client.do_action(flight.Action(_ACKNOWLEDGE, msgspec.msgpack.encode(message))))
            with self._changed:
                if self._target is target:
                    self._acknowledged = up_to

    def _pause(self, seconds: float) -> None:
        with self._changed:
            if not self._stopping:
                self._changed.wait(seconds)
