"""A host in the simulation: settles, renews, runs, replicates and moves fragments as the daemon does.

What decides is the daemon's own: :mod:`daemon.peering.query_rules`, the phases of a
:class:`daemon.fragments.hosted_fragment.HostingRecord`, :class:`sbon.ownership.leases.Lease` and
:class:`sbon.ownership.replication.Replication`. What is modelled is the engine.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import msgspec

from daemon.fragments.hosted_fragment import HostingRecord, Phase
from daemon.peering import query_rules
from daemon.peering.query_messages import Assignment, KeptBy
from daemon.peering.query_record import QueryRecord
from daemon.simulation.ownership.keeping import Change, SimulatedKeeper
from daemon.simulation.ownership.modelled_engine import LostOrDoubledError, ModelledFragment, Row, Segment
from daemon.simulation.ownership.network import Answer, Network
from sbon.errors import SbonError, UnavailableError
from sbon.fragment import FragmentKind
from sbon.ownership.leases import Lease
from sbon.ownership.replication import Replication

TICK_S = 0.5
_WAIT_S = 3.0
#: A replica that stores nothing for so long is done without.
_PATIENCE_S = 6.0
_MAX_LOG = 20


@dataclass(slots=True)
class OnDisk:
    """A fragment's folder."""

    record: HostingRecord
    state: ModelledFragment

    @property
    def generation(self) -> int:
        return self.record.assignment.generation


@dataclass(slots=True)
class Replica:
    """What a host keeps for another one."""

    generation: int
    batch_id: int
    state: ModelledFragment


@dataclass(slots=True)
class Running:
    """What is in memory of a fragment that the keepers have confirmed."""

    lease: Lease
    replication: Replication
    changes: int
    confirmed_at_s: float
    #: Batch -> what of each producer was read up to there.
    read_by: dict[int, dict[str, int]] = field(default_factory=dict)
    stored_at_s: dict[str, float] = field(default_factory=dict)
    proposing: bool = False


class SimulatedHost:
    """``fragments`` and ``replicas`` survive :meth:`restart`."""

    def __init__(
        self,
        name: str,
        hosts: dict[str, SimulatedHost],
        keepers: dict[str, SimulatedKeeper],
        network: Network,
        lease_s: float,
        wanted_replicas: int,
    ) -> None:
        self.name = name
        self._hosts, self._keepers, self._network = hosts, keepers, network
        self._lease_s, self._wanted_replicas = lease_s, wanted_replicas
        self.fragments: dict[str, OnDisk] = {}
        self.replicas: dict[str, Replica] = {}
        self.delivered: list[Row] = []
        self.may_produce = True
        self.restart()

    def restart(self) -> None:
        self.running: dict[str, Running] = {}
        self._claiming: set[str] = set()
        self._moving: set[str] = set()
        self._network.later_at(self.name, self._network.rng.uniform(0.0, TICK_S), self._tick)

    def _now_s(self) -> float:
        return self._network.local_s(self.name)

    def _tick(self) -> None:
        self._network.later_at(self.name, TICK_S, self._tick)
        for fragment_id in list(self.fragments):
            if fragment_id in self._moving:
                continue
            running = self.running.get(fragment_id)
            if running is None:
                self._claim(fragment_id)
                continue
            self._renew(fragment_id, running)
            if self.holds(fragment_id):
                self._work(fragment_id, running)
            elif self._now_s() > running.confirmed_at_s + _WAIT_S:  # it has lost its lease, or gets none
                del self.running[fragment_id]
        keeper = self._keepers[self.name]
        for fragment_id, generation in keeper.overdue():
            self._rescue(keeper, fragment_id, generation)
        keeper.watch()

    def holds(self, fragment_id: str) -> bool:
        """Whether this host may let anything out of the fragment now."""
        running = self.running.get(fragment_id)
        if running is None:
            return False
        return self.fragments[fragment_id].record.assignment.spec.pinned or running.lease.holds(self._now_s())

    # --- calls

    def _ask_keeper(
        self,
        on_disk: OnDisk,
        change: Change,
        done: Callable[[QueryRecord], None],
        failed: Callable[[SbonError], None],
    ) -> None:
        """Have any keeper propose ``change``; ``failed`` with UnavailableError if the outcome is not known."""
        target = self._network.rng.choice(on_disk.record.assignment.keepers)

        def handle(answer: Answer) -> None:
            self._keepers[target].propose(change, lambda record, error: answer((record, error)))

        def answered(reply: Any) -> None:
            record, error = reply
            if error is not None:
                failed(error)
            elif record is not None:
                done(record)

        self._network.call(self.name, target, handle, answered, lambda: failed(UnavailableError("silent")), 20.0)

    def _call(
        self, target: str, handler: Callable[[SimulatedHost], object], answered: Callable[[Any], None] = lambda _: None
    ) -> None:
        """``handler`` at another host; nothing follows if there is no answer."""
        host = self._hosts[target]
        self._network.call(self.name, target, lambda answer: answer(handler(host)), answered, lambda: None, _WAIT_S)

    # --- being the owner

    def _claim(self, fragment_id: str) -> None:
        if fragment_id in self._claiming:
            return
        self._claiming.add(fragment_id)
        on_disk = self.fragments[fragment_id]
        generation = on_disk.generation

        def is_still_here() -> bool:
            self._claiming.discard(fragment_id)
            return self.fragments.get(fragment_id) is on_disk

        def chosen(record: QueryRecord) -> None:
            if not is_still_here():
                return
            if query_rules.owns(record, self.name, fragment_id, generation):
                self._confirmed(on_disk, record.assignment(fragment_id))
            else:
                on_disk.record = on_disk.record.to(Phase.HANDED_OVER)
                del self.fragments[fragment_id]

        self._ask_keeper(
            on_disk,
            lambda record: None if record is None else query_rules.claim(record, self.name, fragment_id, generation)[0],
            chosen,
            lambda _error: self._claiming.discard(fragment_id),
        )

    def _confirmed(self, on_disk: OnDisk, assignment: Assignment) -> None:
        on_disk.record = on_disk.record.to(Phase.RUNNING, assignment)
        self.running[assignment.fragment_id] = Running(
            Lease(assignment.keepers, self._lease_s),
            Replication(assignment.replicas, on_disk.state.batch_id),
            assignment.replica_changes,
            self._now_s(),
            {on_disk.state.batch_id: dict(on_disk.state.read)},
        )
        self.replicas.pop(assignment.fragment_id, None)

    def _renew(self, fragment_id: str, running: Running) -> None:
        on_disk, asked_at_s = self.fragments[fragment_id], self._now_s()
        generation = on_disk.generation

        def answered(name: str, reply: tuple[bool, KeptBy | None]) -> None:
            granted, kept_by = reply
            if kept_by is not None:
                assignment = on_disk.record.assignment.under(kept_by)
                on_disk.record = msgspec.structs.replace(on_disk.record, assignment=assignment)
                running.lease.change_keepers(assignment.keepers)
            if granted:
                running.lease.granted(name, asked_at_s)

        for name in on_disk.record.assignment.keepers:
            keeper = self._keepers[name]
            self._network.call(
                self.name,
                name,
                lambda answer, keeper=keeper: answer(keeper.renew(self.name, fragment_id, generation)),  # type: ignore[misc]
                partial(answered, name),
                lambda: None,
                _WAIT_S,
            )

    def _rescue(self, keeper: SimulatedKeeper, fragment_id: str, generation: int) -> None:
        """The owner is silent: remind it of what it has been given, and give it to a replica if it does not answer."""
        record = keeper.record
        assert record is not None
        assignment = record.assignment(fragment_id)

        def chosen(record: QueryRecord | None, error: SbonError | None) -> None:
            if record is not None and error is None:
                self._call(record.fragment(fragment_id).owner, lambda host: host.adopt(record.assignment(fragment_id)))

        def silent() -> None:
            keeper.propose(
                lambda record: None if record is None else query_rules.take_over(record, fragment_id, generation),
                chosen,
                attempts=2,
            )

        owner = self._hosts[record.fragment(fragment_id).owner]
        self._network.call(
            self.name,
            owner.name,
            lambda answer: answer(owner.adopt(assignment)),
            lambda has_it: None if has_it else silent(),
            silent,
            _WAIT_S,
        )

    def adopt(self, assignment: Assignment) -> bool:
        """Take over from the replica here. Whether this host has the fragment then.

        The replica stays until the keepers have confirmed it: whoever says so may have been told of a takeover that
        never was agreed on.
        """
        fragment_id = assignment.fragment_id
        here = self.fragments.get(fragment_id)
        if here is not None and here.generation >= assignment.generation:
            return True
        replica = self.replicas.get(fragment_id)
        if replica is None:
            return False
        self.running.pop(fragment_id, None)
        self.fragments[fragment_id] = OnDisk(HostingRecord(self.name, assignment), copy.deepcopy(replica.state))
        return True

    # --- the fragment's work

    def _work(self, fragment_id: str, running: Running) -> None:
        on_disk = self.fragments[fragment_id]
        state, spec = on_disk.state, on_disk.record.assignment.spec
        if spec.kind is FragmentKind.SOURCE:
            if self.may_produce and len(state.log) < _MAX_LOG:
                state.put_out(((fragment_id, state.seen[fragment_id]),))
            return
        for producer in state.producers:
            self._pull(fragment_id, producer)
        if len(state.log) < _MAX_LOG and state.run_batch(self._network.rng.randint(1, 4)):
            running.read_by[state.batch_id] = dict(state.read)
        if spec.kind is FragmentKind.SINK:
            self.delivered.extend(row for segment in state.log.values() for row in segment.rows)
            state.log.clear()
        else:
            self._replicate(fragment_id, running)
        self._acknowledge(on_disk, running)

    def _owner_of(self, fragment_id: str, consumer: OnDisk) -> tuple[str, int] | None:
        """Where a fragment is, as some keeper sees it; that may be an old story."""
        record = self._keepers[self._network.rng.choice(consumer.record.assignment.keepers)].record
        return None if record is None else (record.fragment(fragment_id).owner, record.fragment(fragment_id).generation)

    def _pull(self, fragment_id: str, producer: str) -> None:
        on_disk = self.fragments[fragment_id]
        place = self._owner_of(producer, on_disk)
        if place is None:
            return
        owner, generation = place

        from_batch = on_disk.state.next_batch(producer)

        def take_in(segments: list[Segment] | None) -> None:
            if self.fragments.get(fragment_id) is not on_disk or not self.holds(fragment_id):
                return
            if segments is None and on_disk.state.next_batch(producer) == from_batch:
                raise LostOrDoubledError(f"batch {from_batch} of {producer} was trimmed before {fragment_id} had it")
            for segment in segments or ():
                on_disk.state.take_in(producer, segment)

        self._call(owner, lambda host: host.serve(producer, generation, from_batch), take_in)

    def serve(self, fragment_id: str, generation: int, from_batch: int) -> list[Segment] | None:
        """Output from ``from_batch`` on, nothing if it is not served here under that generation; None for a loss."""
        if not self.holds(fragment_id) or self.fragments[fragment_id].generation != generation:
            return []
        return self.fragments[fragment_id].state.serve(from_batch, self.running[fragment_id].replication.safe_batch)

    def _acknowledge(self, on_disk: OnDisk, running: Running) -> None:
        safe = running.replication.safe_batch
        known = [batch_id for batch_id in running.read_by if safe is None or batch_id <= safe]
        if not known:
            return
        consumer = on_disk.record.assignment.fragment_id
        for producer, batch_id in running.read_by[max(known)].items():
            place = self._owner_of(producer, on_disk)
            if place is not None:
                self._call(
                    place[0],
                    lambda host, producer=producer, generation=place[1], batch_id=batch_id: host.acknowledged(  # type: ignore[misc]
                        producer, generation, consumer, batch_id
                    ),
                )
        for batch_id in known:
            if batch_id < max(known):
                del running.read_by[batch_id]

    def acknowledged(self, fragment_id: str, generation: int, consumer: str, batch_id: int) -> None:
        if self.holds(fragment_id) and self.fragments[fragment_id].generation == generation:
            self.fragments[fragment_id].state.acknowledge(consumer, batch_id)

    # --- replicas

    def _replicate(self, fragment_id: str, running: Running) -> None:
        replication, on_disk = running.replication, self.fragments[fragment_id]
        batch_id, generation = on_disk.state.batch_id, on_disk.generation
        replication_was_free = not replication.required
        if len(replication.required) < self._wanted_replicas and not running.proposing:
            others = [name for name in sorted(self._hosts) if name not in {self.name, *replication.required}]
            chosen = self._network.rng.choice(others)
            replication.join(chosen)
            running.stored_at_s[chosen] = self._now_s()
        if replication_was_free:
            replication.let_out(batch_id)
        for host in sorted(replication.required):
            running.stored_at_s.setdefault(host, self._now_s())
            if replication.has(host, batch_id):
                running.stored_at_s[host] = self._now_s()
                continue
            snapshot = on_disk.state.snapshot()

            def stored(kept: bool, host: str = host) -> None:
                if kept and self.running.get(fragment_id) is running:
                    replication.stored(host, batch_id)
                    running.stored_at_s[host] = self._now_s()

            self._call(host, partial(_store, fragment_id, generation, batch_id, snapshot), stored)
        self._propose_replicas(fragment_id, running)

    def store(self, fragment_id: str, generation: int, batch_id: int, state: ModelledFragment) -> bool:
        """Keep a replica, durably. Not for an owner that was followed by another one, as far as known here."""
        here, known = self.fragments.get(fragment_id), self.replicas.get(fragment_id)
        if here is not None and here.generation >= generation:
            return False
        if known is not None and known.generation > generation:
            return False
        if known is None or (known.generation, known.batch_id) < (generation, batch_id):
            self.replicas[fragment_id] = Replica(generation, batch_id, copy.deepcopy(state))
        return True

    def _propose_replicas(self, fragment_id: str, running: Running) -> None:
        replication = running.replication
        late = {host for host in replication.required if self._now_s() - running.stored_at_s[host] > _PATIENCE_S}
        ready = {host for host in replication.required if replication.may_be_proposed(host)}
        if running.proposing:
            return
        for host in late - replication.agreed - ready:
            replication.give_up(host)
        wanted = (replication.agreed - late) | ready
        if wanted == replication.agreed:
            return
        running.proposing = True
        generation, changes = self.fragments[fragment_id].generation, running.changes

        def chosen(record: QueryRecord) -> None:
            running.proposing = False
            fragment = record.fragment(fragment_id)
            if (fragment.owner, fragment.generation) == (self.name, generation):
                if not fragment.replicas:
                    replication.let_out(self.fragments[fragment_id].state.batch_id)
                running.changes = fragment.replica_changes
                replication.agree(fragment.replicas)

        on_disk = self.fragments[fragment_id]

        def failed(error: SbonError) -> None:
            # What was proposed may be agreed on all the same: ask what the record says, for certain.
            self._ask_keeper(on_disk, lambda record: record, chosen, failed)

        self._ask_keeper(
            on_disk,
            lambda record: (
                None
                if record is None
                else query_rules.replicated(record, self.name, fragment_id, generation, changes, tuple(sorted(wanted)))
            ),
            chosen,
            failed,
        )

    # --- moves

    def move(self, fragment_id: str, target: str) -> None:
        """Announce, stop, ship, hand over; whatever fails, the next word is the keepers'."""
        if fragment_id not in self.running or fragment_id in self._moving or not self.holds(fragment_id):
            return
        on_disk = self.fragments[fragment_id]
        generation = on_disk.generation
        self._moving.add(fragment_id)

        def end() -> None:
            self._moving.discard(fragment_id)
            self.running.pop(fragment_id, None)  # unconfirmed: the next word is the keepers'

        def granted(record: QueryRecord) -> None:
            move = record.move
            if self.fragments.get(fragment_id) is not on_disk or move is None or move.fragment_id != fragment_id:
                end()
                return
            self.running.pop(fragment_id, None)
            on_disk.record = on_disk.record.to(Phase.STOPPING)
            shipped = copy.deepcopy(on_disk.state)
            assignment = record.assignment(fragment_id, move.generation)
            other = self._hosts[target]
            self._network.call(
                self.name,
                target,
                lambda answer: answer(other.accept(assignment, shipped)),
                lambda _: end(),
                end,
                _WAIT_S,
            )

        self._ask_keeper(
            on_disk,
            lambda record: (
                None if record is None else query_rules.announce(record, self.name, fragment_id, generation, target)
            ),
            granted,
            lambda _error: end(),
        )

    def accept(self, assignment: Assignment, state: ModelledFragment) -> bool:
        """A folder has arrived: it is durable here before it is claimed."""
        here = self.fragments.get(assignment.fragment_id)
        if here is not None:
            return False
        self.fragments[assignment.fragment_id] = OnDisk(HostingRecord(self.name, assignment), copy.deepcopy(state))
        return True


def _store(fragment_id: str, generation: int, batch_id: int, state: ModelledFragment, host: SimulatedHost) -> bool:
    return host.store(fragment_id, generation, batch_id, state)
