"""The ports of daemons in tests."""

from __future__ import annotations

from tests.daemon.real_daemons import free_port, ports_of


def test_no_port_is_given_twice() -> None:
    assert len({free_port() for _ in range(500)}) == 500


def test_no_two_workers_have_a_port_in_common() -> None:
    shares = [set(ports_of(worker, 3)) for worker in range(3)]
    assert sum(map(len, shares)) == len(set().union(*shares)) == 12_000
