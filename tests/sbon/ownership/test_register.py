"""The register that keepers agree on: single rounds, and every order of messages that Hypothesis can think of."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule

from sbon.errors import SbonError
from sbon.ownership.leases import LeaseTable
from sbon.ownership.register import Ballot, Register, Round, Stage, accept, promise
from sbon.ownership.share import Share

KEEPERS = ("a", "b", "c")


def appending(word: str) -> Callable[[tuple[str, ...] | None], tuple[str, ...]]:
    return lambda before: (*(before or ()), word)


def stage_of(round_: Round[Any]) -> Stage:
    """It changes with what the round is told, which a type checker does not see."""
    return round_.stage


def test_a_ballot_is_promised_once_and_no_lower_one_after_it() -> None:
    register: Register[str] = Register()
    promised = promise(register, Ballot(2, "a"))
    assert promised is not None
    assert promise(promised, Ballot(2, "a")) is None
    assert promise(promised, Ballot(1, "b")) is None
    assert accept(promised, Ballot(1, "b"), "late") is None
    assert accept(promised, Ballot(2, "a"), "value") == Register(Ballot(2, "a"), Ballot(2, "a"), "value")


def test_a_round_goes_on_from_the_newest_value_of_a_majority() -> None:
    round_ = Round(Ballot(9, "a"), KEEPERS, appending("new"))
    round_.promised("a", Register(Ballot(9, "a"), Ballot(3, "b"), ("older",)))
    assert stage_of(round_) is Stage.PREPARING
    round_.promised("b", Register(Ballot(9, "a"), Ballot(4, "a"), ("newer",)))
    assert (stage_of(round_), round_.value) == (Stage.ACCEPTING, ("newer", "new"))
    round_.accepted("c", round_.ballot)
    round_.accepted("c", round_.ballot)
    assert stage_of(round_) is Stage.ACCEPTING
    round_.accepted("a", round_.ballot)
    assert stage_of(round_) is Stage.CHOSEN


def test_a_refusal_is_believed_only_once_what_it_is_about_is_chosen() -> None:
    def refuse(_: str | None) -> str:
        raise SbonError("no")

    round_ = Round(Ballot(5, "a"), KEEPERS, refuse)
    for keeper in ("a", "b"):
        round_.promised(keeper, Register(Ballot(5, "a"), Ballot(4, "c"), "perhaps"))
    assert (stage_of(round_), round_.value) == (Stage.ACCEPTING, "perhaps")
    for keeper in ("a", "b"):
        round_.accepted(keeper, round_.ballot)
    assert stage_of(round_) is Stage.CHOSEN
    assert str(round_.error) == "no"


def test_without_a_majority_a_round_fails_and_says_what_to_try_next() -> None:
    round_ = Round(Ballot(1, "a"), KEEPERS, appending("x"))
    round_.promised("a", Register())
    round_.lost("b")
    round_.refused("c", Ballot(7, "c"))
    assert (stage_of(round_), round_.highest) == (Stage.FAILED, 7)


@pytest.mark.parametrize(("keepers", "answers"), [(("a",), 1), (KEEPERS, 2), ((*KEEPERS, "d", "e"), 3)])
def test_a_majority_is_more_than_half(keepers: tuple[str, ...], answers: int) -> None:
    round_ = Round(Ballot(1, "a"), keepers, appending("x"))
    for keeper in keepers[: answers - 1]:
        round_.promised(keeper, Register())
    assert stage_of(round_) is Stage.PREPARING
    round_.promised(keepers[answers - 1], Register())
    assert stage_of(round_) is Stage.ACCEPTING


class Agreement(RuleBasedStateMachine):
    """Proposers append words; messages come in any order, twice or never. What was chosen is never lost again."""

    def __init__(self) -> None:
        super().__init__()
        self.disks: dict[str, Register[tuple[str, ...]]] = dict.fromkeys(KEEPERS, Register())
        self.rounds: list[Round[tuple[str, ...]]] = []
        self.chosen: tuple[str, ...] = ()

    def share(self, keeper: str) -> Share[tuple[str, ...]]:
        """As after a restart: all that counts is on the disk."""

        def store(register: Register[tuple[str, ...]]) -> None:
            self.disks[keeper] = register

        return Share(self.disks[keeper], LeaseTable(0.0, 0.0), lambda _: {}, store)

    @rule(counter=st.integers(1, 8), proposer=st.sampled_from(KEEPERS))
    def begin(self, counter: int, proposer: str) -> None:
        """Perhaps with a ballot that was used before: a proposer forgets."""
        self.rounds.append(Round(Ballot(counter, proposer), KEEPERS, appending(f"w{len(self.rounds)}")))

    @precondition(lambda self: self.rounds)
    @rule(data=st.data(), keeper=st.sampled_from(KEEPERS), answered=st.booleans())
    def prepare(self, data: st.DataObject, keeper: str, answered: bool) -> None:
        round_ = data.draw(st.sampled_from(self.rounds[-4:]))
        share = self.share(keeper)
        if share.prepare(round_.ballot) and answered:
            round_.promised(keeper, share.register)

    @precondition(lambda self: any(round_.value is not None for round_ in self.rounds))
    @rule(data=st.data(), keeper=st.sampled_from(KEEPERS), answered=st.sampled_from((True, True, False)))
    def accept(self, data: st.DataObject, keeper: str, answered: bool) -> None:
        round_ = data.draw(st.sampled_from([round_ for round_ in self.rounds if round_.value is not None][-4:]))
        assert round_.value is not None
        if self.share(keeper).accept(round_.ballot, round_.value, 1.0) and answered:
            before = stage_of(round_)
            round_.accepted(keeper, round_.ballot)
            if before is not stage_of(round_):
                self.was_chosen(round_.value)

    def was_chosen(self, value: tuple[str, ...]) -> None:
        shorter, longer = sorted((self.chosen, value), key=len)
        assert longer[: len(shorter)] == shorter, f"{value} was chosen after {self.chosen}"
        self.chosen = longer

    def teardown(self) -> None:
        for counter in (10, 11):
            final: Round[tuple[str, ...]] = Round(Ballot(counter, "a"), KEEPERS, lambda value: value)
            for keeper in KEEPERS[counter - 10 : counter - 8]:
                share = self.share(keeper)
                assert share.prepare(final.ballot)
                final.promised(keeper, share.register)
            found = final.value or ()
            assert found[: len(self.chosen)] == self.chosen


Agreement.TestCase.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
TestAgreement = Agreement.TestCase
