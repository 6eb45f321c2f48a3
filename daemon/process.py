"""The daemon: everything of one node, composed, started, watched and shut down.

A SIGTERM or SIGINT ends the process and nothing else: the node stays a member that restarts, and the fragments that it
hosts go on from their folders when it is back. Leaving the overlay for good is `sbon leave`.
"""

from __future__ import annotations

import errno
import ipaddress
import logging
import os
import random
import re
import secrets
import signal
import socket
import time
from collections.abc import Sequence
from contextlib import ExitStack, closing, suppress
from importlib import metadata

import trio

from daemon.config import Config
from daemon.control.messages import Status, StatusReply, Watch
from daemon.control.server import Control
from daemon.events import Events, Follower
from daemon.fragments.engine_supervisor import ENGINE_COMMAND
from daemon.notify import notify, watchdog_interval_s
from daemon.overlay_service import OverlayService
from daemon.peering.datagrams import DatagramShell
from daemon.peering.emulation import Emulation
from daemon.peering.peer_tls import PeerTls
from daemon.peering.requests import PeerRequests
from daemon.queries.service import QueryService
from daemon.trust.identity_file import StateFolder
from daemon.trust.service import TrustService
from overlay.certificates import Trust
from overlay.events import Event as OverlayEvent
from overlay.events import JoinFailed, Left, PathChanged, SearchFinished
from overlay.identity import NodeId
from overlay.node import Overlay
from overlay.records import Address, NodeRecord
from overlay.sealing import CipherSuite
from overlay.sessions import Sessions
from sbon.coordinate import Coordinate, origin
from sbon.errors import SbonError

log = logging.getLogger("sbon")

LOAD_PERIOD_S = 5.0
REJOIN_PERIOD_S = 5.0
#: Members may come in crowds; their addresses are written down at most this often.
KEEP_MEMBERS_PERIOD_S = 1.0
#: And its place this often.
KEEP_PLACE_PERIOD_S = 300.0
#: A disk that refused is asked again after this.
DISK_PERIOD_S = 30.0
MAX_JOINS_AT_ONCE = 8


class Daemon:
    """One node. :meth:`run` is its whole life."""

    def __init__(self, config: Config, *, engine_command: Sequence[str] = ENGINE_COMMAND) -> None:
        """Opens the state directory and binds the ports. Raises SbonError if one of them cannot be had."""
        self.config = config
        self._started = time.monotonic()
        self._listen = _numeric(config.node.listen_address, "node.listen")
        with ExitStack() as opened:
            self._state = opened.enter_context(closing(StateFolder(config.node.state_dir)))
            self._udp_socket = opened.enter_context(_bind_udp(self._listen))
            self._compose(engine_command)
            self._opened = opened.pop_all()

    def _compose(self, engine_command: Sequence[str]) -> None:
        config = self.config
        identity = self._state.identity()
        now_ms = time.time_ns() // 1_000_000
        boot_id = self._state.next_boot_id(now_ms)
        self.record = _own_record(config, identity.node_id, boot_id, self._state.kept_place(now_ms))
        self.events = Events(config.node.name)
        self.trust = Trust(is_open=_is_open(config, self._listen))
        suite = CipherSuite(identity, boot_id, self.trust)
        try:
            rng, now = random.Random(secrets.randbits(128)), trio.current_time()
            self._sessions = Sessions(suite, identity.node_id, boot_id, rng, now)
            self.overlay = Overlay(self.record, config.overlay, rng, now, self._sessions)
        except ValueError as error:
            raise SbonError(f"{error}: set node.advertise") from error
        self.emulation = None if config.emulation is None else Emulation(config.emulation.rtt_ms, self.overlay.members)
        self.shell = DatagramShell(self.overlay, self._udp_socket, self._on_overlay_event, self.emulation)
        tls = PeerTls(identity, self.trust, trio.current_time)
        transfers = config.node.state_dir / "transfers"
        self.requests = PeerRequests(tls, boot_id, transfers, config.overlay.dimensions, self.emulation)
        self.trust_service = TrustService(
            config.trust,
            self._state,
            identity,
            self.trust,
            self.requests,
            self.events,
            lambda: self.overlay.record,
            self.overlay.members,
        )
        self.trust_service.on_new_cluster = lambda: self.shell.expel(list(self._sessions.peers()))
        self.trust_service.on_revoked = self.shell.expel
        self.trust_service.on_new_certificate = self.shell.renew_sessions
        self.control = Control(config.node.socket)
        self.control.handle(Status, self._status)
        self.control.stream(Watch, self._watch)
        self.query_service = QueryService(config, self.overlay, self.requests, self.events, self.shell, engine_command)
        self.query_service.register(self.control)
        self.trust_service.register(self.control)
        hosted = self.query_service.hosted
        enrol = self.trust_service.enrol
        OverlayService(self.shell, self.requests, self.emulation, self.trust, enrol, hosted).register(self.control)
        assert not self.control.unhandled()
        self._members_changed = trio.Event()

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Serve until cancelled; ``started`` once everything listens."""
        with self._opened:
            listeners = await _listen_tcp(self._listen)
            for listener in listeners:
                self._opened.callback(listener.socket.close)
            async with trio.open_nursery() as nursery:
                await nursery.start(self.shell.run)
                # What was here is known before anybody can ask for it.
                await nursery.start(self.query_service.run)
                await nursery.start(self.requests.serve, listeners)
                await nursery.start(self.control.serve)
                self._warn_of_strangers()
                nursery.start_soon(self.trust_service.run)
                nursery.start_soon(self._sample_load)
                nursery.start_soon(self._keep_members)
                nursery.start_soon(self._keep_place)
                nursery.start_soon(self._rejoin)
                nursery.start_soon(_feed_watchdog)
                self.events.publish(
                    "started", address=f"{self.record.host}:{self.record.port}", socket=str(self.config.node.socket)
                )
                notify(f"READY=1\nSTATUS={self.record.name} at {self.record.host}:{self.record.port}")
                task_status.started()

    def _warn_of_strangers(self) -> None:
        match self.trust_service.describe():
            case "open":
                log.warning("this node has no certificate and believes anybody: `sbon init` makes a cluster")
            case "closed":
                log.warning(
                    "this node has no certificate: it talks to nobody until `sbon join HOST:PORT --token TOKEN` "
                    "has brought one (or `sbon init` has made a cluster while it was stopped)"
                )

    # --- handlers

    async def _status(self, request: Status) -> StatusReply:
        own = self.overlay.record
        return StatusReply(
            name=own.name,
            node_id=own.node_id,
            address=f"{own.host}:{own.port}",
            version=metadata.version("sbon"),
            coordinate=self.overlay.coordinate,
            load=own.load,
            accepts_operators=own.accepts_operators,
            peers=tuple(record.name for record in self.overlay.members()),
            operators=self.query_service.hosted(),
            engine=self.query_service.supervisor.describe(),
            uptime_s=time.monotonic() - self._started,
            counters=self._counters(),
            trust=self.trust_service.describe(),
            cluster=None if self.trust.authority_key is None else self.trust.cluster_id.hex()[:16],
            certificate_expires_s=self.trust_service.certificate_expires_s(),
            operators_cpu_cores=self.query_service.cpu_cores(),
        )

    def _counters(self) -> dict[str, int]:
        groups = {
            "datagrams": self.overlay.counters,
            "handshakes": self._sessions.counters,
            "requests": self.requests.counters,
            "control": self.control.counters,
        }
        return {f"{group}.{name}": count for group, counts in groups.items() for name, count in sorted(counts.items())}

    def _watch(self, request: Watch) -> Follower:
        return self.events.follow(from_start=True, forever=request.follow)

    def _on_overlay_event(self, event: OverlayEvent) -> None:
        match event:
            case PathChanged(record=record, before_ms=before_ms, after_ms=after_ms):
                self.events.publish(
                    "path-changed", peer=record.name, before_ms=round(before_ms, 3), after_ms=round(after_ms, 3)
                )
                self.query_service.path_changed()
            case JoinFailed(address=address, reason=reason):
                self.events.publish("join-failed", address=f"{address[0]}:{address[1]}", reason=reason)
            case Left():
                self.events.publish("left")
            case SearchFinished():
                return
            case _:
                place = f"{event.record.host}:{event.record.port}"
                self.events.publish(_kebab(type(event).__name__), peer=event.record.name, address=place)
        self._members_changed.set()

    # --- tasks

    async def _sample_load(self) -> None:
        """Tell the overlay how busy the host is. The kernel's own average over a minute is smooth enough."""
        cores = os.cpu_count() or 1
        while self.config.node.load == "host":
            self.overlay.set_load(os.getloadavg()[0] / cores, trio.current_time())
            self.shell.settle()
            await trio.sleep(LOAD_PERIOD_S)

    async def _keep_members(self) -> None:
        """Write down where members are, for the next start. That nobody is there now is no reason to forget them."""
        kept = self._state.kept_members()
        while True:
            await self._members_changed.wait()
            self._members_changed = trio.Event()
            members = [record.address for record in self.overlay.members()]
            if members != kept and (members or self.overlay.has_left):
                try:
                    await trio.to_thread.run_sync(self._state.keep_members, members)
                    kept = members
                except SbonError as error:
                    log.warning("whom to join at the next start is not written down now: %s", error)
                    self._members_changed.set()
                    await trio.sleep(DISK_PERIOD_S)
            await trio.sleep(KEEP_MEMBERS_PERIOD_S)

    async def _keep_place(self) -> None:
        """Write down where this node is, as a hint for the next start, once it knows."""
        while True:
            await trio.sleep(KEEP_PLACE_PERIOD_S)
            place = self.overlay.settled_coordinate
            if place is not None:
                try:
                    await trio.to_thread.run_sync(self._state.keep_place, place, time.time_ns() // 1_000_000)
                except SbonError as error:
                    log.warning("this node's place is not written down now: %s", error)

    async def _rejoin(self) -> None:
        """After a restart: back to those who were there before, as soon as one of them answers."""
        known = [address for address in self._state.kept_members() if address != self.record.address]
        while known and not self.overlay.members() and not self.overlay.has_left:
            async with trio.open_nursery() as nursery:
                for address in random.sample(known, min(len(known), MAX_JOINS_AT_ONCE)):
                    nursery.start_soon(self._try_to_join, address)
            if not self.overlay.members():
                await trio.sleep(REJOIN_PERIOD_S)

    async def _try_to_join(self, address: Address) -> None:
        with suppress(SbonError):  # an event tells why
            await self.shell.join(address)


async def run_until_signal(config: Config, engine_command: Sequence[str] = ENGINE_COMMAND) -> None:
    """Run a daemon until SIGTERM or SIGINT. Raises SbonError, perhaps in a group, if it cannot start."""
    with trio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
        daemon = Daemon(config, engine_command=engine_command)
        async with trio.open_nursery() as nursery:
            await nursery.start(daemon.run)
            async for number in signals:
                log.info("stopping on %s", signal.Signals(number).name)
                notify("STOPPING=1")
                nursery.cancel_scope.cancel()
                break


async def _feed_watchdog() -> None:
    """Tell systemd that the event loop turns."""
    interval_s = watchdog_interval_s()
    while interval_s is not None:
        notify("WATCHDOG=1")
        await trio.sleep(interval_s)


def _is_open(config: Config, listen: Address) -> bool:
    """Whether a node without a certificate believes anybody: as configured, else where nobody else can be."""
    if config.trust.open is not None:
        return config.trust.open
    return ipaddress.ip_address(listen[0].partition("%")[0]).is_loopback


def _own_record(config: Config, node_id: NodeId, boot_id: int, last_place: Coordinate | None) -> NodeRecord:
    host, port = config.node.listen_address
    if config.node.advertise is None:
        host, _ = _numeric((host, port), "node.listen")
    else:
        host, _ = _numeric((config.node.advertise, port), "node.advertise")
    return NodeRecord(
        node_id=node_id,
        name=config.node.name,
        host=host,
        port=port,
        boot_id=boot_id,
        coordinate=origin(config.overlay.dimensions) if last_place is None else last_place,
        load=0.0 if config.node.load == "host" else config.node.load,
        accepts_operators=config.node.accept_operators,
    )


def _numeric(address: Address, key: str) -> Address:
    """The address with its host as a number. Raises SbonError if there is none."""
    try:
        found = socket.getaddrinfo(*address, type=socket.SOCK_DGRAM)
    except OSError as error:
        raise SbonError(f"cannot find the host {address[0]}: {error.strerror}: set {key} to a known one") from error
    host, port = found[0][4][:2]
    return str(host), int(port)


def _bind_udp(address: Address) -> socket.socket:
    family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
    udp_socket = socket.socket(family, socket.SOCK_DGRAM)
    try:
        udp_socket.bind(address)
    except OSError as error:
        udp_socket.close()
        raise _cannot_listen("UDP", address, error) from error
    udp_socket.setblocking(False)
    return udp_socket


async def _listen_tcp(address: Address) -> list[trio.SocketListener]:
    try:
        return await trio.open_tcp_listeners(address[1], host=address[0])
    except OSError as error:
        raise _cannot_listen("TCP", address, error) from error


def _cannot_listen(protocol: str, address: Address, error: OSError) -> SbonError:
    place = f"{protocol} {address[0]}:{address[1]}"
    if error.errno == errno.EADDRINUSE:
        return SbonError(f"{place} is in use: stop the process that listens there, or set node.listen to another port")
    return SbonError(f"cannot listen at {place}: {error.strerror}: set node.listen to an address of this host")


def _kebab(name: str) -> str:
    return re.sub(r"(?<!^)(?=[A-Z])", "-", name).lower()
