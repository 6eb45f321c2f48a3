"""The UDP shell of :class:`overlay.node.Overlay`: a socket, a clock, and whoever wants to hear what happened."""

from __future__ import annotations

import logging
import math
import socket
from collections.abc import Callable, Iterable

import trio

from daemon.peering.emulation import DelayLine, Emulation
from overlay.events import Event, Joined, JoinFailed, SearchFinished
from overlay.identity import NodeId
from overlay.node import Overlay
from overlay.records import Address, NodeRecord
from overlay.session_wire import MAX_SEALED_BYTES
from sbon.errors import SbonError, UnavailableError
from sbon.objectives import Objective

log = logging.getLogger("sbon.datagrams")

#: Then the other tasks have their turn.
MAX_DATAGRAMS_AT_ONCE = 64


class DatagramShell:
    """Drives one overlay node. After any other verb of the overlay, call :meth:`settle`.

    ``on_event`` is called for everything that happens, in order; it must not block.
    """

    def __init__(
        self,
        overlay: Overlay,
        udp_socket: socket.socket,
        on_event: Callable[[Event], None],
        emulation: Emulation | None = None,
    ) -> None:
        """``udp_socket`` is bound and non-blocking; it is closed by the caller."""
        self.overlay = overlay
        self._socket = udp_socket
        self._on_event = on_event
        self._emulation = emulation
        self._delay_line = DelayLine(self._send)
        self._sleep = trio.CancelScope()
        self._deadline = -math.inf
        self._searches: dict[int, trio.Event] = {}
        self._found: dict[int, SearchFinished] = {}
        self._joins: dict[Address, tuple[trio.Event, list[Joined | JoinFailed]]] = {}

    # --- verbs

    async def join(self, address: Address) -> NodeRecord:
        """Enter the overlay of the node at ``address``; returns that node once it has agreed.

        Raises UnavailableError if it is not there, or refuses.
        """
        resolved = await self._resolve(address)
        done, outcome = self._joins.setdefault(resolved, (trio.Event(), []))
        self.overlay.join(resolved, trio.current_time())
        self.settle()
        await done.wait()
        result = outcome[0]
        if isinstance(result, JoinFailed):
            raise UnavailableError(f"cannot join {address[0]}:{address[1]}: {result.reason}")
        return result.record

    def leave(self) -> None:
        """Say goodbye; see :meth:`Overlay.leave`."""
        self.overlay.leave(trio.current_time())
        self.settle()
        for address in list(self._joins):
            self._tell(JoinFailed(address, "this node left meanwhile"))

    def probe_soon(self, node_id: NodeId) -> None:
        """Probe a member now, out of turn."""
        self.overlay.probe_soon(node_id, trio.current_time())
        self.settle()

    def expel(self, node_ids: Iterable[NodeId]) -> None:
        """These nodes are no longer to be spoken to."""
        for node_id in node_ids:
            self.overlay.expel(node_id, trio.current_time())
        self.settle()

    def renew_sessions(self) -> None:
        """This node has a new certificate."""
        self.overlay.renew_sessions(trio.current_time())
        self.settle()

    async def search(self, objective: Objective, k: int) -> SearchFinished:
        """The hosts of least objective that the overlay finds, at most ``k``; see :meth:`Overlay.search`."""
        search_id = self.overlay.search(objective, k, trio.current_time())
        done = self._searches[search_id] = trio.Event()
        self.settle()
        try:
            await done.wait()
        finally:
            self._searches.pop(search_id, None)
        return self._found.pop(search_id)

    def settle(self) -> None:
        """Send what the overlay wants sent, tell what happened, and be woken when it asks."""
        now = trio.current_time()
        for data, address in self.overlay.datagrams_to_send(now):
            delay_s = 0.0 if self._emulation is None else self._emulation.one_way_s_to_address(address)
            if delay_s == 0.0:
                self._send(data, address)
            elif not self._delay_line.put(data, address, delay_s):
                self.overlay.counters["dropped.delay_line_full"] += 1
        for event in self.overlay.events():
            self._tell(event)
        timer = self.overlay.next_timer()
        self._deadline = math.inf if timer is None else timer
        self._sleep.deadline = self._deadline

    async def _resolve(self, address: Address) -> Address:
        try:
            found = await trio.socket.getaddrinfo(*address, self._socket.family, socket.SOCK_DGRAM)
        except OSError as error:
            raise SbonError(f"cannot find {address[0]}: {error.strerror}: give a host name or an address") from error
        host, port = found[0][4][:2]
        return str(host), int(port)

    def _tell(self, event: Event) -> None:
        if isinstance(event, SearchFinished):
            if event.search_id in self._searches:
                self._found[event.search_id] = event
                self._searches[event.search_id].set()
            return
        if isinstance(event, Joined | JoinFailed):
            waiting = self._joins.pop(event.address, None)
            if waiting is not None:
                waiting[1].append(event)
                waiting[0].set()
        self._on_event(event)

    def _send(self, data: bytes, address: Address) -> None:
        """UDP may lose datagrams, and so may we: one that cannot be sent now is dropped and counted."""
        try:
            self._socket.sendto(data, address)
        except OSError as error:
            self.overlay.counters["dropped.send_failed"] += 1
            log.debug("cannot send to %s:%d: %s", *address, error.strerror)

    # --- tasks

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Receive, and wake the overlay when it asks, until cancelled."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._receive)
            nursery.start_soon(self._keep_time)
            nursery.start_soon(self._delay_line.run)
            task_status.started()

    async def _receive(self) -> None:
        # Without trio's own socket, which takes two more turns of the event loop for each datagram.
        while True:
            await trio.lowlevel.wait_readable(self._socket)
            for _ in range(MAX_DATAGRAMS_AT_ONCE):
                try:
                    data, source = self._socket.recvfrom(MAX_SEALED_BYTES + 1)
                except BlockingIOError:
                    break
                except OSError as error:  # an ICMP error of an earlier datagram, for example
                    log.debug("receiving failed: %s", error.strerror)
                    continue
                if self.overlay.receive(data, source[:2], trio.current_time()):
                    self.settle()

    async def _keep_time(self) -> None:
        while True:
            with trio.CancelScope(deadline=self._deadline) as self._sleep:
                await trio.sleep_forever()
            self.overlay.handle_timer(trio.current_time())
            self.settle()
