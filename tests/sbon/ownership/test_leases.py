"""Leases: an owner stops before a majority of keepers would let another one in."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from sbon.ownership.leases import MAX_DRIFT, Lease, LeaseTable
from sbon.ownership.register import Ballot, Register
from sbon.ownership.share import Share

LEASE_S = 10.0


def test_a_lease_lasts_as_long_as_a_majority_of_its_grants() -> None:
    lease = Lease("abc", LEASE_S)
    assert not lease.holds(0.0)
    lease.granted("a", 100.0)
    assert not lease.holds(100.0)
    lease.granted("b", 103.0)
    assert lease.until_s == 100.0 + LEASE_S * (1.0 - MAX_DRIFT)
    lease.granted("c", 104.0)
    lease.granted("a", 50.0)  # an answer that comes late
    lease.granted("stranger", 999.0)
    assert lease.until_s == 103.0 + LEASE_S * (1.0 - MAX_DRIFT)


def test_a_takeover_waits_for_leases_of_lower_generations_only() -> None:
    table = LeaseTable(LEASE_S, -100.0)
    table.grant("f", 3, 0.0)
    assert table.permits({}, 1.0)
    assert table.permits({"g": 9, "f": 3}, 1.0)
    assert not table.permits({"f": 4}, 9.9)
    assert table.permits({"f": 4}, 10.0)


def test_what_was_granted_under_one_generation_is_not_forgotten_over_another() -> None:
    """A takeover may be accepted by one keeper and never agreed on: the old owner then renews again."""
    table = LeaseTable(LEASE_S, -100.0)
    assert table.overdue({"f": 2}, 0.0) == []
    table.grant("f", 1, 1.0)
    assert not table.permits({"f": 2}, 5.0)


def test_a_keeper_that_was_restarted_does_not_know_what_it_granted() -> None:
    table = LeaseTable(LEASE_S, 50.0)
    assert not table.permits({"f": 2}, 59.0)
    assert table.permits({"f": 2}, 60.0)


def test_an_owner_is_overdue_after_a_whole_lease_of_silence() -> None:
    table = LeaseTable(LEASE_S, -100.0)
    assert table.overdue({"f": 1}, 5.0) == []
    assert table.overdue({"f": 1}, 15.0) == ["f"]
    table.grant("f", 1, 15.0)
    assert table.overdue({"f": 1}, 24.0) == []
    assert table.overdue({"f": 2}, 26.0) == []  # another owner, with as much time as any
    assert table.overdue({"f": 2}, 36.0) == ["f"]


def test_a_value_that_was_accepted_once_may_be_accepted_again() -> None:
    value = {"f": 2}
    table = LeaseTable(LEASE_S, 0.0)  # just restarted
    share = Share(Register(Ballot(1, "a"), Ballot(1, "a"), value), table, lambda takeovers: takeovers, lambda _: None)
    assert share.accept(Ballot(2, "a"), value, 1.0)
    assert not share.accept(Ballot(3, "a"), {"f": 3}, 1.0)


RATES = st.floats(1.0 - MAX_DRIFT / 2.1, 1.0 + MAX_DRIFT / 2.1)


@given(owner=RATES, keepers=st.tuples(RATES, RATES, RATES), asked_s=st.floats(0.0, 1e4), late_s=st.floats(0.0, 5.0))
def test_whatever_the_clocks_show_no_majority_permits_a_takeover_while_the_owner_holds_its_lease(
    owner: float, keepers: tuple[float, float, float], asked_s: float, late_s: float
) -> None:
    """All times here are true ones; a clock shows true time multiplied by its rate."""
    lease = Lease("abc", LEASE_S)
    tables = {}
    for name, rate in zip("abc", keepers, strict=True):
        tables[name] = LeaseTable(LEASE_S, -100.0)
        tables[name].grant("f", 1, (asked_s + late_s) * rate)
        lease.granted(name, asked_s * owner)
    last_s = lease.until_s / owner - 1e-6
    assert lease.holds(last_s * owner)
    permitting = [
        name for name, rate in zip("abc", keepers, strict=True) if tables[name].permits({"f": 2}, last_s * rate)
    ]
    assert permitting == []
