"""One keeper's share of a register: what it answers, and what it has to write down first, sans-I/O."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Generic, TypeVar

from sbon.ownership.leases import LeaseTable
from sbon.ownership.register import Ballot, Register, accept, promise

V = TypeVar("V")


class Share(Generic[V]):
    """A register with the leases that guard it.

    ``takeovers(value)`` is what the leases have to permit before ``value`` is accepted: fragment id -> generation.
    ``joined(before, value)`` are the fragments that this keeper begins to look after with ``value``.
    ``store`` makes a register durable before anything is answered; what it raises leaves the share as it was.
    """

    def __init__(
        self,
        register: Register[V],
        leases: LeaseTable,
        takeovers: Callable[[V], Mapping[str, int]],
        store: Callable[[Register[V]], None],
        joined: Callable[[V | None, V], Iterable[str]] = lambda _before, _value: (),
    ) -> None:
        self.register = register
        self._joined = joined
        self._leases = leases
        self._takeovers = takeovers
        self._store = store

    def prepare(self, ballot: Ballot) -> bool:
        """Whether this keeper takes part in ``ballot``; if so, :attr:`register` says what it had accepted."""
        return self._write(promise(self.register, ballot))

    def accept(self, ballot: Ballot, value: V, now_s: float) -> bool:
        """Whether this keeper has accepted ``value``. Not if it would end a lease that this keeper has granted."""
        before = self.register.value
        known = {} if before is None else self._takeovers(before)
        # What it has accepted before, its leases have permitted before.
        news = {key: generation for key, generation in self._takeovers(value).items() if generation > known.get(key, 0)}
        if not self._leases.permits(news, now_s):
            return False
        if not self._write(accept(self.register, ballot, value)):
            return False
        # What others have granted before it came is not known here.
        self._leases.be_silent(self._joined(before, value), now_s)
        return True

    def _write(self, register: Register[V] | None) -> bool:
        if register is None:
            return False
        if register != self.register:
            self._store(register)
            self.register = register
        return True
