"""What an owner lets out: never what a host that may become its replacement does not have."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from sbon.ownership.replication import NOTHING, Replication

HOSTS = ("a", "b", "c")


def test_without_replicas_nobody_is_waited_for() -> None:
    assert Replication((), 5).safe_batch is None


def test_everybody_who_may_be_a_replica_is_waited_for() -> None:
    replication = Replication(("a",), 5)
    assert replication.safe_batch == NOTHING
    replication.stored("a", 6)
    assert replication.safe_batch == 6
    replication.join("b")
    replication.stored("a", 7)
    assert replication.safe_batch == 6  # nothing that was let out is taken back, and nothing new follows
    assert not replication.may_be_proposed("b")
    replication.stored("b", 7)
    assert replication.may_be_proposed("b")
    assert replication.safe_batch == 7


def test_a_host_joins_only_with_all_that_was_let_out() -> None:
    replication = Replication((), NOTHING)
    replication.join("a")
    assert not replication.may_be_proposed("a")  # not even with nothing: it has to have stored that
    replication.let_out(3)
    replication.stored("a", 2)
    assert not replication.may_be_proposed("a")
    replication.stored("a", 3)
    assert replication.may_be_proposed("a")


class Owner(RuleBasedStateMachine):
    """An owner that runs batches, ships, and proposes sets of which the outcome may stay unknown for a while."""

    def __init__(self) -> None:
        super().__init__()
        self.record: frozenset[str] = frozenset()
        self.disks = dict.fromkeys(HOSTS, NOTHING - 1)
        self.batch = NOTHING
        self.served = NOTHING
        self.replication = Replication((), NOTHING)
        self.unknown = False

    @rule()
    def run_batch(self) -> None:
        self.batch += 1

    @rule()
    def serve(self) -> None:
        safe = self.replication.safe_batch
        self.served = max(self.served, self.batch if safe is None else safe)
        assert self.served <= self.batch

    @rule(host=st.sampled_from(HOSTS))
    def join(self, host: str) -> None:
        if self.replication.safe_batch is None:
            self.replication.let_out(self.batch)
        self.replication.join(host)

    @precondition(lambda self: self.replication.required)
    @rule(data=st.data(), answered=st.booleans())
    def ship(self, data: st.DataObject, answered: bool) -> None:
        host = data.draw(st.sampled_from(sorted(self.replication.required)))
        self.disks[host] = self.batch
        if answered:
            self.replication.stored(host, self.batch)

    @rule(leaving=st.sampled_from((None, *HOSTS)), happens=st.booleans(), answered=st.booleans())
    def propose(self, leaving: str | None, happens: bool, answered: bool) -> None:
        if self.unknown:
            return
        ready = {host for host in self.replication.required if self.replication.may_be_proposed(host)}
        wanted = (self.replication.agreed | ready) - {leaving}
        if happens:
            self.record = frozenset(wanted)
        if happens and answered:
            self.agree()
        else:
            self.unknown = True

    @rule()
    def agree(self) -> None:
        if not self.record:
            self.replication.let_out(self.batch)
        self.replication.agree(self.record)
        self.unknown = False

    @rule(host=st.sampled_from(HOSTS))
    def give_up(self, host: str) -> None:
        if not self.unknown:
            self.replication.give_up(host)

    @rule()
    def move(self) -> None:
        """To a host that is none of these: it has all that was committed, and knows of nobody what he stored."""
        if not self.unknown:
            self.replication = Replication(self.record, self.batch)

    @invariant()
    def a_replacement_has_all_that_was_let_out(self) -> None:
        for host in self.record:
            assert self.disks[host] >= self.served


Owner.TestCase.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
TestOwner = Owner.TestCase
