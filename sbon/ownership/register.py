"""A register that a majority of keepers agree on: compare-and-set without a log, sans-I/O.

The protocol is CASPaxos (D. Rystsov, "CASPaxos: Replicated State Machines without logs", 2018, section 2.2): a
proposer has a majority promise a ballot, applies its change to the value of the highest ballot that any of them had
accepted, and has a majority accept the outcome. A change is a pure function, so it may be applied in several rounds
of which at most one counts.

The functions are what a keeper does with what it has written down; it writes the new :class:`Register` down before it
answers. :class:`Round` is what a proposer knows during one ballot; sending, waiting and trying again are its caller's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from enum import StrEnum
from typing import Generic, NamedTuple, TypeVar

import msgspec

from sbon.errors import SbonError

V = TypeVar("V")


class Ballot(NamedTuple):
    """Ordered. ``proposer`` is a node id, so that no two proposers use the same one."""

    counter: int
    proposer: str


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
    ACCEPTING = "accepting"
    CHOSEN = "chosen"  # for good: every later round starts from it
    FAILED = "failed"  # if it had been accepting, nobody knows yet whether a later round will find it


class Round(Generic[V]):
    """One ballot of a proposer. ``change`` maps the present value to the next, or raises SbonError to leave it.

    A refusal by ``change`` is only believed once the value it was about has been chosen (again): it may have seen one
    that never was. So :attr:`error` means something in the stage CHOSEN only.
    """

    def __init__(self, ballot: Ballot, keepers: Iterable[str], change: Callable[[V | None], V | None]) -> None:
        self.ballot = ballot
        self._keepers = frozenset(keepers)
        self._quorum = len(self._keepers) // 2 + 1
        self._change = change
        self._stage = Stage.PREPARING
        self._promises: set[str] = set()
        self._accepts: set[str] = set()
        self._lost: set[str] = set()
        self._newest: Register[V] = Register()
        self.value: V | None = None
        self.error: SbonError | None = None
        #: The highest ballot counter that anybody answered with: the next attempt has to be above it.
        self.highest = ballot.counter

    @property
    def stage(self) -> Stage:
        return self._stage

    def promised(self, keeper: str, register: Register[V]) -> None:
        """``keeper`` has promised, and this is what it had accepted."""
        if self._stage is not Stage.PREPARING or keeper not in self._keepers or keeper in self._promises:
            return
        self._promises.add(keeper)
        if register.accepted > self._newest.accepted:
            self._newest = register
        if len(self._promises) < self._quorum:
            return
        self._lost.clear()  # whoever did not answer may still accept
        self.value = self._newest.value
        try:
            self.value = self._change(self.value)
        except SbonError as error:
            self.error = error
        # That a majority has never heard of the register needs no agreement.
        self._stage = Stage.CHOSEN if self.value is None else Stage.ACCEPTING

    def accepted(self, keeper: str) -> None:
        """``keeper`` has accepted :attr:`value`."""
        if self._stage is Stage.ACCEPTING and keeper in self._keepers:
            self._accepts.add(keeper)
            if len(self._accepts) >= self._quorum:
                self._stage = Stage.CHOSEN

    def refused(self, keeper: str, promised: Ballot) -> None:
        """``keeper`` takes part in the ballot ``promised`` instead, or does not accept this value now."""
        self.highest = max(self.highest, promised.counter)
        self.lost(keeper)

    def lost(self, keeper: str) -> None:
        """``keeper`` will not answer in this stage."""
        if keeper in self._keepers:
            self._lost.add(keeper)
        if len(self._keepers) - len(self._lost) < self._quorum and self._stage is not Stage.CHOSEN:
            self._stage = Stage.FAILED
