"""Commands to an engine without Spark: whose turn it is, and what a fragment that does not start leaves behind."""

from __future__ import annotations

import sqlite3
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import cast

import pytest
from pyspark.sql import SparkSession

from sbon.engine_messages import Bounds, Command, Destroy, EngineReply, Instantiate
from sbon.errors import SbonError
from sbon.fragment import FragmentKind, FragmentSpec, PortSpec
from spark_bridge import fragment_runner
from spark_bridge.engine import Fragments
from spark_bridge.fragment_ports import FragmentPorts
from spark_bridge.fragment_runner import FragmentRunner, RunnerSettings
from spark_bridge.outlet import Outlet

JOIN = FragmentSpec("q-join1", "q", FragmentKind.JOIN, "SELECT 1", (PortSpec("in0", ("q-a",)),))


def test_a_fragment_that_does_not_start_lets_go_of_all_it_has_and_of_the_lock_last(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever has the lock next may change what is in the folder: nobody here links its files into a snapshot then."""
    let_go: list[str] = []
    ports: list[FragmentPorts] = []

    class Lock:
        def __init__(self, *_: object) -> None:
            pass

        def release(self) -> None:
            let_go.append("lock")

    class Ports(FragmentPorts):
        def stop(self) -> None:
            super().stop()
            ports.append(self)
            let_go.append("ports")

    class ToldOutlet(Outlet):
        def stop(self) -> None:
            super().stop()
            let_go.append("snapshots")

    def refuse(*_: object) -> None:
        assert "snapshots" in [thread.name for thread in threading.enumerate()], "it is replicated"
        raise SbonError("Spark refuses it")

    for name, fake in (("FolderLock", Lock), ("FragmentPorts", Ports), ("Outlet", ToldOutlet)):
        monkeypatch.setattr(fragment_runner, name, fake)
    monkeypatch.setattr(FragmentRunner, "_stream", refuse)
    bounds = Bounds(safe_batch=-1, snapshots=str(tmp_path / "snapshots"))
    command = Instantiate("q-join1", 1, "n", JOIN, str(tmp_path / "it"), ("{}",), ("c",), bounds)
    fragments = Fragments(cast(SparkSession, None), RunnerSettings(), lambda _: None, lambda: None)
    assert fragments.carry_out(1, command).error == "Spark refuses it"
    assert let_go == ["snapshots", "ports", "lock"]
    assert "snapshots" not in [thread.name for thread in threading.enumerate()]
    with pytest.raises(sqlite3.ProgrammingError):
        ports[0].inboxes["in0"].end()


def test_one_fragment_s_commands_take_turns_and_leave_no_trace_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """An engine lives for as long as any fragment runs there, and many come and go meanwhile."""
    under_way: list[int] = []
    most = 0

    def dispatch(_fragments: Fragments, call_id: int, _command: Command) -> EngineReply:
        nonlocal most
        under_way.append(call_id)
        time.sleep(0.02)
        most = max(most, len(under_way))
        under_way.remove(call_id)
        return EngineReply(call_id)

    monkeypatch.setattr(Fragments, "_dispatch", dispatch)
    fragments = Fragments(cast(SparkSession, None), RunnerSettings(), lambda _: None, lambda: None)
    with ThreadPoolExecutor(4) as pool:
        replies = list(pool.map(fragments.carry_out, range(8), [Destroy("q-join1", 1, "n", "/nowhere")] * 8))
    assert [reply.error for reply in replies] == [None] * 8
    assert most == 1
    assert not fragments._turns
