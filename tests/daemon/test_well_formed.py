"""What members say about queries, as it comes from the network: refused where it is decoded, or right."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from daemon.peering.host_messages import HostFragment, PrepareEngine, SetPorts
from daemon.peering.keeper_messages import (
    AcceptedRecord,
    AdoptFragment,
    CheckReplica,
    DescribeReplica,
    LeasesRenewed,
    PreparedRecord,
    PrepareRecord,
    StoreAhead,
    StoreReplica,
)
from daemon.peering.move_messages import AcceptFragment, MoveGranted
from daemon.peering.query_messages import Assignment, Claim, Claimed, KeptBy, Reader
from daemon.peering.subscription_messages import SetConsumers
from daemon.peering.well_formed import MalformedError
from sbon.errors import SbonError
from sbon.fragment import FragmentKind, FragmentSpec, PortSpec
from sbon.ownership.register import Ballot
from sbon.streams import SinkSpec

SPEC = FragmentSpec("q1-join1", "q1", FragmentKind.JOIN, "SELECT 1", (PortSpec("in0", ("q1-source1",)),))
ASSIGNMENT = Assignment(SPEC, 1, ("k",))
CARRIERS: tuple[msgspec.Struct, ...] = (
    HostFragment(ASSIGNMENT),
    AdoptFragment(ASSIGNMENT),
    AcceptFragment(ASSIGNMENT, {}),
    StoreReplica(ASSIGNMENT, 1, {}),
    StoreAhead(ASSIGNMENT, {}),
    SetPorts(ASSIGNMENT),
    SetConsumers(ASSIGNMENT),
    PrepareEngine("q1", ASSIGNMENT),
    MoveGranted(ASSIGNMENT),
    Claimed(ASSIGNMENT),
)
WRONG: dict[str, Callable[[Any], object]] = {
    "no keepers": lambda raw: raw.update(keepers=[]),
    "a path": lambda raw: raw["spec"].update(fragment_id="../../x"),
    "an absolute path": lambda raw: raw["spec"].update(fragment_id="/x"),
    "a line more": lambda raw: raw["spec"].update(fragment_id="q1-join1\n"),
    "the path of a query": lambda raw: raw["spec"].update(query_id="../x"),
    "the path of a port": lambda raw: raw["spec"]["ports"][0].update(name="../x"),
    "a port that nothing feeds": lambda raw: raw["spec"]["ports"][0].update(producers=[]),
    "a sink that reads nothing": lambda raw: raw["spec"].update(
        sink=msgspec.to_builtins(SinkSpec("out", "console")), ports=[]
    ),
    "a generation that cannot be": lambda raw: raw.update(generation=2**63),
}


def decoded(raw: object, kind: type[msgspec.Struct]) -> msgspec.Struct:
    return msgspec.msgpack.decode(msgspec.msgpack.encode(raw), type=kind)


@pytest.mark.parametrize("how", WRONG)
@pytest.mark.parametrize("message", CARRIERS, ids=lambda message: type(message).__name__)
def test_no_message_brings_an_assignment_that_cannot_be(message: msgspec.Struct, how: str) -> None:
    raw = msgspec.to_builtins(message)
    assert decoded(raw, type(message)) == message
    WRONG[how](raw["coming" if isinstance(message, PrepareEngine) else "assignment"])
    with pytest.raises(msgspec.ValidationError):
        decoded(raw, type(message))


@pytest.mark.parametrize("name", ["../x", "", "a/b", ".hidden", "a" * 101, "q1-union1\n"])
@pytest.mark.parametrize("kind", [CheckReplica, DescribeReplica])
def test_no_message_asks_for_a_replica_elsewhere(kind: type[msgspec.Struct], name: str) -> None:
    assert decoded({"fragment_id": "q1-union1"}, kind) == kind("q1-union1")
    with pytest.raises(msgspec.ValidationError):
        decoded({"fragment_id": name}, kind)


@pytest.mark.parametrize(
    ("raw", "kind"),
    [
        ({"keepers": [], "changes": 1}, KeptBy),
        ({"keepers": ["k"] * 17, "changes": 1}, KeptBy),
        ({"keepers": ["k"], "changes": -1}, KeptBy),
        ({"fragment_ids": [], "kept_by": {"q1": {"keepers": []}}}, LeasesRenewed),
        ({"query_id": "q1", "fragment_id": "q1-join1", "generation": 1, "keepers": []}, Claim),
        ({"query_id": "q1", "fragment_id": "q1-join1", "keepers": []}, Reader),
        ({"query_id": "q1", "ballot": [2**64 - 1, "k", 0]}, PrepareRecord),
        ({"granted": False, "promised": [2**64 - 1, "k", 0]}, AcceptedRecord),
        ({"granted": True, "promised": [1, "k", 0], "accepted": [-1, "k", 0], "record": None}, PreparedRecord),
    ],
)
def test_who_keeps_a_query_is_somebody_and_nobody_counts_on_from_where_counts_end(
    raw: object, kind: type[msgspec.Struct]
) -> None:
    with pytest.raises(msgspec.ValidationError):
        decoded(raw, kind)


def test_what_is_made_here_of_the_word_of_a_peer_is_refused_like_anything_else() -> None:
    with pytest.raises(SbonError):
        Reader("q1-join1", "q2", ())
    with pytest.raises(MalformedError, match="out of range"):
        PrepareRecord("q1", Ballot(2**53, "k"))
