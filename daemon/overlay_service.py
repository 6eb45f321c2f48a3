"""What can be asked about the overlay: by clients over the control socket, and by other nodes on behalf of theirs."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

import msgspec

from daemon.config import parse_address
from daemon.control.messages import (
    Done,
    Emulate,
    Join,
    Latency,
    LatencyReply,
    Leave,
    Nearest,
    NearestReply,
    NodeInfo,
    Nodes,
    NodesReply,
)
from daemon.control.server import Control
from daemon.peering.datagrams import DatagramShell
from daemon.peering.emulation import Emulation
from daemon.peering.requests import PeerRequests
from overlay.certificates import Trust
from overlay.identity import NodeId
from overlay.latency_estimate import LatencyEstimate
from overlay.records import Address, NodeRecord
from overlay.search import MAX_K
from sbon.errors import SbonError, UnavailableError
from sbon.objectives import NearestTo

#: Another node is asked about its own paths for so long; without it there is still the prediction.
ASK_TIMEOUT_S = 3.0


class PathQuestion(msgspec.Struct, frozen=True):
    """What do you know about the path from you to ``node_id``? Answered by a LatencyEstimate."""

    node_id: NodeId


class EmulatePath(msgspec.Struct, frozen=True):
    """From now on, pretend a round trip of ``rtt_ms`` to ``node_id`` in what you send to it."""

    node_id: NodeId
    rtt_ms: float


class OverlayService:
    """Handlers of the verbs join, leave, nodes, latency, nearest and emulate."""

    def __init__(
        self,
        shell: DatagramShell,
        requests: PeerRequests,
        emulation: Emulation | None,
        trust: Trust,
        enrol: Callable[[Address, str], Awaitable[None]],
        hosted: Callable[[], Sequence[str]],
    ) -> None:
        """``enrol`` brings a certificate back for a token, ``hosted`` tells which fragments run here."""
        self._shell = shell
        self._overlay = shell.overlay
        self._requests = requests
        self._emulation = emulation
        self._trust = trust
        self._enrol = enrol
        self._hosted = hosted

    def register(self, control: Control) -> None:
        control.handle(Join, self._join)
        control.handle(Leave, self._leave)
        control.handle(Nodes, self._nodes)
        control.handle(Latency, self._latency)
        control.handle(Nearest, self._nearest)
        control.handle(Emulate, self._emulate)
        self._requests.handle(PathQuestion, self._answer_path_question)
        self._requests.handle(EmulatePath, self._answer_emulate_path)

    def find(self, name_or_id: str) -> NodeRecord:
        """The node of that name or id. Raises SbonError if it is not known here."""
        record = self._overlay.find(name_or_id)
        if record is None:
            raise SbonError(f'no node "{name_or_id}" is known here: see `sbon nodes`')
        return record

    async def latency(self, a: NodeRecord, b: NodeRecord) -> LatencyEstimate:
        """What is known about the path, asking its ends for their measurements if this node is none of them."""
        own = self._overlay.latency(a.node_id, b.node_id)
        if own.measured_rtt_ms is not None or self._overlay.record.node_id in (a.node_id, b.node_id):
            return own
        for asked, other in ((a, b), (b, a)):
            try:
                estimate = await self._requests.request(
                    asked, PathQuestion(other.node_id), LatencyEstimate, ASK_TIMEOUT_S
                )
            except SbonError:
                continue
            if estimate.measured_rtt_ms is not None:
                return msgspec.structs.replace(own, measured_rtt_ms=estimate.measured_rtt_ms, samples=estimate.samples)
        return own

    async def _join(self, request: Join) -> Done:
        try:
            address = parse_address(request.address)
        except ValueError as error:
            raise SbonError(str(error)) from error
        if request.token is not None:
            await self._enrol(address, request.token)
        elif not self._trust.is_ready:
            raise SbonError(
                "this host has no certificate: get a token with `sbon token` on the host of the cluster's authority, "
                "and give it with --token"
            )
        record = await self._shell.join(address)
        return Done(f"joined the overlay of {record.name} at {record.host}:{record.port}")

    async def _leave(self, request: Leave) -> Done:
        hosted = self._hosted()
        if hosted:
            raise SbonError(f"{', '.join(hosted)} run here: move them with `sbon migrate`, or cancel their queries")
        self._shell.leave()
        return Done("left the overlay")

    async def _nodes(self, request: Nodes) -> NodesReply:
        own = self._overlay.record
        return NodesReply(tuple(self._info(own, record) for record in [own, *self._overlay.members()]))

    async def _nearest(self, request: Nearest) -> NearestReply:
        if request.k < 1:
            raise SbonError(f"a number of nodes of {request.k}: ask for at least 1")
        place = self._overlay.record if request.node is None else self.find(request.node)

        if request.k > MAX_K:
            raise SbonError(f"a number of nodes of {request.k}: ask for at most {MAX_K}")
        search = await self._shell.search(NearestTo(place.coordinate, place.node_id), request.k)
        return NearestReply(tuple(self._info(place, record) for record in search.found), search.contacts)

    def _info(self, place: NodeRecord, record: NodeRecord) -> NodeInfo:
        here = place.node_id == self._overlay.record.node_id
        return NodeInfo(
            name=record.name,
            node_id=record.node_id,
            address=f"{record.host}:{record.port}",
            status=record.status.value,
            coordinate=record.coordinate,
            load=record.load,
            accepts_operators=record.accepts_operators,
            predicted_rtt_ms=0.0 if place.node_id == record.node_id else place.coordinate.rtt_ms(record.coordinate),
            measured_rtt_ms=self._overlay.measured_rtt_ms(record.node_id) if here else None,
        )

    async def _latency(self, request: Latency) -> LatencyReply:
        a, b = self.find(request.a), self.find(request.b)
        estimate = await self.latency(a, b)
        return LatencyReply(
            a=a.name,
            b=b.name,
            predicted_rtt_ms=estimate.predicted_rtt_ms,
            measured_rtt_ms=estimate.measured_rtt_ms,
            samples=estimate.samples,
            error=estimate.error,
        )

    async def _emulate(self, request: Emulate) -> Done:
        a, b = self.find(request.a), self.find(request.b)
        if a.node_id == b.node_id:
            raise SbonError("a node has no round trip to itself: name two nodes")
        _check_rtt(request.rtt_ms)
        await self._emulate_at(a, b, request.rtt_ms)
        await self._emulate_at(b, a, request.rtt_ms)
        return Done(f"round trips between {a.name} and {b.name} now take {request.rtt_ms:g} ms")

    async def _emulate_at(self, place: NodeRecord, peer: NodeRecord, rtt_ms: float) -> None:
        if place.node_id == self._overlay.record.node_id:
            self._pretended().set_rtt_ms(peer, rtt_ms)
        else:
            await self._requests.request(place, EmulatePath(peer.node_id, rtt_ms), Done)

    def _pretended(self) -> Emulation:
        if self._emulation is None:
            name = self._overlay.record.name
            raise SbonError(
                f"{name} does not emulate round trips: add [emulation] to its configuration for experiments"
            )
        return self._emulation

    # --- asked by other nodes

    async def _answer_path_question(self, question: PathQuestion, sender: NodeId) -> LatencyEstimate:
        return self._overlay.latency(self._overlay.record.node_id, question.node_id)

    async def _answer_emulate_path(self, request: EmulatePath, sender: NodeId) -> Done:
        peer = self._overlay.find(request.node_id)
        if peer is None:
            raise UnavailableError(f"no node {request.node_id} is known at {self._overlay.record.name}: try again")
        _check_rtt(request.rtt_ms)
        self._pretended().set_rtt_ms(peer, request.rtt_ms)
        return Done("")


def _check_rtt(rtt_ms: float) -> None:
    if not 0.0 <= rtt_ms < 60_000.0:
        raise SbonError(f"a round trip of {rtt_ms:g} ms: give 0 or more, and less than 60000 ms")
