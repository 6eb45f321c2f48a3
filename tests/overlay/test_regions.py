"""What a member of the hierarchy of clusters may say without harm. The whole protocol: simulation/test_regions.py."""

from __future__ import annotations

import random
from typing import Any

import msgspec
import pytest

from overlay.records import NodeRecord
from overlay.region_messages import (
    MAX_HOSTS,
    MAX_LEVELS,
    Beacon,
    Elsewhere,
    Lead,
    MemberReport,
    Placed,
    Roster,
    Summary,
    Withdraw,
    Withdrawn,
)
from overlay.regions import Outgoing, Regions
from tests.overlay.fake_network import fake_record, id_of


@pytest.fixture
def regions() -> Regions:
    return Regions(lambda: fake_record(0), lambda: ["flights"], 8, 10.0, random.Random(1), 0.0)


def report(member: NodeRecord, hosts: int = 1, level: int = 1) -> MemberReport:
    return MemberReport(level, level, member, Summary(hosts, 1))


@pytest.mark.parametrize(
    ("message", "changes"),
    [
        (report(fake_record(1)), {"level": 2**64 - 1}),
        (report(fake_record(1)), {"at": 0}),
        (report(fake_record(1)), {"summary": {"hosts": MAX_HOSTS + 1, "takers": 1}}),
        (report(fake_record(1)), {"summary": {"hosts": -1, "takers": 1}}),
        (report(fake_record(1)), {"leads": {"cluster": "c" * 33, "generation": 1}}),
        (report(fake_record(1)), {"leads": {"cluster": "c", "generation": 2**63}}),
        (Withdraw(1), {"level": -5}),
        (Beacon(fake_record(1), Lead("c", 1), 1, 1), {"height": MAX_LEVELS + 1}),
        (Beacon(fake_record(1), Lead("c", 1), 1, 1), {"hosts": 2**64 - 1}),
    ],
)
def test_numbers_that_no_hierarchy_has_are_refused_with_their_message(
    message: msgspec.Struct, changes: dict[str, Any]
) -> None:
    data = msgspec.msgpack.encode(message)
    assert msgspec.msgpack.decode(data, type=type(message)) == message
    with pytest.raises(msgspec.ValidationError):
        msgspec.msgpack.decode(msgspec.msgpack.encode(msgspec.to_builtins(message) | changes), type=type(message))


def test_members_that_tell_of_as_many_hosts_as_they_may_can_be_told_of(regions: Regions) -> None:
    for number in range(1, 8):
        placed = regions.handle(report(fake_record(number), MAX_HOSTS), id_of(number), 0.0)
        assert isinstance(placed, Placed)
        assert isinstance(placed.found, Roster)
    for outgoing in regions.due(1.0):
        data = msgspec.msgpack.encode(outgoing.message)
        assert msgspec.msgpack.decode(data, type=type(outgoing.message)) == outgoing.message
    assert regions.summary(1).hosts == MAX_HOSTS


def test_who_leads_nothing_can_be_replaced_nowhere(regions: Regions) -> None:
    top = Beacon(fake_record(1), Lead("c", 1), 1, 100)
    regions._seen(top, 0.0)
    assert regions.led == 0
    (outgoing,) = regions.due(0.0)
    assert isinstance(outgoing.message, MemberReport)
    lie = Placed(Elsewhere(fake_record(2), 1, superseded=True))
    regions.answered(Outgoing(fake_record(1), outgoing.message), lie, 1.0)
    regions.validate()


def test_a_goodbye_to_a_cluster_that_there_is_not_changes_nothing(regions: Regions) -> None:
    regions.handle(report(fake_record(1)), id_of(1), 0.0)
    for level in (-5, 0, 2):
        assert regions.handle(Withdraw(level), id_of(1), 0.0) == Withdrawn()
    assert id_of(1) in regions.members(1)
