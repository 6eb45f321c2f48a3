"""The lab itself: its delays are right, what it is told happens, and nothing is left of it."""

from __future__ import annotations

import json
import os
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.lab import echo
from tests.lab.lab import Host, Lab, why_impossible

pytestmark = pytest.mark.skipif(why_impossible() is not None, reason=f"no wide-area lab here: {why_impossible()}")

#: So far apart that no two paths are taken for one another, however much a busy machine adds to them.
RTT_MS = [[0.0, 20.0, 60.0, 100.0], [20.0, 0.0, 140.0, 180.0], [60.0, 140.0, 0.0, 220.0], [100.0, 180.0, 220.0, 0.0]]
PORT = 7
ECHO = [sys.executable, "-I", "-S", echo.__file__]
PATIENCE_S = 20.0


@pytest.fixture(scope="module")
def lab() -> Iterator[Lab]:
    with Lab(RTT_MS, seed=1) as lab:
        for host in lab.hosts:
            lab.run(host, [*ECHO, "serve", str(PORT)])
        deadline_s = time.monotonic() + PATIENCE_S
        for host in lab.hosts:
            while ping(lab, lab.hosts[0], host, 1) == [None]:
                assert time.monotonic() < deadline_s
        yield lab


def ping(lab: Lab, source: Host, target: Host, count: int) -> list[float | None]:
    """Round trips in ms; None for what was lost."""
    found = json.loads(lab.output_of(source, [*ECHO, "ping", target.address, str(PORT), str(count)]))
    assert isinstance(found, list)
    return found


def least_ms(lab: Lab, source: Host, target: Host) -> float:
    """The shortest of some round trips: what the lab adds, without what the machine happens to be busy with."""
    return min(rtt_ms for rtt_ms in ping(lab, source, target, 11) if rtt_ms is not None)


def test_round_trips_are_those_of_the_matrix(lab: Lab) -> None:
    """Never less, and in the same order. That packets leave when due is shown without a clock, in test_network."""
    pairs = [(source, target) for source in lab.hosts for target in lab.hosts[: source.index]]
    wanted_ms = {(source.index, target.index): RTT_MS[source.index][target.index] for source, target in pairs}
    found_ms = {(source.index, target.index): least_ms(lab, source, target) for source, target in pairs}
    assert all(wanted_ms[pair] <= found_ms[pair] for pair in wanted_ms)
    assert sorted(found_ms, key=found_ms.__getitem__) == sorted(wanted_ms, key=wanted_ms.__getitem__)


def test_a_host_talks_to_itself_without_delay(lab: Lab) -> None:
    assert least_ms(lab, lab.hosts[1], lab.hosts[1]) < min(RTT_MS[1][:1] + RTT_MS[1][2:])


def test_a_path_changes_on_command(lab: Lab) -> None:
    a, b = lab.hosts[:2]
    lab.set_rtt(a, b, 120.0)
    try:
        assert least_ms(lab, b, a) >= 120.0
    finally:
        lab.set_rtt(a, b, RTT_MS[0][1])
    assert least_ms(lab, b, a) < 120.0


def test_an_isolated_host_is_alone_until_it_is_reconnected(lab: Lab) -> None:
    alone, *others = lab.hosts
    lab.isolate(alone)
    try:
        assert ping(lab, others[0], alone, 1) == [None]
        assert ping(lab, others[0], others[1], 1) != [None]
    finally:
        lab.reconnect(alone)
    assert ping(lab, others[0], alone, 1) != [None]


def test_loss_loses(lab: Lab) -> None:
    a, b = lab.hosts[:2]
    lab.set_loss(a, b, 1.0)
    try:
        assert ping(lab, a, b, 1) == [None]
    finally:
        lab.set_loss(a, b, 0.0)
    assert lab.report().counters["lost"] >= 1


def test_jitter_is_on_top_of_the_round_trip(lab: Lab) -> None:
    a, b = lab.hosts[:2]
    lab.set_jitter(10.0)
    try:
        found = [rtt_ms for rtt_ms in ping(lab, a, b, 20) if rtt_ms is not None]
    finally:
        lab.set_jitter(0.0)
    assert min(found) >= RTT_MS[0][1]
    assert RTT_MS[0][1] + 5.0 < statistics.mean(found) < RTT_MS[0][1] + 60.0


def test_bulk_data_crosses(lab: Lab) -> None:
    seconds = float(lab.output_of(lab.hosts[0], [*ECHO, "push", lab.hosts[1].address, str(PORT), str(4_000_000)]))
    assert seconds > RTT_MS[0][1] / 1000


def test_nothing_is_left_of_a_lab_that_is_killed() -> None:
    program = """
import sys, time
from tests.lab.lab import Lab

with Lab([[0.0, 1.0], [1.0, 0.0]]) as lab:
    sleeper = lab.run(lab.hosts[0], ["sleep", "1000"])
    print(sleeper.pid, lab.hosts[0].namespace, flush=True)
    time.sleep(1000)
"""
    root = Path(__file__).resolve().parents[2]
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, cwd=root, text=True) as killed:
        assert killed.stdout is not None
        sleeper, namespace = killed.stdout.readline().split()
        router = Path(namespace).parts[2]
        assert is_there(sleeper)
        assert is_there(router)
        os.kill(killed.pid, signal.SIGKILL)
    deadline_s = time.monotonic() + PATIENCE_S
    while is_there(sleeper) or is_there(router):
        assert time.monotonic() < deadline_s
        time.sleep(0.02)


def is_there(pid: str) -> bool:
    """Zombies are not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
