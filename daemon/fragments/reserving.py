"""Room on hosts: each keeps a book of what it has promised, and whoever deploys a query reserves before it starts
anything (DESIGN: Placement). A refusal is planned around, once for each host."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

import trio

from daemon.config import CapacityConfig
from daemon.peering.host_messages import Reserve, Reserved, RoomLeft, TellRoomLeft
from daemon.peering.peers import Peers
from daemon.peering.query_messages import Assignment
from daemon.placing import MIB, Placing
from overlay.identity import NodeId
from sbon.errors import SbonError, UnavailableError
from sbon.placement.capacity import Demand, Resources, taken_by
from sbon.placement.choice import Placement
from sbon.placement.problem import PlacementProblem
from sbon.placement.reservations import Reservations

log = logging.getLogger("sbon.reserving")

RELEASE_TIMEOUT_S = 5.0
NOTHING = Resources(0.0, 0.0, 0.0, 0.0)


def resources_of(capacity: CapacityConfig) -> Resources:
    """What a host has for operators, as its configuration says."""
    unlimited = Resources()
    return Resources(
        unlimited.cpu_cores if capacity.cpu_cores is None else capacity.cpu_cores,
        unlimited.memory_bytes if capacity.memory_mb is None else capacity.memory_mb * MIB,
        unlimited.in_bytes_per_s if capacity.in_bytes_per_s is None else capacity.in_bytes_per_s,
        unlimited.out_bytes_per_s if capacity.out_bytes_per_s is None else capacity.out_bytes_per_s,
    )


class HostBook:
    """This host's own: what runs here, and what is reserved."""

    def __init__(self, peers: Peers, capacity: CapacityConfig) -> None:
        self._peers = peers
        self._reservations = Reservations(resources_of(capacity))
        #: What the fragments here take; set by whoever runs them.
        self.running: Callable[[], dict[str, Demand]] = dict
        peers.handle(Reserve, self._reserve)
        peers.handle(TellRoomLeft, self._tell)

    def admit(self, assignment: Assignment) -> None:
        """A fragment has come. Raises SbonError if there is no room for it and none was reserved."""
        lacking = self._reservations.admit(
            assignment.query_id, assignment.fragment_id, assignment.taken, self.running(), trio.current_time()
        )
        if lacking:
            raise SbonError(self._no_room(assignment.fragment_id, lacking))

    def commit(self, query_id: str) -> None:
        """What was reserved is about to be used."""
        self._reservations.commit(query_id, trio.current_time())

    def _room(self) -> Resources:
        return self._reservations.room(self.running(), trio.current_time())

    def _no_room(self, what: str, lacking: tuple[str, ...]) -> str:
        return f"{self._peers.overlay.record.name} has no room for {what}: too little left of {', '.join(lacking)}"

    async def _reserve(self, message: Reserve, _sender: NodeId) -> Reserved:
        query_id, now_s = message.query_id, trio.current_time()
        if not message.taken:
            self._reservations.drop(query_id)
            return Reserved()
        lacking = self._reservations.reserve(query_id, message.taken, self.running(), now_s)
        if not lacking:
            return Reserved()
        left = self._reservations.room(self.running(), now_s, but=query_id)
        return Reserved(self._no_room(", ".join(message.taken), lacking), left)

    async def _tell(self, _message: TellRoomLeft, _sender: NodeId) -> RoomLeft:
        return RoomLeft(self._room())


@dataclass(frozen=True, slots=True)
class ReservedPlan:
    """Where the operators of a plan are to be; there is room for each. ``taken``: operator -> what it takes there."""

    placement: Placement
    taken: dict[str, Demand]


class Reserving:
    """Places plans where there is room, and holds it."""

    def __init__(self, peers: Peers, placing: Placing) -> None:
        self._peers = peers
        self._placing = placing

    async def place(self, query_id: str, problem: PlacementProblem) -> ReservedPlan:
        """Raises UnavailableError if no hosts with enough room are found; nothing is reserved then."""
        room: dict[NodeId, Resources] = {}
        asked: set[NodeId] = set()
        try:
            while True:
                placement = (await self._placing.place(problem, room)).placement
                taken = taken_by(problem, placement.hosts, self._placing.demand(problem))
                asked |= taken.keys()
                refused = await self._reserve_all(query_id, taken)
                if not refused:
                    await self.release(query_id, asked - taken.keys())
                    return ReservedPlan(placement, {k: v for some in taken.values() for k, v in some.items()})
                for node_id, answer in refused.items():
                    if node_id in room or node_id in problem.pinned.values():
                        raise UnavailableError(answer.refusal)
                    room[node_id] = answer.room
        except BaseException:
            with trio.CancelScope(shield=True):
                await self.release(query_id, asked)
            raise

    async def for_move(self, target: NodeId, assignment: Assignment, demand: Demand) -> None:
        """Hold room for a fragment that is about to move. Raises SbonError if there is none."""
        taken = {assignment.fragment_id: demand}
        answer = await self._peers.ask(target, Reserve(assignment.query_id, taken), Reserved)
        if answer.refusal:
            raise SbonError(answer.refusal)

    async def _reserve_all(self, query_id: str, taken: Mapping[NodeId, Mapping[str, Demand]]) -> dict[NodeId, Reserved]:
        """Those who refuse. Who does not answer has nothing left."""
        refused: dict[NodeId, Reserved] = {}

        async def ask(node_id: NodeId) -> None:
            message = Reserve(query_id, dict(taken[node_id]))
            try:
                answer = await self._peers.ask(node_id, message, Reserved)
            except SbonError as error:
                answer = Reserved(f"{self._peers.name(node_id)} does not hold room: {error}", NOTHING)
            if answer.refusal:
                log.info("%s: %s", query_id, answer.refusal)
                refused[node_id] = answer

        async with trio.open_nursery() as nursery:
            for node_id in taken:
                nursery.start_soon(ask, node_id)
        return refused

    async def release(self, query_id: str, node_ids: Iterable[NodeId]) -> None:
        """What is held for the query and not used yet. Best effort: what is not released ends by itself."""
        await self._peers.gather(Reserve(query_id, {}), Reserved, node_ids, RELEASE_TIMEOUT_S)
