"""Planning by the coordinators of the hierarchy, from its top downwards (Seshadri et al., TPDS'09, section 3.2).

A request travels from the owner of the sink up to the top, from coordinator to coordinator. The top decides among the
members of its cluster, and asks those that stand for clusters to decide on their parts. A coordinator that does not
answer is passed by: on the way up its standby stands in for it, with the list of members that it has anyway; on
the way down the cluster plans without it. Planning starts nothing, so nothing is left of what is given up.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import msgspec

from daemon.config import PlacementConfig
from daemon.peering.peers import Peers
from overlay.identity import NodeId
from overlay.records import NodeRecord
from overlay.region_messages import Roster
from overlay.regions import Regions
from sbon.cost_space import load_ms
from sbon.errors import RemoteProtocolError, UnavailableError
from sbon.planning.part import Part, PlacedTree, Spot

log = logging.getLogger("sbon.regions")

#: For each step of a request's way.
STEP_TIMEOUT_S = 20.0
MAX_STEPS = 16
#: So many members that do not answer are planned without.
MAX_LOST = 3


class PlanFromTop(msgspec.Struct, frozen=True):
    """Have it planned by the top of the hierarchy. ``stands_in``: for the coordinator of the receiver's cluster of that
    level, which does not answer; 0: for nobody."""

    part: Part
    stands_in: int = 0
    steps: int = 0


class PlanPart(msgspec.Struct, frozen=True):
    """Plan it in the cluster of ``level`` that the receiver leads."""

    part: Part
    level: int


class PartPlanned(msgspec.Struct, frozen=True):
    """``decided_by``: names of the nodes that took part, the first one last."""

    tree: PlacedTree
    cost: float
    decided_by: tuple[str, ...]


class RegionalPlanning:
    """What this node does for others, and has done for itself."""

    def __init__(self, peers: Peers, regions: Regions, max_cs: int, settings: PlacementConfig) -> None:
        self._peers = peers
        self._regions = regions
        self._max_cs = max_cs
        self._settings = settings
        peers.handle(PlanFromTop, self._plan_from_top)
        peers.handle(PlanPart, self._plan_part)

    @property
    def hosts(self) -> int:
        """In the hierarchy, as far as known here."""
        return self._regions.hosts

    async def plan(self, part: Part) -> PartPlanned:
        """Raises UnavailableError if neither coordinators nor standbys answer, or no host takes operators."""
        return await self._plan_from_top(PlanFromTop(part), self._peers.node_id)

    def spot(self, record: NodeRecord) -> Spot:
        settings = self._settings
        load = load_ms(record.load, settings.load_scale_ms, settings.load_scaling)
        return Spot(record.node_id, record.coordinate, record.accepts_operators, load)

    # --- upwards

    async def _plan_from_top(self, message: PlanFromTop, _sender: NodeId) -> PartPlanned:
        with _told():
            message.part.check(self._dimensions)
        regions = self._regions
        if message.steps > MAX_STEPS:
            raise UnavailableError("the hierarchy of clusters is being rearranged: try again in some seconds")
        if message.stands_in > regions.led:
            roster = regions.roster(message.stands_in)
            if roster is None:
                raise UnavailableError("this node has no place in the hierarchy now: try again in some seconds")
            return await self._stand_in(roster, message)
        if regions.is_top:
            return await self._decide(message.part, regions.led)
        roster = regions.roster(regions.led + 1)
        if roster is None:
            raise UnavailableError("this node has no place in the hierarchy now: try again in some seconds")
        leaders = [roster.coordinator, *([] if roster.standby is None else [roster.standby])]
        return await self._ask(leaders, roster.level, message)

    async def _stand_in(self, roster: Roster, message: PlanFromTop) -> PartPlanned:
        """In place of the cluster's coordinator."""
        if roster.above:
            return await self._ask(roster.above, roster.level + 1, message)
        gone = roster.coordinator.node_id
        members = [self.spot(each) for each in roster.members if each.node_id != gone]
        return await self._decide_among(message.part, roster.level, members)

    async def _ask(self, leaders: Sequence[NodeRecord], level: int, message: PlanFromTop) -> PartPlanned:
        """The coordinator of a cluster of ``level``, or else whoever stands in for it."""
        error = UnavailableError("nobody leads the cluster above: try again in some seconds")
        for number, leader in enumerate(leaders):
            self._peers.meet(leader)
            onwards = PlanFromTop(message.part, level if number else 0, message.steps + 1)
            try:
                return await self._planned_by(leader.node_id, onwards)
            except UnavailableError as unavailable:
                log.info("%s does not plan: %s", leader.name, unavailable)
                error = unavailable
        raise error

    # --- downwards

    async def _plan_part(self, message: PlanPart, _sender: NodeId) -> PartPlanned:
        with _told():
            message.part.check(self._dimensions)
        if not 1 <= message.level <= self._regions.led:
            raise UnavailableError("this node leads no such cluster any more: try again in some seconds")
        return await self._decide(message.part, message.level)

    async def _decide(self, part: Part, level: int) -> PartPlanned:
        roster = self._regions.roster(level)
        assert roster is not None
        below, members = self._regions.members(level), []
        for record in roster.members:
            spot = self.spot(record)
            if level > 1 and record.node_id in below:  # it stands for others, and its own load for nobody's
                spot = msgspec.structs.replace(spot, takes=below[record.node_id].takers > 0, load_ms=0.0)
            members.append(spot)
        return await self._decide_among(part, level, members)

    async def _decide_among(self, part: Part, level: int, members: list[Spot]) -> PartPlanned:
        lost: set[NodeId] = set()
        while True:
            try:
                return await self._decide_once(part, level, [each for each in members if each.node_id not in lost])
            except _LostError as error:
                if len(lost) >= MAX_LOST:
                    raise UnavailableError(f"too many coordinators do not answer, the last one: {error}") from error
                lost.add(error.node_id)
                log.info("planned without %s: %s", self._peers.name(error.node_id), error)

    async def _decide_once(self, part: Part, level: int, members: list[Spot]) -> PartPlanned:
        from sbon.planning.part_planning import plan_part  # with numpy, which a node that plans nothing does without

        leaders = {each.node_id for each in members} if level > 1 else set()
        course = plan_part(part, members, self._max_cs, leaders=leaders)
        deciders: list[str] = []
        answer: PlacedTree | None = None
        while True:
            try:
                node_id, asked = next(course) if answer is None else course.send(answer)
            except StopIteration as end:
                tree, cost = end.value
                return PartPlanned(tree, cost, (*dict.fromkeys(deciders), self._peers.overlay.record.name))
            try:
                planned = await self._planned_by(node_id, PlanPart(asked, level - 1))
            except UnavailableError as error:
                raise _LostError(node_id, error) from error
            deciders += planned.decided_by
            answer = planned.tree

    async def _planned_by(self, node_id: NodeId, message: PlanFromTop | PlanPart) -> PartPlanned:
        """Its answer. Raises UnavailableError if there is none, or none that can be."""
        planned = await self._peers.ask(node_id, message, PartPlanned, STEP_TIMEOUT_S)
        with _told():
            message.part.check_answer(planned.tree, self._dimensions)
        return planned

    @property
    def _dimensions(self) -> int:
        return self._peers.overlay.coordinate.dimensions


@contextmanager
def _told() -> Iterator[None]:
    """What is wrong with what came from others is told like what they cannot do: they are planned without."""
    try:
        yield
    except RemoteProtocolError as error:
        raise UnavailableError(f"what came cannot be planned with: {error}") from error


class _LostError(Exception):
    def __init__(self, node_id: NodeId, error: UnavailableError) -> None:
        super().__init__(str(error))
        self.node_id = node_id
