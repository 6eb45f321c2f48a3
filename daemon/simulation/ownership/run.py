"""One seed: a query of two movable fragments under a mix of faults, then without faults until all has arrived.

Checked all the time: at most one host may let anything out of a fragment (by its own clock and lease), and every row of
every source passes every fragment exactly once and in order. Checked at the end: everything that a source has put out
has arrived at the sink.
"""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass

from daemon.fragments.hosted_fragment import HostingRecord
from daemon.peering.query_messages import QueryStatus
from daemon.peering.query_record import FragmentRecord, QueryRecord
from daemon.simulation.ownership.hosts import TICK_S, OnDisk, SimulatedHost
from daemon.simulation.ownership.keeping import SimulatedKeeper
from daemon.simulation.ownership.modelled_engine import LostOrDoubledError, ModelledFragment
from daemon.simulation.ownership.network import Network
from sbon.engine_messages import cursor_name
from sbon.fragment import FragmentKind, FragmentSpec, PortSpec
from sbon.ownership.leases import MAX_DRIFT
from sbon.ownership.register import Ballot, Register

HOSTS = ("office", "west", "east", "hub", "spare")
KEEPERS = ("office", "west", "east")
LEASE_S = 8.0
#: Until then messages are lost, and nothing worse: time for the sources to begin.
BEGIN_S = 30.0
CHAOS_S = 240.0
HEALING_S = 180.0


@dataclass(frozen=True, slots=True)
class OwnershipOutcome:
    """``error`` is None if nothing was violated. Counts are of what the seed brought about."""

    seed: int
    error: str | None
    rows: int
    takeovers: int
    generations: int
    keeper_changes: int
    crashes: int
    cuts: int


def _specs() -> tuple[FragmentSpec, ...]:
    def port(name: str, *producers: str) -> PortSpec:
        return PortSpec(name, producers)

    return (
        FragmentSpec("left", "q1", FragmentKind.SOURCE, "left"),
        FragmentSpec("right", "q1", FragmentKind.SOURCE, "right"),
        FragmentSpec("join", "q1", FragmentKind.JOIN, "join", (port("in0", "left"), port("in1", "right"))),
        FragmentSpec("sum", "q1", FragmentKind.AGGREGATE, "sum", (port("in0", "join"),)),
        FragmentSpec("sink", "q1", FragmentKind.SINK, "sink", (port("in0", "sum"),)),
    )


_PLACES = {"left": "west", "right": "east", "join": "hub", "sum": "spare", "sink": "office"}


def _age(record: QueryRecord) -> int:
    return record.keeper_changes


class OwnershipRun:
    """All of one seed."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.rng = random.Random(seed)
        self.network = Network(self.rng, list(HOSTS), MAX_DRIFT / 2.5)
        self.keepers: dict[str, SimulatedKeeper] = {}
        self.hosts: dict[str, SimulatedHost] = {}
        self.crashes = self.cuts = 0
        for name in HOSTS:
            self.keepers[name] = SimulatedKeeper(name, self.keepers, self.network, LEASE_S)
        replicas = self.rng.choice((1, 1, 2))
        for name in HOSTS:
            self.hosts[name] = SimulatedHost(name, self.hosts, self.keepers, self.network, LEASE_S, replicas)
        self._deploy()

    def _deploy(self) -> None:
        fragments = {
            spec.fragment_id: FragmentRecord(spec, _PLACES[spec.fragment_id], output_schema="{}") for spec in _specs()
        }
        record = QueryRecord("q1", "", KEEPERS, 0.0, QueryStatus.RUNNING, fragments, ())
        for name in KEEPERS:
            self.keepers[name].disk = Register(Ballot(1, "office"), Ballot(1, "office"), record)
            self.keepers[name].restart()
        for spec in _specs():
            fragment_id = spec.fragment_id
            state = ModelledFragment(
                tuple(producer for port in spec.ports for producer in port.producers),
                tuple(consumer for consumer, _ in record.consumers(fragment_id)),
            )
            host = _PLACES[fragment_id]
            assert all(cursor_name(consumer, "in0") for consumer in state.consumers)
            self.hosts[host].fragments[fragment_id] = OnDisk(HostingRecord(host, record.assignment(fragment_id)), state)

    def go(self) -> OwnershipOutcome:
        error = None
        try:
            self._run()
        except (AssertionError, LostOrDoubledError) as violated:
            error = f"at {self.network.now_s:.1f} s: {violated}"
        record = max(filter(None, (keeper.record for keeper in self.keepers.values())), key=_age)
        movable = [fragment for fragment in record.fragments.values() if not fragment.spec.pinned]
        return OwnershipOutcome(
            self.seed,
            error,
            len(self.hosts["office"].delivered),
            sum(fragment.taken_over > 0 for fragment in movable),
            sum(fragment.generation for fragment in movable),
            record.keeper_changes,
            self.crashes,
            self.cuts,
        )

    def _run(self) -> None:
        faults = self.network.faults
        faults.loss = self.rng.choice((0.0, 0.02, 0.2))
        faults.duplication = self.rng.choice((0.0, 0.1))
        faults.late = self.rng.choice((0.0, 0.05))
        self._check_forever()
        self.network.later(BEGIN_S, self._trouble)
        self.network.run_until(CHAOS_S)
        self.network.faults = type(faults)()
        for name in HOSTS:
            self._start(name)
        for host in self.hosts.values():
            host.may_produce = self.network.now_s < CHAOS_S
        self.network.run_until(CHAOS_S + HEALING_S)
        self._check_end()

    # --- trouble

    def _trouble(self) -> None:
        """Every few seconds something happens, until the faults are to stop."""
        if self.network.now_s >= CHAOS_S:
            return
        what = self.rng.choice((self._crash, self._crash, self._cut, self._isolate, self._move, self._move))
        what()
        self.network.later(self.rng.expovariate(1.0 / 6.0), self._trouble)

    def _crash(self) -> None:
        name = self.rng.choice(HOSTS)
        machine = self.network.machines[name]
        if machine.up:
            machine.up = False
            self.crashes += 1
            self.network.later(self.rng.choice((1.0, 5.0, 40.0, 120.0)) * self.rng.random(), lambda: self._start(name))

    def _start(self, name: str) -> None:
        machine = self.network.machines[name]
        if not machine.up:
            machine.up = True
            machine.boot += 1
            self.keepers[name].restart()
            self.hosts[name].restart()

    def _cut(self) -> None:
        one, other = self.rng.sample(HOSTS, 2)
        self._separate({(one, other)})

    def _isolate(self) -> None:
        one = self.rng.choice(HOSTS)
        pairs = {(one, other) for other in HOSTS if other != one}
        if self.rng.random() < 0.7:  # else it can hear, and is not heard
            pairs |= {(other, one) for one, other in pairs}
        self._separate(pairs)

    def _separate(self, pairs: set[tuple[str, str]]) -> None:
        self.cuts += 1
        cut = pairs - self.network.faults.cut
        self.network.faults.cut |= cut
        faults = self.network.faults
        self.network.later(self.rng.uniform(2.0, 60.0), lambda: faults.cut.difference_update(cut))

    def _move(self) -> None:
        fragment_id = self.rng.choice(("join", "sum"))
        for host in self.hosts.values():
            if host.holds(fragment_id) and self.network.machines[host.name].up:
                host.move(fragment_id, self.rng.choice([name for name in HOSTS if name != host.name]))
                return

    # --- checks

    def _check_forever(self) -> None:
        for fragment_id in _PLACES:
            owners = [
                host.name
                for host in self.hosts.values()
                if self.network.machines[host.name].up and host.holds(fragment_id)
            ]
            assert len(owners) <= 1, f"{fragment_id} is let out by {' and '.join(owners)}"
        self.network.later(TICK_S / 5.0, self._check_forever)

    def _check_end(self) -> None:
        delivered = Counter(source for source, _ in self.hosts["office"].delivered)
        for source, place in (("left", "west"), ("right", "east")):
            put_out = self.hosts[place].fragments[source].state.seen[source]
            assert put_out > 0, f"{source} never began"
            assert delivered[source] == put_out, f"{delivered[source]} of {put_out} rows of {source} have arrived"
