"""A register whose keepers are replaced one by one, over messages that are lost and late."""

from __future__ import annotations

import random
from collections.abc import Callable, Collection
from typing import NamedTuple

import pytest

from sbon.ownership.company import Company, next_keepers
from sbon.ownership.leases import LeaseTable
from sbon.ownership.register import Ballot, Register, Round, Stage
from sbon.ownership.share import Share
from tests.sbon.ownership.test_register import stage_of

NODES = ("a", "b", "c", "d", "e")
FIRST = ("a", "b", "c")
SEEDS = range(150)


class Value(NamedTuple):
    words: tuple[str, ...]
    keepers: tuple[str, ...]
    changes: int


Change = Callable[[Value | None], Value | None]


def keepers_of(value: Value) -> tuple[str, ...]:
    return value.keepers


def appending(word: str) -> Change:
    return lambda before: before and before._replace(words=(*before.words, word))


def stepping(node: str) -> Change:
    """Without ``node``, or with it."""

    def change(before: Value | None) -> Value | None:
        if before is None or (node in before.keepers and len(before.keepers) == 2):
            return before
        keepers = tuple(keeper for keeper in before.keepers if keeper != node)
        if node not in before.keepers:
            keepers = (*keepers, node)
        return before._replace(keepers=keepers, changes=before.changes + 1)

    return change


def test_a_round_asks_on_until_the_keepers_of_the_newest_value_have_promised() -> None:
    later = Value(("w",), ("a", "d", "e"), 4)
    round_ = Round(Ballot(9, "x"), FIRST, appending("new"), keepers_of)
    assert round_.unasked() == ["a", "b", "c"]
    round_.promised("a", Register(Ballot(9, "x"), Ballot(3, "a"), later))
    assert round_.unasked() == ["d", "e"]
    round_.promised("b", Register())
    assert stage_of(round_) is Stage.PREPARING, "b counts for the old set only"
    round_.promised("e", Register())
    assert round_.value == later._replace(words=("w", "new"))
    assert round_.unasked() == ["a", "b", "c", "d", "e"], "those who have left are told"
    for former in ("b", "c", "d"):
        round_.accepted(former, round_.ballot)
    assert stage_of(round_) is Stage.ACCEPTING
    round_.accepted("a", round_.ballot)
    assert stage_of(round_) is Stage.CHOSEN


def test_a_lost_keeper_goes_first_and_another_one_comes_then() -> None:
    assert next_keepers(FIRST, set(), ("d",), 3) is None
    assert next_keepers(FIRST, {"b"}, ("b", "d"), 3) == ("a", "c")
    assert next_keepers(("a", "c"), {"b"}, ("b", "c", "d"), 3) == ("a", "c", "d")
    assert next_keepers(FIRST, {"b"}, ("b",), 3) is None, "nobody could take its place"
    assert next_keepers(("a",), set(), ("d",), 3) is None


def test_a_keeper_is_lost_after_a_time_of_silence_that_begins_when_it_is_first_wanted() -> None:
    company = Company(patience_s=10.0)
    assert company.lost("bc", 100.0) == set()
    company.heard("b", 105.0)
    assert company.lost("bc", 111.0) == {"c"}
    assert company.lost("b", 116.0) == {"b"}
    assert company.lost("bc", 117.0) == {"b"}, "c was not wanted meanwhile"


@pytest.mark.parametrize("takeover", ["f", "g"])
def test_a_keeper_that_has_come_does_not_know_what_was_granted(takeover: str) -> None:
    table = LeaseTable(10.0, -100.0)

    def takeovers(value: str) -> dict[str, int]:
        return {takeover: 2} if value == "taken" else {}

    def joined(before: str | None, _value: str) -> tuple[str, ...]:
        return () if before else ("f",)

    share: Share[str] = Share(Register(), table, takeovers, lambda _: None, joined)
    assert share.accept(Ballot(1, "a"), "joined", 0.0)
    assert share.accept(Ballot(2, "a"), "taken", 9.0) is (takeover == "g")
    assert share.accept(Ballot(3, "a"), "taken", 10.0)


class Replacement:
    """Words are appended and keepers replaced, from whatever set anybody has ever accepted. Nothing chosen is lost.

    A round reaches some nodes with its first question and others with the next; what it has not sent may come late.
    """

    def __init__(self) -> None:
        first = Value((), FIRST, 0)
        self.disks: dict[str, Register[Value]] = {node: Register() for node in NODES}
        self.disks |= dict.fromkeys(FIRST, Register(Ballot(0, "a"), Ballot(0, "a"), first))
        self.late: list[tuple[Round[Value], Ballot, Value | None]] = []
        self.chosen = first
        self.words = 0

    def share(self, node: str) -> Share[Value]:
        def store(register: Register[Value]) -> None:
            self.disks[node] = register

        return Share(self.disks[node], LeaseTable(0.0, 0.0), lambda _: {}, store)

    def run(self, proposer: str, change: Change, heard: Collection[str], told: Collection[str]) -> Round[Value] | None:
        known = self.disks[proposer].value
        if known is None:
            return None
        counter = max(register.promised.counter for register in self.disks.values()) + 1
        round_ = Round(Ballot(counter, proposer), known.keepers, change, keepers_of)
        while asked := round_.unasked():
            if round_.stage is Stage.PREPARING:
                self.prepare(round_, asked, heard)
            else:
                message = (round_, round_.ballot, round_.value)
                self.late.append(message)
                for node in asked:
                    if node in told:
                        self.accept(*message, node)
                    else:
                        round_.lost(node)
        return round_

    def prepare(self, round_: Round[Value], asked: Collection[str], heard: Collection[str]) -> None:
        for node in asked:
            share = self.share(node)
            if node in heard and share.prepare(round_.ballot):
                round_.promised(node, share.register)
            else:
                round_.lost(node)

    def accept(self, round_: Round[Value], ballot: Ballot, value: Value | None, node: str) -> None:
        if value is not None and self.share(node).accept(ballot, value, 1.0):
            was_chosen = round_.stage is Stage.CHOSEN
            round_.accepted(node, ballot)
            if round_.stage is Stage.CHOSEN and not was_chosen:
                self.was_chosen(value)

    def append(self, proposer: str, heard: Collection[str], told: Collection[str]) -> None:
        self.words += 1
        self.run(proposer, appending(f"w{self.words}"), heard, told)

    def step(self, proposer: str, node: str, heard: Collection[str], told: Collection[str]) -> None:
        self.run(proposer, stepping(node), heard, told)

    def was_chosen(self, value: Value) -> None:
        shorter, longer = sorted((self.chosen, value), key=lambda value: (len(value.words), value.changes))
        assert longer.words[: len(shorter.words)] == shorter.words, f"{value} was chosen after {self.chosen}"
        assert longer.changes >= shorter.changes, f"{value} was chosen after {self.chosen}"
        assert longer.changes > shorter.changes or longer.keepers == shorter.keepers, f"both {value} and {self.chosen}"
        self.chosen = longer

    def check(self) -> None:
        """Whoever has ever kept it finds what was chosen last."""
        for proposer in NODES:
            found = self.run(proposer, lambda value: value, NODES, NODES)
            assert found is None or found.value == self.chosen


def replacement(seed: int) -> Replacement:
    rng = random.Random(seed)
    run = Replacement()

    def some() -> set[str]:
        return {node for node in NODES if rng.random() < 0.7}

    for _ in range(60):
        what = rng.random()
        if what < 0.3:
            run.append(rng.choice(NODES), some(), some())
        elif what < 0.8:
            run.step(rng.choice(NODES), rng.choice(NODES), some(), some())
        elif run.late:
            run.accept(*rng.choice(run.late[-5:]), rng.choice(NODES))
    run.check()
    return run


def test_nothing_that_was_chosen_is_lost_while_keepers_come_and_go() -> None:
    runs = [replacement(seed) for seed in SEEDS]
    assert sum(run.chosen.changes for run in runs) > 2 * len(runs)
    assert sum(len(run.chosen.words) for run in runs) > 2 * len(runs)


def test_a_round_that_does_not_ask_on_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Round, "_set_of", lambda self, _value: self._known)
    with pytest.raises(AssertionError):
        list(map(replacement, SEEDS))


def test_two_who_replace_a_keeper_at_once_do_not_both_succeed() -> None:
    """The mistake in Raft's first rules: d is proposed and reaches nobody else, e is agreed on, and d goes on."""
    run = Replacement()
    run.step("a", "c", FIRST, FIRST)
    assert run.chosen.keepers == ("a", "b")
    run.step("a", "d", "ab", "d")
    run.step("b", "e", "ab", "ae")
    run.append("d", "bd", "bd")
    run.check()
