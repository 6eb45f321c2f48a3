"""What daemons say to each other about a move: asked of a keeper, conducted by the sender, accepted by the receiver."""

from __future__ import annotations

import msgspec

from daemon.peering.query_messages import Assignment, MoveReport


class RequestMove(msgspec.Struct, frozen=True):
    """To the keeper: have the fragment moved to the node ``target``. Answered when it runs there."""

    fragment_id: str
    target: str
    reason: str


class ConductMove(msgspec.Struct, frozen=True):
    """To the fragment's owner: move it to ``target``."""

    fragment_id: str
    generation: int
    target: str
    reason: str


class AnnounceMove(msgspec.Struct, frozen=True):
    """To the keeper, from the owner under ``generation``: may it go to ``target``? Locks the query for other moves."""

    query_id: str
    fragment_id: str
    generation: int
    target: str


class MoveGranted(msgspec.Struct, frozen=True):
    """What the target is to accept; its generation is the granted one."""

    assignment: Assignment


class AcceptFragment(msgspec.Struct, frozen=True):
    """With the fragment's folder: take it over. Answered when it is durable at the target and the move is committed.

    ``files`` is all that belongs to it, path -> digest; those that the target has from a copy that went ahead do not
    travel again.
    """

    assignment: Assignment
    files: dict[str, str]


class AwaitRunning(msgspec.Struct, frozen=True):
    """Answered when the fragment runs at the target under ``generation`` and its first batch is done (or none came)."""

    fragment_id: str
    generation: int


class NowRunning(msgspec.Struct, frozen=True):
    """``batch_id`` is the last batch since the start, -1 for none. ``waited_s``: of the answer, only for a batch."""

    batch_id: int
    waited_s: float


class MoveDone(msgspec.Struct, frozen=True):
    """To the keeper: the fragment runs at its new host; the lock on the query ends."""

    report: MoveReport
