"""What the nodes of the hierarchy of clusters say to each other (:mod:`overlay.regions`)."""

from __future__ import annotations

import msgspec

from overlay.records import NodeRecord


class Lead(msgspec.Struct, frozen=True):
    """A cluster, and who leads it: each new coordinator of the same cluster counts on."""

    cluster: str
    generation: int


class Summary(msgspec.Struct, frozen=True):
    """What is below a member: hosts, those of them that take operators, and names of streams and sinks, as far as there
    is room for them."""

    hosts: int
    takers: int
    names: tuple[str, ...] = ()


class MemberReport(msgspec.Struct, frozen=True):
    """A member is there still, or looks for a place, in a cluster of ``level``.

    ``at``: level of the receiver's cluster from which a place is looked for, downwards. ``leads``: what the sender
    stands for, one level below; ``seat``: where it is a member, as far as it knows.
    """

    level: int
    at: int
    member: NodeRecord
    summary: Summary
    leads: Lead | None = None
    seat: Lead | None = None


class Roster(msgspec.Struct, frozen=True, tag=True):
    """The sender of a report is a member of this cluster.

    ``above``: coordinator and standby of the cluster above, nobody at the top. ``height`` and ``hosts`` are of the
    whole hierarchy.
    """

    level: int
    lead: Lead
    coordinator: NodeRecord
    standby: NodeRecord | None
    members: tuple[NodeRecord, ...]
    above: tuple[NodeRecord, ...]
    height: int
    hosts: int


class Elsewhere(msgspec.Struct, frozen=True, tag=True):
    """Not here: ask there, from that level on; None: there is no such cluster here. ``superseded``: another one leads
    the cluster that the sender stands for. ``heard``: it leads the cluster in which both are, and is not missed
    here."""

    ask: NodeRecord | None = None
    at: int = 0
    superseded: bool = False
    heard: bool = False


class Placed(msgspec.Struct, frozen=True):
    """The answer to a report."""

    found: Roster | Elsewhere


class Appoint(msgspec.Struct, frozen=True):
    """Lead this cluster from now on, as a member of the one that ``above`` leads; None: it is the top."""

    level: int
    lead: Lead
    members: tuple[NodeRecord, ...]
    above: NodeRecord | None


class Appointed(msgspec.Struct, frozen=True):
    accepted: bool


class Withdraw(msgspec.Struct, frozen=True):
    """The sender is no member of the receiver's cluster of that level any more."""

    level: int


class Withdrawn(msgspec.Struct, frozen=True):
    pass


class Beacon(msgspec.Struct, frozen=True):
    """There is a hierarchy with this at its top."""

    top: NodeRecord
    lead: Lead
    height: int
    hosts: int


class Beacons(msgspec.Struct, frozen=True):
    """Those that are known."""

    known: tuple[Beacon, ...]


Request = MemberReport | Appoint | Withdraw | Beacon
Reply = Placed | Appointed | Withdrawn | Beacons
