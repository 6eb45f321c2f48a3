"""A keeper in the simulation: the shares, rounds and leases of :mod:`sbon.ownership` over the simulated network."""

from __future__ import annotations

from collections.abc import Callable

from daemon import query_record
from daemon.query_record import QueryRecord
from daemon.simulation.ownership.network import Answer, Network
from sbon.errors import SbonError, UnavailableError
from sbon.ownership.leases import LeaseTable
from sbon.ownership.register import Ballot, Register, Round, Stage
from sbon.ownership.share import Share

Change = Callable[[QueryRecord | None], QueryRecord | None]
#: Told the record that was chosen, and why the change was refused if it was; or (None, UnavailableError).
Outcome = Callable[[QueryRecord | None, SbonError | None], None]

_WAIT_S = 2.0
_ATTEMPTS = 6


class SimulatedKeeper:
    """Keeps one query together with the others of ``keepers``. ``disk`` survives :meth:`restart`."""

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
        self.share: Share[QueryRecord] = Share(self.disk, self.leases, query_record.takeovers, self._store)

    def _store(self, register: Register[QueryRecord]) -> None:
        self.disk = register

    @property
    def record(self) -> QueryRecord | None:
        """The newest value that this keeper has accepted. It may not have been chosen."""
        return self.disk.value

    def renew(self, sender: str, fragment_id: str, generation: int) -> bool:
        """Whether the sender is the owner, as far as known here; then it has a lease from here."""
        record = self.record
        if record is None or not query_record.owns(record, sender, fragment_id, generation):
            return False
        self.leases.grant(fragment_id, generation, self._network.local_s(self.name))
        return True

    def overdue(self) -> list[tuple[str, int]]:
        """(fragment, generation) of whom nothing was heard for as long as a lease lasts."""
        fragments = {} if self.record is None else self.record.fragments
        owners = {key: fragment.generation for key, fragment in fragments.items() if not fragment.spec.pinned}
        overdue = self.leases.overdue(owners, self._network.local_s(self.name))
        return [(fragment_id, owners[fragment_id]) for fragment_id in overdue]

    def propose(self, change: Change, outcome: Outcome, attempts: int = _ATTEMPTS) -> None:
        """Have a majority agree on what ``change`` makes of the record."""
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
        self._round: Round[QueryRecord] = Round(ballot, keepers, change)
        self._is_over = False
        for name in keepers:
            self._ask(name, self._prepare, self._prepared)

    def _ask(
        self, name: str, handler: Callable[[SimulatedKeeper, Answer], None], answered: Callable[[str, object], None]
    ) -> None:
        self._network.call(
            self._proposer.name,
            name,
            lambda answer: handler(self._keepers[name], answer),
            lambda reply: answered(name, reply),
            lambda: self._silent(name, self._round.stage),
            _WAIT_S,
        )

    def _prepare(self, keeper: SimulatedKeeper, answer: Answer) -> None:
        answer((keeper.share.prepare(self._round.ballot), keeper.share.register))

    def _prepared(self, name: str, reply: object) -> None:
        assert isinstance(reply, tuple)
        granted, register = reply
        before = self._round.stage
        if granted:
            self._round.promised(name, register)
        else:
            self._round.refused(name, register.promised)
        if before is Stage.PREPARING and self._round.stage is Stage.ACCEPTING:
            for keeper in self._keepers:
                self._ask(keeper, self._accept, self._accepted)
        self._settle()

    def _accept(self, keeper: SimulatedKeeper, answer: Answer) -> None:
        assert self._round.value is not None
        now_s = self._network.local_s(keeper.name)
        answer((keeper.share.accept(self._round.ballot, self._round.value, now_s), keeper.share.register.promised))

    def _accepted(self, name: str, reply: object) -> None:
        assert isinstance(reply, tuple)
        granted, promised = reply
        if granted:
            self._round.accepted(name)
        else:
            self._round.refused(name, promised)
        self._settle()

    def _silent(self, name: str, asked_in: Stage) -> None:
        if asked_in is self._round.stage:
            self._round.lost(name)
        self._settle()

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
                lambda: self._proposer.propose(self._change, self._outcome, self._attempts - 1),
            )
