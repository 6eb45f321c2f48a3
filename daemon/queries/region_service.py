"""This node's part in the hierarchy of clusters (:mod:`overlay.regions`): its requests, and what `sbon regions` shows.

Whoever is at the top of a hierarchy leaves word of itself at the nodes nearest to one place of the latency space, which
the overlay's search finds from anywhere (as for names: :mod:`overlay.shelves`).
"""

from __future__ import annotations

import logging
import random
import secrets
from collections.abc import Callable, Collection

import msgspec
import trio

from daemon.config import RegionsConfig
from daemon.control.messages import RegionInfo, RegionMember, RegionsReply
from daemon.events import Events
from daemon.peering.peers import Peers
from overlay.identity import NodeId
from overlay.records import NodeRecord
from overlay.region_messages import (
    MAX_LEVELS,
    Appoint,
    Appointed,
    Beacon,
    Beacons,
    MemberReport,
    Placed,
    Reply,
    Withdraw,
    Withdrawn,
)
from overlay.regions import Outgoing, Regions
from overlay.shelves import HOLDERS, place_of
from sbon.errors import SbonError, UnavailableError
from sbon.objectives import NearestTo

log = logging.getLogger("sbon.regions")

#: The place of the beacons is that of a shelf that no name belongs to.
BEACONS = -1
ASK_TIMEOUT_S = 5.0


class DescribeRegion(msgspec.Struct, frozen=True):
    """To the coordinator of a cluster of that level."""

    level: int


class RegionDescribed(msgspec.Struct, frozen=True):
    """None: the node leads none. ``above``: who leads the next one, None at the top."""

    region: RegionInfo | None
    above: NodeRecord | None = None


class RegionService:
    """Takes part until cancelled. ``names()`` is what this node has to advertise."""

    def __init__(
        self, peers: Peers, events: Events, settings: RegionsConfig, names: Callable[[], Collection[str]]
    ) -> None:
        self._peers = peers
        self._events = events
        rng = random.Random(secrets.randbits(128))
        self.regions = Regions(
            lambda: msgspec.structs.replace(peers.overlay.record, coordinate=peers.overlay.coordinate),
            names,
            settings.max_cs,
            settings.period_s,
            rng,
            trio.current_time(),
        )
        self._led = self.regions.led
        self._news = trio.Event()
        peers.handle(MemberReport, self._handle)
        peers.handle(Appoint, self._handle)
        peers.handle(Withdraw, self._handle)
        peers.handle(Beacon, self._handle)
        peers.handle(DescribeRegion, self._describe)

    async def run(self) -> None:
        """Until cancelled."""
        async with trio.open_nursery() as nursery:
            while True:
                for outgoing in self.regions.due(trio.current_time()):
                    nursery.start_soon(self._send, outgoing)
                self._tell()
                with trio.move_on_at(self.regions.next_timer()):
                    await self._news.wait()
                self._news = trio.Event()

    async def branch(self) -> RegionsReply:
        """The clusters that this node is in, from the lowest to the top, as their coordinators describe them."""
        own = self._peers.overlay.record
        roster = self.regions.roster(1)
        found: list[RegionInfo] = []
        node: NodeRecord | None = own if self.regions.led else None if roster is None else roster.coordinator
        while node is not None and len(found) < MAX_LEVELS:
            self._peers.meet(node)
            answer = await self._peers.ask(node.node_id, DescribeRegion(len(found) + 1), RegionDescribed, ASK_TIMEOUT_S)
            if answer.region is None:
                break
            found.append(answer.region)
            node = answer.above
        if not found:
            raise UnavailableError("this node has no place in the hierarchy now: try again in some seconds")
        return RegionsReply(tuple(found), self.regions.height, self.regions.hosts)

    async def _send(self, outgoing: Outgoing) -> None:
        if outgoing.node is not None:
            await self._ask(outgoing.node, outgoing)
            return
        place = place_of(BEACONS, len(self._peers.overlay.coordinate.vector_ms))
        try:
            holders = await self._peers.search(NearestTo(place), HOLDERS)
        except SbonError as error:
            log.debug("the place of the beacons is not found: %s", error)
            return
        for holder in holders:
            await self._ask(holder, outgoing)

    async def _ask(self, node: NodeRecord, outgoing: Outgoing) -> None:
        reply: Reply | None = None
        kinds: dict[type[msgspec.Struct], type[Reply]] = {
            MemberReport: Placed, Appoint: Appointed, Withdraw: Withdrawn, Beacon: Beacons
        }  # fmt: skip
        self._peers.meet(node)
        try:
            reply = await self._peers.ask(node.node_id, outgoing.message, kinds[type(outgoing.message)], ASK_TIMEOUT_S)
        except SbonError as error:
            log.debug("%s: %s", node.name, error)
        self.regions.answered(outgoing, reply, trio.current_time())
        self._news.set()

    async def _handle(self, message: MemberReport | Appoint | Withdraw | Beacon, sender: NodeId) -> Reply:
        reply = self.regions.handle(message, sender, trio.current_time())
        self._news.set()
        return reply

    def _tell(self) -> None:
        """An event when this node leads more clusters, or fewer, than before."""
        if self.regions.led != self._led:
            self._led = self.regions.led
            self._events.publish("regions-led", levels=self._led)

    async def _describe(self, message: DescribeRegion, _sender: NodeId) -> RegionDescribed:
        roster = self.regions.roster(message.level)
        own = self._peers.overlay.record
        if roster is None or roster.coordinator.node_id != own.node_id:
            return RegionDescribed(None)
        summary, below = self.regions.summary(message.level), self.regions.members(message.level)
        members = sorted(roster.members, key=lambda member: own.coordinate.rtt_ms(member.coordinate))
        info = RegionInfo(
            level=message.level,
            cluster=roster.lead.cluster,
            generation=roster.lead.generation,
            coordinator=own.name,
            standby=None if roster.standby is None else roster.standby.name,
            members=tuple(RegionMember(each.name, below[each.node_id].hosts) for each in members),
            hosts=summary.hosts,
            takers=summary.takers,
            names=summary.names,
        )
        return RegionDescribed(info, roster.above[0] if roster.above else None)
