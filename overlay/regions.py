"""The hierarchy of clusters at run time, without a centre (Seshadri et al., TPDS'09, section 3.1; S. Banerjee et al.,
"Scalable Application Layer Multicast", SIGCOMM 2002, keep one alike).

Hosts that are near each other form a *cluster* of at most ``max_cs``; its *coordinator* stands for it in a cluster one
level up, and so on up to one. A node leads the clusters of levels 1 to k, for some k, and is a member of one of level
k + 1 that another node leads; only the top is nobody's member. So its state is bounded: k + 1 lists of members.

- *Joining.* Every node begins as the top of a hierarchy of its own. Tops leave word of themselves at one place of the
  overlay (a *beacon*) and see each other there; the lesser one gives way: it looks for a place from the top of the
  other downwards, each time at the member that is nearest to it.
- *Leases.* Members report to their coordinator, and are forgotten when they are silent. The answer names the *standby*
  and all other members: when the coordinator is silent, the standby takes over with the next generation, or whoever
  is next. One that comes back hears from the level above, or at the beacon, that it was replaced.
- *Splitting, giving up, handing over.* A cluster that is too large is cut in two, and the middle one of the new part
  is appointed its coordinator. One that has become too small is given up: its members look for a place from the
  level above. A coordinator that is far from the middle hands over to who is there.
- *Advertising.* A report says what there is below the member: hosts, takers of operators, names of streams.

Sans-I/O: :meth:`Regions.due` says what is to be sent, :meth:`answered` takes in what came back, and :meth:`handle`
answers others.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from random import Random
from typing import Final

from overlay.clusters import halves, medoid, nearest, total_ms
from overlay.identity import NodeId
from overlay.records import NodeRecord
from overlay.region_messages import (
    MAX_HOSTS,
    Appoint,
    Appointed,
    Beacon,
    Beacons,
    Elsewhere,
    Lead,
    MemberReport,
    Placed,
    Reply,
    Request,
    Roster,
    Summary,
    Withdraw,
    Withdrawn,
)
from overlay.region_state import MAX_NAMES, PATIENCE, BeaconBoard, Led, Member, Seat, bounded, leader

#: All in periods of reports: a member is forgotten, a place is no longer looked for, a coordinator that was
#: handed over to is left in peace.
MEMBER_LASTS: Final = 3.5
LOOKED_FOR: Final = 8.0
REST: Final = 8.0
#: A cluster has room for so many times as many as it should have, until it is split.
ROOM: Final = 8
#: A cluster may have so many hosts at least; and one that has less than this share of what it may have is given up.
LEAST_CS: Final = 4
SMALL_SHARE: Final = 4
#: The middle one has to be nearer to the others by so much.
NEARER: Final = 0.8
#: A place is looked for in so many steps without a pause.
MAX_HOPS: Final = 8
MAX_MOVED: Final = 1000


@dataclass(frozen=True, slots=True)
class Outgoing:
    """A request to ``node``; to nobody in particular, but the place of the beacons, if that is None."""

    node: NodeRecord | None
    message: Request


class Regions:
    """What one node knows of the hierarchy."""

    def __init__(
        self,
        record: Callable[[], NodeRecord],
        names: Callable[[], Collection[str]],
        max_cs: int,
        period_s: float,
        rng: Random,
        now_s: float,
    ) -> None:
        """``names()`` is what this node has to advertise. Raises ValueError if ``max_cs`` is less than 4."""
        if max_cs < LEAST_CS:
            raise ValueError(f"clusters of at most {max_cs} hosts: at least {LEAST_CS}")
        self._record = record
        self._names = names
        self._max_cs = max_cs
        self._period_s = period_s
        self._rng = rng
        #: By level, from 1 on.
        self._led: list[Led] = []
        self._seat: Seat | None = None
        self._beacons = BeaconBoard(period_s)
        self._report_s = self._beacon_s = now_s
        self._begin(now_s)

    # --- what there is

    @property
    def node_id(self) -> NodeId:
        return self._record().node_id

    @property
    def is_top(self) -> bool:
        return self._seat is None

    @property
    def led(self) -> int:
        """It leads clusters of levels 1 to this one."""
        return len(self._led)

    @property
    def height(self) -> int:
        """Of the whole hierarchy, as far as known here."""
        roster = None if self._seat is None else self._seat.roster
        return len(self._led) if roster is None else roster.height

    @property
    def hosts(self) -> int:
        """In the whole hierarchy, as far as known here."""
        if self._seat is None:
            return self.summary(len(self._led)).hosts
        return 1 if self._seat.roster is None else self._seat.roster.hosts

    def roster(self, level: int) -> Roster | None:
        """This node's cluster of that level: one that it leads, or the one in which it is a member."""
        if 1 <= level <= len(self._led):
            return self._roster(level)
        if self._seat is not None and self._seat.level == level:
            return self._seat.roster
        return None

    def members(self, level: int) -> dict[NodeId, Summary]:
        """What the members of a cluster that this node leads have said of what is below them."""
        if not 1 <= level <= len(self._led):
            return {}
        return {node_id: member.summary for node_id, member in self._led[level - 1].members.items()}

    def summary(self, level: int) -> Summary:
        """What there is below this node as the leader of a cluster of that level; level 0: itself."""
        own = self._record()
        if level == 0:
            return Summary(1, int(own.accepts_operators), tuple(sorted(self._names())[:MAX_NAMES]))
        below = [member.summary for member in self._led[level - 1].members.values()]
        names = sorted({name for summary in below for name in summary.names})
        hosts, takers = sum(each.hosts for each in below), sum(each.takers for each in below)
        return Summary(min(hosts, MAX_HOSTS), min(takers, MAX_HOSTS), tuple(names[:MAX_NAMES]))

    def validate(self) -> None:
        """Assert what always holds."""
        assert self._led or self._seat is not None
        assert self._seat is None or self._seat.level == len(self._led) + 1
        for led in self._led:
            assert self.node_id in led.members
            assert len(led.members) <= ROOM * self._max_cs
            assert led.standby is None or (led.standby in led.members and led.standby != self.node_id)

    # --- what is to be done

    def next_timer(self) -> float:
        return min(self._report_s, self._beacon_s) if self.is_top else self._report_s

    def due(self, now_s: float) -> list[Outgoing]:
        """What is to be sent now."""
        if now_s < self.next_timer():
            return []
        self._refresh(now_s)
        if now_s >= self._report_s:
            self._report_s = now_s + self._period_s * self._rng.uniform(0.8, 1.0)
        found = self._rearrange(now_s)
        if self._seat is not None:
            return found + self._report(now_s)
        if now_s >= self._beacon_s:
            self._beacon_s = now_s + self._period_s * self._rng.uniform(0.8, 1.0)
            top = self._led[-1]
            found.append(Outgoing(None, Beacon(self._record(), top.lead, len(self._led), self.hosts)))
        return found

    def answered(self, sent: Outgoing, reply: Reply | None, now_s: float) -> None:
        """What came back for what was sent; None: nothing did."""
        match sent.message, reply:
            case MemberReport(), Placed(found=Roster() as roster):
                self._seated(sent.message, roster, now_s)
            case MemberReport(), Placed(found=Elsewhere() as elsewhere):
                self._sent_elsewhere(sent.message, elsewhere, now_s)
            case MemberReport(), None:
                self._not_answered(sent.message, now_s)
            case Appoint(), _:
                accepted = isinstance(reply, Appointed) and reply.accepted
                self._appointed(sent, sent.message, accepted, now_s)
            case Beacon(), Beacons(known=known):
                for beacon in known:
                    self._seen(beacon, now_s)

    def handle(self, message: Request, sender: NodeId, now_s: float) -> Reply:
        match message:
            case MemberReport():
                return Placed(self._place(message, now_s) if message.member.node_id == sender else Elsewhere())
            case Appoint():
                return Appointed(self._accept(message, sender, now_s))
            case Withdraw():
                if 1 <= message.level <= len(self._led) and sender != self.node_id:
                    self._led[message.level - 1].forget(sender, self.node_id)
                return Withdrawn()
            case Beacon():
                return Beacons(self._beacons.light(message, sender, now_s))

    # --- leading

    def _begin(self, now_s: float) -> None:
        """As the top of a hierarchy of one's own: of all that this node leads, if it leads anything."""
        self._seat = None
        if not self._led:
            self._lead(self._new_lead(), [], now_s)
        self._beacon_s = now_s

    def _new_lead(self) -> Lead:
        return Lead(f"{self._rng.getrandbits(64):016x}", 1)

    def _lead(self, lead: Lead, others: Collection[NodeRecord], now_s: float) -> None:
        """One more cluster, on top of those that this node leads already."""
        level = len(self._led) + 1
        members = {
            record.node_id: Member(record, now_s, Summary(1, int(record.accepts_operators)))
            for record in (self._record(), *others)
        }
        self._led.append(Led(lead, members, changed_s=now_s))
        self._refresh(now_s)
        self._led[level - 1].choose_standby(self.node_id)

    def _refresh(self, now_s: float) -> None:
        """This node is a member of what it leads, and silent members are none any more."""
        lasts_s = MEMBER_LASTS * self._period_s
        for level, led in enumerate(self._led, start=1):
            below = self._led[level - 2].lead if level > 1 else None
            led.members[self.node_id] = Member(self._record(), now_s, self.summary(level - 1), below)
            for node_id in [each for each, member in led.members.items() if now_s - member.heard_s > lasts_s]:
                led.forget(node_id, self.node_id)

    def _roster(self, level: int) -> Roster:
        led = self._led[level - 1]
        return Roster(
            level,
            led.lead,
            self._record(),
            None if led.standby is None else led.members[led.standby].record,
            tuple(led.records),
            self._above(level),
            self.height,
            self.hosts,
        )

    def _above(self, level: int) -> tuple[NodeRecord, ...]:
        """Who leads the cluster above one that this node leads, and who would."""
        if level < len(self._led):
            above = self._led[level]
            standby = [] if above.standby is None else [above.members[above.standby].record]
            return (self._record(), *standby)
        if self._seat is None:
            return ()
        roster = self._seat.roster
        if roster is None:
            return self._seat.asks
        return (roster.coordinator,) if roster.standby is None else (roster.coordinator, roster.standby)

    # --- answering reports

    def _place(self, report: MemberReport, now_s: float) -> Roster | Elsewhere:
        level, member = report.level, report.member
        if not 1 <= level <= len(self._led):
            return self._not_led(report, now_s)
        led = self._led[level - 1]
        if member.node_id not in led.members:
            if report.seat is not None and report.seat.cluster != led.lead.cluster:
                return Elsewhere()  # this node was started anew, say, and leads another one now
            if report.seat is not None and member.node_id in led.moved:
                return Elsewhere(led.moved[member.node_id], level)
            further = self._nearer(report)
            if further is not None:
                return further
            if len(led.members) >= ROOM * self._max_cs:
                return Elsewhere(self._record(), level)  # later
        rival = self._rival(led, report)
        if rival is not None:
            return Elsewhere(rival.record, level - 1, superseded=True)
        led.moved.pop(member.node_id, None)
        led.members[member.node_id] = Member(member, now_s, bounded(report.summary), report.leads)
        if led.standby is None:
            led.choose_standby(self.node_id)
        return self._roster(level)

    def _not_led(self, report: MemberReport, now_s: float) -> Elsewhere:
        """Not any more, perhaps: then a place may be where this node has found one, or looks for one.

        Whoever misses the coordinator of the cluster in which both are is told whether it is missed here, too.
        """
        seat = self._seat
        if seat is None or seat.level > report.level or report.member.node_id == self.node_id:
            return Elsewhere()
        if seat.roster is not None and report.seat == seat.roster.lead:
            missed = now_s - seat.heard_s > PATIENCE * self._period_s
            return Elsewhere(report.member if missed else seat.roster.coordinator, seat.level, heard=not missed)
        ask = seat.asks[seat.turn % len(seat.asks)] if seat.roster is None else seat.roster.coordinator
        return Elsewhere() if ask.node_id == report.member.node_id else Elsewhere(ask, seat.at)

    def _nearer(self, report: MemberReport) -> Elsewhere | None:
        """The member to whom whoever looks for a place is sent on; None: it is here."""
        for at in range(min(report.at, len(self._led)), report.level, -1):
            others = [each for each in self._led[at - 1].records if each.node_id != report.member.node_id]
            best = nearest(report.member, others)
            if best.node_id != self.node_id:
                return Elsewhere(best, at - 1)
        return None

    def _rival(self, led: Led, report: MemberReport) -> Member | None:
        """Another member that leads what the sender stands for, by a later word; an earlier one is forgotten.

        This node itself stays, whoever has missed it.
        """
        other = led.other_leader(report)
        if other is None or report.leads is None or other.leads is None:
            return None
        if other.record.node_id == self.node_id:
            below = self._led[report.level - 2]
            below.lead = Lead(below.lead.cluster, max(below.lead.generation, report.leads.generation) + 1)
            return other
        if (other.leads.generation, other.record.node_id) > (report.leads.generation, report.member.node_id):
            return other
        led.forget(other.record.node_id, self.node_id)
        return None

    # --- being a member

    def _look(self, level: int, asks: tuple[NodeRecord, ...], at: int, now_s: float) -> None:
        """For a place in a cluster of ``level``, which is the one above all that this node leads."""
        self._seat = Seat(level, asks, at, now_s)
        self._report_s = now_s

    def _report(self, now_s: float) -> list[Outgoing]:
        seat = self._seat
        assert seat is not None
        level = seat.level
        asked, at = seat.asks[seat.turn % len(seat.asks)], seat.at
        if seat.roster is not None:
            candidate = leader(seat.roster, (now_s - seat.heard_s) / self._period_s)
            if candidate is None:
                self._begin(now_s)
                return []
            if candidate.node_id == self.node_id:
                self._take_over(seat.roster, now_s)
                return []
            asked, at = candidate, level
        elif now_s - seat.heard_s > LOOKED_FOR * self._period_s:
            self._begin(now_s)
            return []
        leads = self._led[-1].lead if self._led else None
        seated = None if seat.roster is None else seat.roster.lead
        report = MemberReport(level, at, self._record(), self.summary(level - 1), leads, seated)
        return [Outgoing(asked, report)]

    def _take_over(self, roster: Roster, now_s: float) -> None:
        gone = roster.coordinator.node_id
        others = [each for each in roster.members if each.node_id not in (gone, self.node_id)]
        self._lead(Lead(roster.lead.cluster, roster.lead.generation + 1), others, now_s)
        if roster.above:  # the one that is gone may have led that, too: then its standby is about to
            self._look(roster.level + 1, roster.above, roster.level + 1, now_s)
        else:
            self._begin(now_s)

    def _seated(self, report: MemberReport, roster: Roster, now_s: float) -> None:
        seat = self._seat
        if seat is None or seat.level != report.level:
            return
        seat.roster, seat.asks, seat.turn, seat.at = roster, (roster.coordinator,), 0, roster.level
        seat.heard_s = now_s

    def _sent_elsewhere(self, report: MemberReport, elsewhere: Elsewhere, now_s: float) -> None:
        seat = self._seat
        if seat is None or seat.level != report.level:
            return
        if elsewhere.superseded and elsewhere.ask is not None and self._led:
            self._led.pop()
            self._look(seat.level - 1, (elsewhere.ask,), elsewhere.at, now_s)
        elif seat.roster is not None and elsewhere.ask is None:
            seat.heard_s = min(seat.heard_s, now_s - PATIENCE * self._period_s)  # it leads the cluster no more
        elif elsewhere.ask is None or elsewhere.ask.node_id == self.node_id:
            seat.turn += 1
        elif elsewhere.heard and seat.roster and elsewhere.ask.node_id == seat.roster.coordinator.node_id:
            seat.heard_s = max(seat.heard_s, now_s - (PATIENCE - 1.0) * self._period_s)
        else:
            self._seat = Seat(seat.level, (elsewhere.ask,), elsewhere.at, seat.heard_s, hops=seat.hops + 1)
            if seat.hops % MAX_HOPS < MAX_HOPS - 1:
                self._report_s = now_s

    def _not_answered(self, report: MemberReport, now_s: float) -> None:
        if self._seat is not None and self._seat.level == report.level:
            self._seat.turn += 1

    # --- splitting, giving up, handing over

    def _rearrange(self, now_s: float) -> list[Outgoing]:
        if len(self._led) > 1 and self.is_top and len(self._led[-1].members) == 1 and not self._led[-2].appointing:
            self._led.pop()  # nobody else is up here
        for level, led in enumerate(self._led, start=1):
            if len(led.members) > self._max_cs and not led.appointing:
                return [self._split(level, now_s)]
        if not self._led or self._led[-1].appointing:
            return []
        level, led = len(self._led), self._led[-1]
        if now_s - led.changed_s <= REST * self._period_s:
            return []
        return self._give_up(level, now_s) if self._is_small(led) and not self.is_top else self._hand_over(led)

    def _is_small(self, led: Led) -> bool:
        return len(led.members) * SMALL_SHARE < self._max_cs

    def _split(self, level: int, now_s: float) -> Outgoing:
        """Have the half without this node led by the one in its middle."""
        led = self._led[level - 1]
        one, other = halves(led.records)
        gone = other if any(record.node_id == self.node_id for record in one) else one
        if level == len(self._led) and self.is_top:
            self._lead(self._new_lead(), [], now_s)
        led.appointing = self._new_lead()
        return Outgoing(medoid(gone), Appoint(level, led.appointing, tuple(gone), self._above(level)[0]))

    def _hand_over(self, led: Led) -> list[Outgoing]:
        """To the one in the middle, if this node is far from it."""
        others, level = led.records, len(self._led)
        middle = medoid(others)
        if total_ms(middle, others) >= NEARER * total_ms(self._record(), others):
            return []
        led.appointing = Lead(led.lead.cluster, led.lead.generation + 1)
        above = None if self.is_top else self._above(level)[0]
        return [Outgoing(middle, Appoint(level, led.appointing, tuple(others), above))]

    def _give_up(self, level: int, now_s: float) -> list[Outgoing]:
        """What is too small: this node, and the other members when they ask, look for a place from the level above."""
        assert self._seat is not None
        roster = self._seat.roster
        if roster is None or len(roster.members) < 2:
            return []
        self._led.pop()
        self._look(level, (roster.coordinator,), level + 1, now_s)
        return [Outgoing(roster.coordinator, Withdraw(level + 1))]

    def _appointed(self, sent: Outgoing, appoint: Appoint, accepted: bool, now_s: float) -> None:
        assert sent.node is not None
        led = self._led[appoint.level - 1] if appoint.level <= len(self._led) else None
        if led is None or led.appointing != appoint.lead:
            return  # it has lost the cluster meanwhile
        led.appointing = None
        led.changed_s = now_s
        if not accepted:
            return
        if appoint.lead.cluster == led.lead.cluster:  # handed over
            del self._led[appoint.level - 1 :]
            self._look(appoint.level, (sent.node,), appoint.level, now_s)
            return
        for record in appoint.members:
            led.moved[record.node_id] = sent.node
            led.forget(record.node_id, self.node_id)
        while len(led.moved) > MAX_MOVED:
            del led.moved[next(iter(led.moved))]
        self._report_s = now_s  # there may be too many still

    def _accept(self, appoint: Appoint, sender: NodeId, now_s: float) -> bool:
        """An appointment is by the coordinator of this node's cluster of that very level, and by nobody else."""
        roster = self.roster(appoint.level)
        if roster is None or roster.coordinator.node_id != sender or appoint.level <= len(self._led):
            return False
        others = [each for each in appoint.members[: ROOM * self._max_cs] if each.node_id != self.node_id]
        self._lead(appoint.lead, others, now_s)
        if appoint.above is None:
            self._begin(now_s)
        else:
            self._look(appoint.level + 1, (appoint.above,), appoint.level + 1, now_s)
        return True

    # --- tops

    def _seen(self, other: Beacon, now_s: float) -> None:
        """Another top: the lesser of the two gives way."""
        if not self.is_top or other.top.node_id == self.node_id:
            return
        level, top = len(self._led), self._led[-1]
        if other.lead.cluster == top.lead.cluster:
            gives_way = (other.lead.generation, other.top.node_id) > (top.lead.generation, self.node_id)
        else:
            gives_way = (other.height, other.hosts, other.top.node_id) > (level, self.hosts, self.node_id)
        if not gives_way:
            return
        if other.height > level and not self._is_small(top) and other.lead.cluster != top.lead.cluster:
            self._look(level + 1, (other.top,), other.height, now_s)  # with all that is below
            return
        self._led.pop()
        self._look(level, (other.top,), max(level, other.height), now_s)
