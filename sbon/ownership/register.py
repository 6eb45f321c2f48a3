"""A register that a majority of keepers agree on: compare-and-set without a log, sans-I/O.

The protocol is CASPaxos (D. Rystsov, "CASPaxos: Replicated State Machines without logs", 2018, section 2.2): a
proposer has a majority promise a ballot, applies its change to the value of the highest ballot that any of them had
accepted, and has a majority accept the outcome. A change is a pure function, so it may be applied in several rounds
of which at most one counts.

The value itself may say who its keepers are, and a change may name others. The rules are those of Raft (D. Ongaro,
"Consensus: Bridging Theory and Practice", 2014, section 4.1, with his correction of 2015):

- One keeper comes or goes at a time, so any majority of one set has a member in any majority of the next.
- A proposer may start from any set that any keeper has ever accepted. It asks on until a majority of the keepers of the
  newest value that it has found have promised. Whoever has left keeps what it had, for those who still ask there.
- A ballot that changes the set has a majority accept what it has found first, and then, in its second step, the
  outcome. Otherwise two proposers who start from one set may have two others chosen that share no majority.

The functions are what a keeper does with what it has written down; it writes the new :class:`Register` down before it
answers. :class:`Round` is what a proposer knows during one ballot; sending, waiting and trying again are its caller's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from collections.abc import Set as AbstractSet
from enum import StrEnum
from typing import Generic, NamedTuple, TypeVar

import msgspec

from sbon.errors import SbonError

V = TypeVar("V")


class Ballot(NamedTuple):
    """Ordered. ``proposer`` is a node id, so no two proposers use the same one; ``step`` is 1 in the second step."""

    counter: int
    proposer: str
    step: int = 0


NO_BALLOT = Ballot(0, "")


class Register(msgspec.Struct, Generic[V], frozen=True):
    """One keeper's share. ``value`` was accepted under ``accepted``; it is None before the first one."""

    promised: Ballot = NO_BALLOT
    accepted: Ballot = NO_BALLOT
    value: V | None = None


def promise(register: Register[V], ballot: Ballot) -> Register[V] | None:
    """The register that takes part in ``ballot`` and in no lower one any more; None if it takes part in that already.

    Nothing is promised twice, so a proposer that was restarted and counts anew gets no majority for a used ballot.
    """
    if ballot <= register.promised:
        return None
    return msgspec.structs.replace(register, promised=ballot)


def accept(register: Register[V], ballot: Ballot, value: V) -> Register[V] | None:
    """The register with ``value``; None if it has promised a higher ballot."""
    if ballot < register.promised:
        return None
    return Register(ballot, ballot, value)


class Stage(StrEnum):
    PREPARING = "preparing"
    CONFIRMING = "confirming"  # having what was found accepted, because its keepers are to change
    ACCEPTING = "accepting"
    CHOSEN = "chosen"  # for good: every later round starts from it
    FAILED = "failed"  # if it had been accepting, nobody knows yet whether a later round will find it


class Round(Generic[V]):
    """One ballot of a proposer. ``change`` maps the present value to the next, or raises SbonError to leave it.

    A refusal by ``change`` is only believed once the value it was about has been chosen (again): it may have seen one
    that never was. So :attr:`error` means something in the stage CHOSEN only.
    """

    def __init__(
        self,
        ballot: Ballot,
        keepers: Iterable[str],
        change: Callable[[V | None], V | None],
        keepers_of: Callable[[V], Iterable[str]] | None = None,
    ) -> None:
        """``keepers`` are those that the proposer knows; ``keepers_of`` a value, if it says who they are."""
        self.ballot = ballot
        self._known = frozenset(keepers)
        self._keepers_of = keepers_of
        self._change = change
        self._stage = Stage.PREPARING
        self._asked: set[str] = set()
        self._agreed: set[str] = set()
        self._lost: set[str] = set()
        self._newest: Register[V] = Register()
        self._outcome: V | None = None
        #: What is to be accepted now.
        self.value: V | None = None
        self.error: SbonError | None = None
        #: The highest ballot counter that anybody answered with: the next attempt has to be above it.
        self.highest = ballot.counter

    @property
    def stage(self) -> Stage:
        return self._stage

    def unasked(self) -> list[str]:
        """Who is to be asked now, in the present stage, and has not been."""
        if self._stage in (Stage.CHOSEN, Stage.FAILED):
            return []
        news = sorted(self._everybody - self._asked)
        self._asked.update(news)
        return news

    def promised(self, keeper: str, register: Register[V]) -> None:
        """``keeper`` has promised, and this is what it had accepted."""
        if self._stage is not Stage.PREPARING or keeper in self._agreed:
            return
        self._agreed.add(keeper)
        if register.accepted > self._newest.accepted:
            self._newest = register
        self._look()

    def accepted(self, keeper: str, ballot: Ballot) -> None:
        """``keeper`` has accepted the :attr:`value` of that :attr:`ballot`."""
        if self._stage in (Stage.CONFIRMING, Stage.ACCEPTING) and ballot == self.ballot:
            self._agreed.add(keeper)
            self._look()

    def refused(self, keeper: str, promised: Ballot) -> None:
        """``keeper`` takes part in the ballot ``promised`` instead, or does not accept this value now."""
        self.highest = max(self.highest, promised.counter)
        self.lost(keeper)

    def lost(self, keeper: str) -> None:
        """``keeper`` will not answer in this stage."""
        self._lost.add(keeper)
        self._look()

    @property
    def _everybody(self) -> frozenset[str]:
        # Those who leave are asked to accept as well: so they learn that they have left.
        return self._known | self._set_of(self._newest.value) | self._set_of(self.value)

    def _set_of(self, value: V | None) -> frozenset[str]:
        return self._known if value is None or self._keepers_of is None else frozenset(self._keepers_of(value))

    def _look(self) -> None:
        """Go on to the next stage, or give up, if it is time."""
        if self._stage in (Stage.CHOSEN, Stage.FAILED):
            return
        if self._stage is Stage.PREPARING:
            sets = [self._known, self._set_of(self._newest.value)]
        else:
            sets = [self._set_of(self.value)]
        if all(_is_majority(self._agreed, keepers) for keepers in sets):
            self._go_on()
        elif not _is_majority(sets[0] - self._lost, sets[0]) or self._everybody <= self._agreed | self._lost:
            self._stage = Stage.FAILED

    def _go_on(self) -> None:
        if self._stage is Stage.ACCEPTING:
            self._stage = Stage.CHOSEN
            return
        if self._stage is Stage.PREPARING:
            self._outcome = self._newest.value
            try:
                self._outcome = self._change(self._outcome)
            except SbonError as error:
                self.error = error
            if self._set_of(self._outcome) == self._set_of(self._newest.value):
                self._stage, self.value = Stage.ACCEPTING, self._outcome
            else:
                self._stage, self.value = Stage.CONFIRMING, self._newest.value
        else:
            self._stage, self.value, self.ballot = Stage.ACCEPTING, self._outcome, self.ballot._replace(step=1)
        for heard in (self._asked, self._agreed, self._lost):
            heard.clear()  # whoever did not answer before may do so now
        if self.value is None:
            self._stage = Stage.CHOSEN  # that a majority has never heard of the register needs no agreement


def _is_majority(some: AbstractSet[str], keepers: frozenset[str]) -> bool:
    return 2 * len(some & keepers) > len(keepers)
