"""Nodes as the query side sees them: asked by id, this node among them, and what measured paths cost.

A request to this node goes to its own handler without a socket, so that nothing else has to know where a keeper or a
host is.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TypeVar

import msgspec
import trio

from daemon.peering.folder_transfer import ReceivedFolder
from daemon.peering.host_messages import Latencies, MeasureLatency
from daemon.peering.requests import carry_out
from overlay.events import SearchFinished
from overlay.identity import NodeId
from overlay.records import Address, NodeRecord
from sbon.coordinate import MAX_RTT_MS, Coordinate, origin
from sbon.cost_space import LOAD_SCALE_MS, LoadScaling
from sbon.errors import SbonError, UnavailableError
from sbon.latency_filter import PercentileFilter
from sbon.objectives import Objective
from sbon.placement.problem import CostView
from sbon.placement.questions import KnownPath

M = TypeVar("M", bound=msgspec.Struct)
R = TypeVar("R", bound=msgspec.Struct)
K = TypeVar("K")
V = TypeVar("V")

REQUEST_TIMEOUT_S = 10.0
#: Of several nodes that may be asked, the first is tried again so often.
ASK_AGAIN_S = 15.0
#: How long a node probes a path that it was asked about and never measured.
PROBE_PATIENCE_S = 3.0
_PROBE_POLL_S = 0.05
#: Paths that one request may ask about.
MAX_PATHS = 1000
#: Connections with which a path to a node that is no neighbour is measured, one after another.
PINGS = 5
#: Paths that are measured so at a time, whoever asks: who asks also says where to connect to.
MAX_PINGED = 32
#: Nodes beyond the neighbours that are remembered: those that searches found, and those that others told of.
MAX_MET = 1000
#: Sets of nodes of which it is remembered who answered last.
MAX_ANSWERED = 1000


class Overlay(Protocol):
    """What is needed of :class:`overlay.node.Overlay`."""

    @property
    def record(self) -> NodeRecord: ...
    @property
    def coordinate(self) -> Coordinate: ...
    def members(self) -> list[NodeRecord]: ...
    def find(self, name_or_id: str) -> NodeRecord | None: ...
    def measured_rtt_ms(self, node_id: NodeId) -> float | None: ...
    def measured_paths(self) -> list[tuple[NodeId, Coordinate, float]]: ...


class Shell(Protocol):
    """What is needed of :class:`daemon.peering.datagrams.DatagramShell`."""

    def probe_soon(self, node_id: NodeId) -> None: ...
    async def search(self, objective: Objective, k: int) -> SearchFinished: ...


class Requests(Protocol):
    """What is needed of :class:`daemon.peering.requests.PeerRequests`."""

    def handle(self, message_type: type[M], handler: Callable[[M, NodeId], Awaitable[msgspec.Struct]]) -> None: ...
    def handle_folder(
        self, message_type: type[M], handler: Callable[[M, NodeId, ReceivedFolder], Awaitable[msgspec.Struct]]
    ) -> None: ...
    async def request(
        self, node: NodeRecord | Address, message: msgspec.Struct, reply_type: type[R], timeout_s: float = ...
    ) -> R: ...
    async def send_folder(
        self,
        node: NodeRecord | Address,
        message: msgspec.Struct,
        folder: Path,
        reply_type: type[R],
        timeout_s: float = ...,
    ) -> R: ...
    async def connect_ms(self, node: NodeRecord) -> float: ...


@dataclass(frozen=True, slots=True)
class Gathered:
    """Answers of those who answered, by node id, and the names of those who did not."""

    answers: dict[NodeId, Any]
    silent: tuple[str, ...]


class Peers:
    """Requests to nodes by id, and searches."""

    def __init__(self, overlay: Overlay, requests: Requests, shell: Shell) -> None:
        self.overlay = overlay
        self._requests = requests
        self._shell = shell
        self._answered_last: dict[tuple[NodeId, ...], tuple[NodeId, float]] = {}  # in the order in which they did
        self._own_handlers: dict[type[msgspec.Struct], Callable[[Any, NodeId], Awaitable[Any]]] = {}
        self._met: dict[NodeId, NodeRecord] = {}  # in the order in which they were heard of
        self._pinging = trio.CapacityLimiter(MAX_PINGED)
        self.handle(MeasureLatency, self._measure_for)

    @property
    def node_id(self) -> NodeId:
        return self.overlay.record.node_id

    def name(self, node_id: NodeId) -> str:
        """For people; the id itself if the node is not known now."""
        record = self.known(node_id)
        return node_id if record is None else record.name

    def meet(self, record: NodeRecord) -> None:
        """Remember a node, so that it can be asked though it is no neighbour."""
        _remember(self._met, record.node_id, record, MAX_MET)

    def known(self, node_id: NodeId) -> NodeRecord | None:
        """The record of this node, of a neighbour, or else of a node that was met."""
        return self.overlay.find(node_id) or self._met.get(node_id)

    def record(self, node_id: NodeId) -> NodeRecord:
        """Raises UnavailableError if the node is not there now."""
        record = self.known(node_id)
        if record is None:
            raise UnavailableError(f"node {node_id} is not in the overlay now: wait until it is back, see `sbon nodes`")
        return record

    def handle(self, message_type: type[M], handler: Callable[[M, NodeId], Awaitable[msgspec.Struct]]) -> None:
        """Answer ``message_type`` with ``await handler(message, sender_id)``, whoever asks."""
        self._own_handlers[message_type] = handler
        self._requests.handle(message_type, handler)

    def handle_folder(
        self, message_type: type[M], handler: Callable[[M, NodeId, ReceivedFolder], Awaitable[msgspec.Struct]]
    ) -> None:
        """As :meth:`handle`, for messages that travel with a folder. They are never sent to oneself."""
        self._requests.handle_folder(message_type, handler)

    async def ask(
        self, node_id: NodeId, message: msgspec.Struct, reply_type: type[R], timeout_s: float = REQUEST_TIMEOUT_S
    ) -> R:
        """The answer of a node. Raises UnavailableError if there is none, or the SbonError that it answers with."""
        if node_id != self.node_id:
            return await self._requests.request(self.record(node_id), message, reply_type, timeout_s)
        with trio.move_on_after(timeout_s):
            handling = self._own_handlers[type(message)](message, node_id)
            reply = await carry_out(type(message).__name__, handling)
            assert isinstance(reply, reply_type)
            return reply
        raise UnavailableError(
            f"{type(message).__name__} took longer than {timeout_s:g} s here: is the host overloaded?"
        )

    async def ask_any(
        self,
        node_ids: tuple[NodeId, ...],
        message: msgspec.Struct,
        reply_type: type[R],
        timeout_s: float = REQUEST_TIMEOUT_S,
    ) -> R:
        """The answer of the first of several nodes that has one; for a while, whoever answered last is asked first.

        Each has ``timeout_s``. Raises the UnavailableError of the last one if none answers, or if there are none.
        """
        error = UnavailableError("there is nobody to ask")
        if not node_ids:
            raise error
        now_s = trio.current_time()
        first, until_s = self._answered_last.get(node_ids, (node_ids[0], now_s))
        if now_s >= until_s:
            first, until_s = node_ids[0], now_s + ASK_AGAIN_S
        for node_id in sorted(node_ids, key=lambda node_id: node_id != first):
            try:
                reply = await self.ask(node_id, message, reply_type, timeout_s)
            except UnavailableError as unavailable:
                error = unavailable
            else:
                _remember(self._answered_last, node_ids, (node_id, until_s), MAX_ANSWERED)
                return reply
        raise error

    async def send_folder(
        self, node_id: NodeId, message: msgspec.Struct, folder: Path, reply_type: type[R], timeout_s: float
    ) -> R:
        """As :meth:`ask`, with all that is in ``folder``."""
        return await self._requests.send_folder(self.record(node_id), message, folder, reply_type, timeout_s)

    async def gather(
        self,
        message: msgspec.Struct,
        reply_type: type[R],
        node_ids: Iterable[NodeId] | None = None,
        timeout_s: float = 5.0,
    ) -> Gathered:
        """Ask many nodes at once; None: all of them, this one first."""
        if node_ids is None:
            node_ids = [self.node_id, *(member.node_id for member in self.overlay.members())]
        asked = list(dict.fromkeys(node_ids))
        answers: dict[NodeId, R] = {}

        async def ask_one(node_id: NodeId) -> None:
            with suppress(SbonError):  # then it is among the silent ones
                answers[node_id] = await self.ask(node_id, message, reply_type, timeout_s)

        async with trio.open_nursery() as nursery:
            for node_id in asked:
                nursery.start_soon(ask_one, node_id)
        silent = tuple(self.name(node_id) for node_id in asked if node_id not in answers)
        return Gathered({node_id: answers[node_id] for node_id in asked if node_id in answers}, silent)

    async def search(self, objective: Objective, k: int) -> list[NodeRecord]:
        """The hosts of least objective, at most ``k``, by ascending cost."""
        found = (await self._shell.search(objective, k)).found
        for record in found:
            self.meet(record)
        return list(found)

    # --- what paths cost

    async def measure(
        self, pairs: Iterable[tuple[NodeId, NodeId]], *, afresh: bool = False
    ) -> dict[tuple[NodeId, NodeId], float]:
        """Filtered round trips, in ms, of as many of the pairs as their first ends can measure within seconds."""
        wanted: dict[NodeId, list[NodeId]] = {}
        for a, b in pairs:
            # Where this node is an end it asks itself: one request less, and it is probably known already.
            source, target = (b, a) if b == self.node_id else (a, b)
            wanted.setdefault(source, []).append(target)
        known: dict[tuple[NodeId, NodeId], float] = {}

        async def ask_one(source: NodeId, targets: list[NodeId]) -> None:
            targets = targets[:MAX_PATHS]
            records = (self.known(target) for target in targets)
            message = MeasureLatency(tuple(targets), tuple(record for record in records if record is not None), afresh)
            try:
                reply = await self.ask(source, message, Latencies, PROBE_PATIENCE_S + 5.0)
            except SbonError:
                return  # predictions stand in
            for target in targets:
                rtt_ms = reply.rtt_ms.get(target)
                if rtt_ms is not None and 0.0 <= rtt_ms <= MAX_RTT_MS:  # false for NaN, too
                    known[source, target] = rtt_ms

        async with trio.open_nursery() as nursery:
            for source, targets in wanted.items():
                nursery.start_soon(ask_one, source, targets)
        return known

    async def _measure_for(self, message: MeasureLatency, _sender: NodeId) -> Latencies:
        told = {record.node_id: record for record in message.records[:MAX_PATHS]}
        rtt_ms: dict[NodeId, float] = {}

        async def measure_one(node_id: NodeId) -> None:
            measured_ms = await self._measure_one(node_id, told.get(node_id), afresh=message.afresh)
            if measured_ms is not None:
                rtt_ms[node_id] = measured_ms

        with trio.move_on_after(PROBE_PATIENCE_S):
            async with trio.open_nursery() as nursery:
                for node_id in dict.fromkeys(message.node_ids[:MAX_PATHS]):
                    nursery.start_soon(measure_one, node_id)
        return Latencies(rtt_ms)

    async def _measure_one(self, node_id: NodeId, told: NodeRecord | None, *, afresh: bool) -> float | None:
        """What is known, what a probe shows of a neighbour, or what connections show of anybody else."""
        overlay = self.overlay
        if not afresh:
            if overlay.measured_rtt_ms(node_id) is None and overlay.find(node_id) is not None:
                self._shell.probe_soon(node_id)
            while overlay.measured_rtt_ms(node_id) is None and overlay.find(node_id) is not None:
                await trio.sleep(_PROBE_POLL_S)
            measured_ms = overlay.measured_rtt_ms(node_id)
            if measured_ms is not None:
                return measured_ms
        record = self.known(node_id) or told
        if record is None or node_id == self.node_id:
            return None if record is None else 0.0
        path = PercentileFilter()
        with suppress(OSError):
            async with self._pinging:
                for _ in range(PINGS):
                    path.add(await self._requests.connect_ms(record))
        return path.value

    def known_paths(self) -> tuple[KnownPath, ...]:
        """The paths from here that are measured now."""
        return tuple(KnownPath(node_id, place, rtt_ms) for node_id, place, rtt_ms in self.overlay.measured_paths())

    def cost_view(
        self,
        measured: Mapping[tuple[NodeId, NodeId], float],
        load_scale_ms: float = LOAD_SCALE_MS,
        load_scaling: LoadScaling = LoadScaling.LINEAR,
    ) -> CostView:
        """What is known here, with ``measured`` round trips of other nodes; nodes that have gone are at the origin."""
        own = self.overlay.record
        records = self._met | {record.node_id: record for record in [own, *self.overlay.members()]}
        coordinate = self.overlay.coordinate

        def coordinate_of(node_id: NodeId) -> Coordinate:
            if node_id == own.node_id:
                return coordinate
            record = records.get(node_id)
            return origin(coordinate.dimensions) if record is None else record.coordinate

        def measured_rtt_ms(a: NodeId, b: NodeId) -> float | None:
            known = measured.get((a, b))
            if known is None and a == own.node_id:
                return self.overlay.measured_rtt_ms(b)
            return known

        def load_of(node_id: NodeId) -> float:
            record = records.get(node_id)
            return 0.0 if record is None else record.load

        return CostView(coordinate_of, measured_rtt_ms, load_of, load_scale_ms, load_scaling)


def _remember(table: dict[K, V], key: K, value: V, limit: int) -> None:
    """As the latest of at most ``limit``; the ones before are forgotten first."""
    table.pop(key, None)
    table[key] = value
    while len(table) > limit:
        del table[next(iter(table))]
