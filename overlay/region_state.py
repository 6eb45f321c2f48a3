"""What a node of the hierarchy of clusters has in hand (:mod:`overlay.regions`): clusters that it leads, the place
where it is a member, and the word that others have left of tops."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from overlay.clusters import medoid
from overlay.identity import NodeId
from overlay.records import NodeRecord
from overlay.region_messages import Beacon, Lead, MemberReport, Roster, Summary

#: In periods of reports: a coordinator is missed, a beacon lasts, whoever is next to take over has for it.
PATIENCE: Final = 2.5
BEACON_LASTS: Final = 8.0
TURN: Final = 2.0
MAX_BEACONS: Final = 100
#: Names of streams and sinks that one node tells of, and how long they may be.
MAX_NAMES: Final = 500
MAX_NAME: Final = 200


@dataclass(slots=True)
class Member:
    record: NodeRecord
    heard_s: float
    summary: Summary
    leads: Lead | None = None


@dataclass(slots=True)
class Led:
    """A cluster that this node leads. ``moved``: who was a member and is now led by another."""

    lead: Lead
    members: dict[NodeId, Member]
    standby: NodeId | None = None
    moved: dict[NodeId, NodeRecord] = field(default_factory=dict)
    #: The cluster whose coordinator is being appointed: a part of this one, or this one.
    appointing: Lead | None = None
    changed_s: float = 0.0

    @property
    def records(self) -> list[NodeRecord]:
        return [member.record for member in self.members.values()]

    def forget(self, node_id: NodeId, own: NodeId) -> None:
        self.members.pop(node_id, None)
        if self.standby == node_id:
            self.choose_standby(own)

    def choose_standby(self, own: NodeId) -> None:
        """The one in the middle of all but the coordinator, ``own``."""
        others = [record for record in self.records if record.node_id != own]
        self.standby = medoid(others).node_id if others else None

    def other_leader(self, report: MemberReport) -> Member | None:
        """Another member that stands for the same cluster as the sender of the report."""
        if report.leads is None:
            return None
        same = (
            member for member in self.members.values() if member.leads and member.leads.cluster == report.leads.cluster
        )
        return next((member for member in same if member.record.node_id != report.member.node_id), None)


@dataclass(slots=True)
class Seat:
    """Where this node is a member, or looks for a place: ``asks`` are asked in turn, from level ``at`` on."""

    level: int
    asks: tuple[NodeRecord, ...]
    at: int
    heard_s: float
    turn: int = 0
    hops: int = 0
    roster: Roster | None = None


def bounded(summary: Summary) -> Summary:
    """What another node says of itself, no longer than it may be."""
    names = tuple(name[:MAX_NAME] for name in summary.names[:MAX_NAMES])
    return Summary(summary.hosts, summary.takers, names)


def leader(roster: Roster, silent_periods: float) -> NodeRecord | None:
    """Who leads a cluster when its coordinator has been silent for so long; None if nobody does.

    The standby, and then the others, one after another, have some time each to take over.
    """
    late = silent_periods - PATIENCE
    if late < 0.0:
        return roster.coordinator
    others = [each for each in roster.members if each.node_id != roster.coordinator.node_id]
    first = None if roster.standby is None else roster.standby.node_id
    line = sorted(others, key=lambda record: (record.node_id != first, record.node_id))
    return line[int(late / TURN)] if int(late / TURN) < len(line) else None


class BeaconBoard:
    """Word of tops, kept for others. Bounded; what is not left anew is forgotten."""

    def __init__(self, period_s: float) -> None:
        self._lasts_s = BEACON_LASTS * period_s
        self._known: dict[NodeId, tuple[Beacon, float]] = {}

    def light(self, beacon: Beacon, sender: NodeId, now_s: float) -> tuple[Beacon, ...]:
        """Take in what the sender says of itself; all that is known."""
        for node_id in [each for each, (_, until_s) in self._known.items() if now_s >= until_s]:
            del self._known[node_id]
        if beacon.top.node_id == sender and (sender in self._known or len(self._known) < MAX_BEACONS):
            self._known[sender] = beacon, now_s + self._lasts_s
        return tuple(known for known, _ in self._known.values())
