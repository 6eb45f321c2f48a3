"""What happened, for whoever runs an :class:`overlay.node.Overlay`."""

from __future__ import annotations

from dataclasses import dataclass

from overlay.records import Address, NodeRecord


@dataclass(frozen=True, slots=True)
class Joined:
    """The node at ``address``, ``record``, took us in."""

    address: Address
    record: NodeRecord


@dataclass(frozen=True, slots=True)
class JoinFailed:
    """Nobody answered at ``address`` in time, or it refused; ``reason`` is one line for the user."""

    address: Address
    reason: str


@dataclass(frozen=True, slots=True)
class Left:
    """We left; nothing is probed or answered until the next join."""


@dataclass(frozen=True, slots=True)
class MemberJoined:
    """A node has become a neighbour."""

    record: NodeRecord


@dataclass(frozen=True, slots=True)
class MemberRestarted:
    """The same node in a new process (a higher boot id), perhaps at a new address."""

    record: NodeRecord
    previous: NodeRecord


@dataclass(frozen=True, slots=True)
class MemberSuspected:
    """A neighbour is silent, and checked."""

    record: NodeRecord


@dataclass(frozen=True, slots=True)
class MemberRecovered:
    """A suspected member was heard of again."""

    record: NodeRecord


@dataclass(frozen=True, slots=True)
class MemberFailed:
    """A suspected neighbour did not answer: it is taken for dead."""

    record: NodeRecord


@dataclass(frozen=True, slots=True)
class MemberLeft:
    """A neighbour said goodbye."""

    record: NodeRecord


@dataclass(frozen=True, slots=True)
class PathChanged:
    """The filtered round trip from here to a member has really changed."""

    record: NodeRecord
    before_ms: float
    after_ms: float


@dataclass(frozen=True, slots=True)
class SearchFinished:
    """What a search found, by ascending cost, and how many hosts were asked for it."""

    search_id: int
    found: tuple[NodeRecord, ...]
    contacts: int


Event = (
    Joined
    | JoinFailed
    | Left
    | MemberJoined
    | MemberRestarted
    | MemberSuspected
    | MemberRecovered
    | MemberFailed
    | MemberLeft
    | PathChanged
    | SearchFinished
)
