"""Who keeps a port supplied: pulls segments from where its producer runs, stores them, and acknowledges what was read.

A segment that is newer than what it was pointed at is refused: nobody listens to a former owner.
"""

from __future__ import annotations

import math
import sqlite3
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from dataclasses import dataclass

from sbon.engine_messages import FlightAddress
from sbon.errors import RemoteProtocolError, SbonError
from spark_bridge.flight_links import FlightLink
from spark_bridge.link_service import Acknowledgement, Link, LinkService, PullRequest
from spark_bridge.port_inbox import PortInbox, Segment
from spark_bridge.relay import Relay
from spark_bridge.segment import decode_segment
from spark_bridge.statistics import SMOOTHING_S, RateMeter

_RETRY_S = 0.5
_MAX_UNREAD_BYTES = 64 * 1024 * 1024
#: After a relay had not what was asked for, the producer itself is pulled for so long, twice as long each time at most;
#: and once when the relay said nothing.
_RELAY_REST_S = 2.0
_LONGEST_RELAY_REST_S = 60.0
_RELAY_SILENCE_S = 10.0


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
        own_links: LinkService | None = None,
    ) -> None:
        """``read_for_good()`` is the producer's newest batch that may be acknowledged, -1 for none; ``arrived()`` is
        called when a segment has come, with the number of its rows, and whether it is the last one. ``own_links``:
        those of this engine, which need not be pulled over a network."""
        self._inbox = inbox
        self._producer = producer
        self._consumer = consumer
        self._wanted = wanted
        self._lost = lost
        self._read_for_good = read_for_good
        self._arrived = arrived
        self._own_links = own_links
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
                    link = self._open(stack, target.address)
                    relay = self._open_relay(stack, target)
                    while self._is_current(target):
                        self._pull_once(link, relay, target)
                        self._acknowledge(link, target)
            except (SbonError, RemoteProtocolError, ValueError, sqlite3.Error) as error:
                # The last one: the disk here is full, say. Nothing of the segment is there then; it is pulled again.
                if self._is_current(target):
                    self._lost(str(error))
                    self._pause(_RETRY_S)

    def _open(self, stack: ExitStack, address: FlightAddress) -> Link:
        if self._own_links is not None and self._own_links.is_at(address):
            return self._own_links
        return stack.enter_context(FlightLink(address))

    def _open_relay(self, stack: ExitStack, target: Target) -> Link | None:
        """None as well if that cannot be one."""
        if target.through is None:
            return None
        try:
            return self._open(stack, target.through)
        except SbonError:
            return None

    def _is_current(self, target: Target) -> bool:
        return self._target is target and not self._stopping

    def _pull_once(self, link: Link, relay: Link | None, target: Target) -> None:
        if self._inbox.unread_bytes() > _MAX_UNREAD_BYTES:
            self._pause(_RETRY_S)
            return
        now = time.monotonic()
        if relay is None or now < self._direct_until:
            self._take(link.pull(self._request(target, target.address)), link, target)
        elif self._pull_through(relay, link, target):
            self._relayed_at, self._relay_rest_s = now, _RELAY_REST_S
        elif now >= self._direct_until and now - self._relayed_at >= _RELAY_SILENCE_S:
            # There is nothing, or the relay does not hear of it.
            self._relayed_at = now
            if self._take(link.pull(self._request(target, target.address)), link, target):
                self._leave_relay()

    def _pull_through(self, relay: Link, link: Link, target: Target) -> bool:
        """Whether anything came, or it is the first time."""
        assert target.through is not None
        before, is_first = self._inbox.next_batch(self._producer), self._relayed_at == 0.0
        try:
            self._take(relay.relay(self._request(target, target.through)), link, target)
        except (SbonError, RemoteProtocolError):
            if self._inbox.next_batch(self._producer) == before:
                self._leave_relay()
                return False
        return is_first or self._inbox.next_batch(self._producer) > before

    def _leave_relay(self) -> None:
        """For a while, and longer each time that nothing has come there meanwhile."""
        self._direct_until = time.monotonic() + self._relay_rest_s
        self._relay_rest_s = min(_LONGEST_RELAY_REST_S, 2.0 * self._relay_rest_s)

    def _request(self, target: Target, address: FlightAddress) -> PullRequest:
        next_batch = self._inbox.next_batch(self._producer)
        return PullRequest(self._producer, target.generation, self._consumer, next_batch, address.secret)

    def _take(self, segments: Iterable[bytes], link: Link, target: Target) -> bool:
        """Whether anything came. What is read for good is acknowledged to the producer itself."""
        came = False
        for data in segments:
            if not self._is_current(target):
                break
            came = True
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
            self._acknowledge(link, target)
        return came

    def _acknowledge(self, link: Link, target: Target) -> None:
        up_to = self._read_for_good()
        if up_to > self._acknowledged:
            secret = target.address.secret
            link.acknowledge(Acknowledgement(self._producer, target.generation, self._consumer, up_to, secret))
            with self._changed:
                if self._target is target:
                    self._acknowledged = up_to

    def _pause(self, seconds: float) -> None:
        with self._changed:
            if not self._stopping:
                self._changed.wait(seconds)
