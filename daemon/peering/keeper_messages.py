"""What keepers of a query say to each other, and hosts to them, about who owns what (:mod:`sbon.ownership`)."""

from __future__ import annotations

import msgspec

from daemon.peering.query_messages import Assignment, KeptBy
from daemon.peering.query_record import QueryRecord
from daemon.peering.well_formed import FragmentId, check_counts
from sbon.ownership.register import Ballot


class PrepareRecord(msgspec.Struct, frozen=True):
    """Take part in this ballot about a query's record, and in no lower one any more."""

    query_id: str
    ballot: Ballot

    def __post_init__(self) -> None:
        _check_ballots(self.ballot)


class PreparedRecord(msgspec.Struct, frozen=True):
    """``granted``, or else the ballot that was ``promised`` before. ``record`` was ``accepted`` under that ballot."""

    granted: bool
    promised: Ballot
    accepted: Ballot
    record: QueryRecord | None

    def __post_init__(self) -> None:
        _check_ballots(self.promised, self.accepted)


class AcceptRecord(msgspec.Struct, frozen=True):
    """Write this record down."""

    ballot: Ballot
    record: QueryRecord

    def __post_init__(self) -> None:
        _check_ballots(self.ballot)


class AcceptedRecord(msgspec.Struct, frozen=True):
    """``granted``, or else it was too late for ``promised``, or would end a lease."""

    granted: bool
    promised: Ballot

    def __post_init__(self) -> None:
        _check_ballots(self.promised)


def _check_ballots(*ballots: Ballot) -> None:
    """Whoever hears of one counts on from there."""
    check_counts(*(count for ballot in ballots for count in (ballot.counter, ballot.step)))


class ForgetRecord(msgspec.Struct, frozen=True):
    """The query has ended long ago, or never began."""

    query_id: str


class Holding(msgspec.Struct, frozen=True):
    """A fragment that the sender runs under ``generation``."""

    query_id: str
    fragment_id: str
    generation: int


class CompareRecords(msgspec.Struct, frozen=True):
    """Between keepers: are these counts of changes of keepers, by query id, the ones that you know?"""

    keeper_changes: dict[str, int]


class RecordsCompared(msgspec.Struct, frozen=True):
    """The ids of those of which another count is known, or none."""

    different: tuple[str, ...]


class RenewLeases(msgspec.Struct, frozen=True):
    """From a host to each keeper, every second or so."""

    holdings: tuple[Holding, ...]


class LeasesRenewed(msgspec.Struct, frozen=True):
    """The fragments of which the sender is the owner as far as the keeper knows, and who keeps the queries of all."""

    fragment_ids: tuple[str, ...]
    kept_by: dict[str, KeptBy]


class AskMissed(msgspec.Struct, frozen=True):
    """Between keepers: have you not heard of the fragment's owner for as long as a lease lasts, either?"""

    query_id: str
    fragment_id: str
    generation: int


class Missed(msgspec.Struct, frozen=True):
    missed: bool


class AdoptFragment(msgspec.Struct, frozen=True):
    """From a keeper: you own this fragment. Start it from the replica that you have, unless it is there already."""

    assignment: Assignment


class Adopted(msgspec.Struct, frozen=True):
    """``here``: the host has the fragment under that generation, and settles it."""

    here: bool


class ChangeReplicas(msgspec.Struct, frozen=True):
    """From the owner under ``generation``, who has seen ``changes`` changes of them: these are its replicas now."""

    query_id: str
    fragment_id: str
    generation: int
    changes: int
    replicas: tuple[str, ...]


class Replicas(msgspec.Struct, frozen=True):
    """What the record says, for certain. ``owns``: whether the sender still is the owner."""

    replicas: tuple[str, ...]
    changes: int
    owns: bool


class DescribeReplica(msgspec.Struct, frozen=True):
    """What does the node have of the fragment's state?"""

    fragment_id: FragmentId


class ReplicaFiles(msgspec.Struct, frozen=True):
    """Path within the folder -> digest."""

    files: dict[str, str]


class CheckReplica(msgspec.Struct, frozen=True):
    """From a keeper: is the replica that the node has of the fragment still what was stored?"""

    fragment_id: FragmentId


class ReplicaChecked(msgspec.Struct, frozen=True):
    """``whole``: it is there and undamaged."""

    whole: bool


class StoreReplica(msgspec.Struct, frozen=True):
    """With a folder of those ``files`` (path -> digest) that the node does not have: keep the state after ``batch_id``,
    which this version of Spark has written, durably."""

    assignment: Assignment
    batch_id: int
    files: dict[str, str]
    spark_version: str = ""


class StoreAhead(msgspec.Struct, frozen=True):
    """With a folder of those ``files`` (path -> digest): a later state of the fragment will have them."""

    assignment: Assignment
    files: dict[str, str]
