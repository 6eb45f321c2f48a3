"""A keeper in the simulation: the shares, rounds and leases of :mod:`sbon.ownership` over the simulated network.

Every host can be one; those are that the record names.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import partial

from daemon.peering import query_rules
from daemon.peering.query_messages import KeptBy
from daemon.peering.query_record import KEEPERS, QueryRecord
from daemon.queries.fellow_keepers import ASKS_PER_LEASE, PATIENCE_LEASES
from daemon.simulation.ownership.network import Answer, Network
from sbon.errors import SbonError, UnavailableError
from sbon.ownership.company import Company, next_keepers
from sbon.ownership.leases import LeaseTable
from sbon.ownership.register import Ballot, Register, Round, Stage
from sbon.ownership.share import Share

Change = Callable[[QueryRecord | None], QueryRecord | None]
#: Told the record that was chosen, and why the change was refused if it was; or (None, UnavailableError).
Outcome = Callable[[QueryRecord | None, SbonError | None], None]

_WAIT_S = 2.0
_ATTEMPTS = 6


class SimulatedKeeper:
    """Keeps one query, if the record says so. ``keepers`` are all hosts. ``disk`` survives :meth:`restart`."""

    def __init__(self, name: str, keepers: dict[str, SimulatedKeeper], network: Network, lease_s: float) -> None:
        self.name = name
        self._keepers = keepers
        self._network = network
        self._lease_s = lease_s
        self.disk: Register[QueryRecord] = Register()
        self._highest = 0
        self.restart()

    def restart(self) -> None:
        self.leases = LeaseTable(self._lease_s, self._network.local_s(self.name))
        self.share: Share[QueryRecord] = Share(
            self.disk, self.leases, query_rules.takeovers, self._store, partial(query_rules.newly_kept, self.name)
        )
        self._company = Company(PATIENCE_LEASES * self._lease_s)
        self._replacing = False
        self._watch_at_s = 0.0
        self._waiting: deque[tuple[Change, Outcome, int]] = deque()

    def _store(self, register: Register[QueryRecord]) -> None:
        self.disk = register

    @property
    def record(self) -> QueryRecord | None:
        """The newest value that this keeper has accepted. It may not have been chosen."""
        return self.disk.value

    @property
    def is_keeper(self) -> bool:
        """As far as it knows."""
        return self.record is not None and self.name in self.record.keepers

    def renew(self, sender: str, fragment_id: str, generation: int) -> tuple[bool, KeptBy | None]:
        """Whether the sender is the owner, as far as known here; then it has a lease from here. And who keeps it."""
        record = self.record
        if record is None:
            return False, None
        if not self.is_keeper or not query_rules.owns(record, sender, fragment_id, generation):
            return False, record.kept_by
        self.leases.grant(fragment_id, generation, self._network.local_s(self.name))
        return True, record.kept_by

    def overdue(self) -> list[tuple[str, int]]:
        """(fragment, generation) of whom nothing was heard for as long as a lease lasts."""
        fragments = {} if self.record is None or not self.is_keeper else self.record.fragments
        owners = {key: fragment.generation for key, fragment in fragments.items() if not fragment.spec.pinned}
        overdue = self.leases.overdue(owners, self._network.local_s(self.name))
        return [(fragment_id, owners[fragment_id]) for fragment_id in overdue]

    def watch(self) -> None:
        """Look after the other keepers: tell those who know less, learn from those who know more, replace the lost."""
        record, now_s = self.record, self._network.local_s(self.name)
        if record is None or not self.is_keeper or record.is_over or now_s < self._watch_at_s:
            return
        self._watch_at_s = now_s + self._lease_s / ASKS_PER_LEASE
        others = [name for name in record.keepers if name != self.name]
        for name in others:
            self._network.call(
                self.name,
                name,
                lambda answer, name=name: answer(self._keepers[name].disk.value),  # type: ignore[misc]
                lambda theirs, name=name: self._heard(name, theirs),  # type: ignore[misc]
                lambda: None,
                _WAIT_S,
            )
        lost = self._company.lost(others, now_s)
        candidates = self._network.rng.sample(sorted(self._keepers), len(self._keepers))
        keepers = next_keepers(record.keepers, lost, candidates, KEEPERS)
        if keepers is not None:
            self._bring_about(lambda known: known and query_rules.with_keepers(known, keepers, record.keeper_changes))

    def _heard(self, name: str, theirs: QueryRecord | None) -> None:
        self._company.heard(name, self._network.local_s(self.name))
        assert self.record is not None
        if theirs is None or theirs.keeper_changes != self.record.keeper_changes:
            self._bring_about(lambda record: record)

    def _bring_about(self, change: Change) -> None:
        if not self._replacing:
            self._replacing = True
            self.propose(change, self._is_replaced, attempts=1)

    def _is_replaced(self, _record: QueryRecord | None, _error: SbonError | None) -> None:
        self._replacing = False

    def propose(self, change: Change, outcome: Outcome, attempts: int = _ATTEMPTS) -> None:
        """Have a majority agree on what ``change`` makes of the record."""
        if self.record is None:
            outcome(None, UnavailableError("not kept here yet"))
            return
        self._waiting.append((change, outcome, attempts))
        if len(self._waiting) == 1:
            self._begin()

    def _begin(self) -> None:
        """The first of those that wait: one at a time, as they would only be in each other's way."""
        change, outcome, attempts = self._waiting[0]

        def decided(record: QueryRecord | None, error: SbonError | None) -> None:
            outcome(record, error)
            self._waiting.popleft()
            if self._waiting:
                self._begin()

        self.attempt(change, decided, attempts)

    def attempt(self, change: Change, outcome: Outcome, attempts: int) -> None:
        self._highest = max(self._highest, self.disk.promised.counter) + 1
        _Attempt(self, self._keepers, self._network, Ballot(self._highest, self.name), change, outcome, attempts)

    def saw(self, counter: int) -> None:
        self._highest = max(self._highest, counter)


class _Attempt:
    """One round, and after it the next if it failed."""

    def __init__(
        self,
        proposer: SimulatedKeeper,
        keepers: dict[str, SimulatedKeeper],
        network: Network,
        ballot: Ballot,
        change: Change,
        outcome: Outcome,
        attempts: int,
    ) -> None:
        self._proposer, self._keepers, self._network = proposer, keepers, network
        self._change, self._outcome, self._attempts = change, outcome, attempts
        known = proposer.record
        assert known is not None
        self._round: Round[QueryRecord] = Round(ballot, known.keepers, change, lambda record: record.keepers)
        self._is_over = False
        self._go_on()

    def _go_on(self) -> None:
        """Ask whoever has to be asked now, or be done."""
        for name in self._round.unasked():
            if self._round.stage is Stage.PREPARING:
                self._ask(name, self._prepare, self._prepared)
            else:
                ballot, value = self._round.ballot, self._round.value
                assert value is not None
                self._ask(name, partial(self._accept, ballot, value), partial(self._accepted, ballot))
        self._settle()

    def _ask(
        self, name: str, handler: Callable[[SimulatedKeeper, Answer], None], answered: Callable[[str, object], None]
    ) -> None:
        self._network.call(
            self._proposer.name,
            name,
            lambda answer: handler(self._keepers[name], answer),
            lambda reply: answered(name, reply),
            partial(self._silent, name, self._round.stage),
            _WAIT_S,
        )

    def _prepare(self, keeper: SimulatedKeeper, answer: Answer) -> None:
        answer((keeper.share.prepare(self._round.ballot), keeper.share.register))

    def _prepared(self, name: str, reply: object) -> None:
        assert isinstance(reply, tuple)
        granted, register = reply
        if granted:
            self._round.promised(name, register)
        elif self._round.stage is Stage.PREPARING:
            self._round.refused(name, register.promised)
        self._go_on()

    def _accept(self, ballot: Ballot, value: QueryRecord, keeper: SimulatedKeeper, answer: Answer) -> None:
        now_s = self._network.local_s(keeper.name)
        answer((keeper.share.accept(ballot, value, now_s), keeper.share.register.promised))

    def _accepted(self, ballot: Ballot, name: str, reply: object) -> None:
        assert isinstance(reply, tuple)
        granted, promised = reply
        if granted:
            self._round.accepted(name, ballot)
        elif ballot == self._round.ballot:
            self._round.refused(name, promised)
        self._go_on()

    def _silent(self, name: str, asked_in: Stage) -> None:
        if asked_in is self._round.stage:
            self._round.lost(name)
        self._go_on()

    def _settle(self) -> None:
        if self._is_over or self._round.stage not in (Stage.CHOSEN, Stage.FAILED):
            return
        self._is_over = True
        self._proposer.saw(self._round.highest)
        if self._round.stage is Stage.CHOSEN:
            self._outcome(self._round.value, self._round.error)
        elif self._attempts <= 1:
            self._outcome(None, UnavailableError("no majority of the keepers answers"))
        else:
            self._network.later_at(
                self._proposer.name,
                self._network.rng.uniform(0.05, 1.0),
                lambda: self._proposer.attempt(self._change, self._outcome, self._attempts - 1),
            )
