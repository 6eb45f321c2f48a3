"""What the nodes of the hierarchy of clusters say to each other (:mod:`overlay.regions`)."""

from __future__ import annotations

from typing import Annotated, Final

import msgspec
from msgspec import Meta

from overlay.records import NodeRecord

#: No hierarchy is higher, or has more hosts. Numbers beyond are refused with the message that bears them.
MAX_LEVELS: Final = 16
MAX_HOSTS: Final = 2**40

Level = Annotated[int, Meta(ge=1, le=MAX_LEVELS)]
Count = Annotated[int, Meta(ge=0, le=MAX_HOSTS)]
Generation = Annotated[int, Meta(ge=0, le=2**62)]
ClusterName = Annotated[str, Meta(max_length=32)]


class Lead(msgspec.Struct, frozen=True):
    """A cluster, and who leads it: each new coordinator of the same cluster counts on."""

    cluster: ClusterName
    generation: Generation


class Summary(msgspec.Struct, frozen=True):
    """What is below a member: hosts, those of them that take operators, and names of streams and sinks, as far as there
    is room for them."""

    hosts: Count
    takers: Count
    names: tuple[str, ...] = ()


class MemberReport(msgspec.Struct, frozen=True):
    """A member is there still, or looks for a place, in a cluster of ``level``.

    ``at``: level of the receiver's cluster from which a place is looked for, downwards. ``leads``: what the sender
    stands for, one level below; ``seat``: where it is a member, as far as it knows.
    """

    level: Level
    at: Level
    member: NodeRecord
    summary: Summary
    leads: Lead | None = None
    seat: Lead | None = None


class Roster(msgspec.Struct, frozen=True, tag=True):
    """The sender of a report is a member of this cluster.

    ``above``: coordinator and standby of the cluster above, nobody at the top. ``height`` and ``hosts`` are of the
    whole hierarchy.
    """

    level: Level
    lead: Lead
    coordinator: NodeRecord
    standby: NodeRecord | None
    members: tuple[NodeRecord, ...]
    above: tuple[NodeRecord, ...]
    height: Level
    hosts: Count


class Elsewhere(msgspec.Struct, frozen=True, tag=True):
    """Not here: ask there, from that level on; None: there is no such cluster here. ``superseded``: another one leads
    the cluster that the sender stands for. ``heard``: it leads the cluster in which both are, and is not missed
    here."""

    ask: NodeRecord | None = None
    at: Level = 1
    superseded: bool = False
    heard: bool = False


class Placed(msgspec.Struct, frozen=True):
    """The answer to a report."""

    found: Roster | Elsewhere


class Appoint(msgspec.Struct, frozen=True):
    """Lead this cluster from now on, as a member of the one that ``above`` leads; None: it is the top."""

    level: Level
    lead: Lead
    members: tuple[NodeRecord, ...]
    above: NodeRecord | None


class Appointed(msgspec.Struct, frozen=True):
    accepted: bool


class Withdraw(msgspec.Struct, frozen=True):
    """The sender is no member of the receiver's cluster of that level any more."""

    level: Level


class Withdrawn(msgspec.Struct, frozen=True):
    pass


class Beacon(msgspec.Struct, frozen=True):
    """There is a hierarchy with this at its top."""

    top: NodeRecord
    lead: Lead
    height: Level
    hosts: Count


class Beacons(msgspec.Struct, frozen=True):
    """Those that are known."""

    known: tuple[Beacon, ...]


Request = MemberReport | Appoint | Withdraw | Beacon
Reply = Placed | Appointed | Withdrawn | Beacons
