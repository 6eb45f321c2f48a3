from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib import metadata
from pathlib import Path

import pytest
import trio

from daemon.config import EngineConfig
from daemon.events import Events
from daemon.fragments import engine_supervisor
from daemon.fragments.engine_log import MAX_LOG_BYTES
from daemon.fragments.engine_supervisor import EngineSupervisor
from sbon.engine_messages import FragmentState, FragmentStatus, Instantiate, LinkLost, Migrate
from sbon.errors import ConfigurationError, SbonError, StaleGenerationError, UnavailableError
from sbon.fragment import FragmentKind, FragmentSpec
from tests.daemon.real_daemons import PATIENCE_S, until
from tests.daemon.run_with_fake_engine import FAKE_ENGINE

SPEC = FragmentSpec("q1-join1", "q1", FragmentKind.JOIN, "SELECT 1")


class FakeHosting:
    """Counts what it is told."""

    def __init__(self) -> None:
        self.needs_engine = True
        self.lost = 0
        self.statuses: list[FragmentStatus] = []

    def link_lost(self, lost: LinkLost) -> None:
        pass

    def status_changed(self, status: FragmentStatus) -> None:
        self.statuses.append(status)

    def engine_lost(self) -> None:
        self.lost += 1


@asynccontextmanager
async def supervised(
    folder: Path, command: tuple[str, ...] = FAKE_ENGINE, config: EngineConfig | None = None
) -> AsyncIterator[tuple[EngineSupervisor, FakeHosting]]:
    config = config or EngineConfig(start_timeout_s=30.0)
    supervisor = EngineSupervisor("n", "127.0.0.1", folder / "engine.sock", folder, config, Events("n"), command)
    hosting = FakeHosting()
    with trio.fail_after(PATIENCE_S):
        async with trio.open_nursery() as nursery:
            await nursery.start(supervisor.run, hosting)
            yield supervisor, hosting
            nursery.cancel_scope.cancel()
    assert not (folder / "engine.sock").exists()


def instantiate(folder: Path, generation: int = 1) -> Instantiate:
    (folder / "fragment").mkdir(exist_ok=True)
    return Instantiate("q1-join1", generation, "me", SPEC, str(folder / "fragment"))


async def test_an_engine_starts_when_it_is_needed_and_answers(tmp_path: Path) -> None:
    async with supervised(tmp_path) as (supervisor, hosting):
        assert supervisor.describe() == "stopped"
        with pytest.raises(UnavailableError, match="is not running"):
            await supervisor.call(instantiate(tmp_path))
        async with trio.open_nursery() as nursery:  # one engine, however many ask for it
            nursery.start_soon(supervisor.prepare)
            nursery.start_soon(supervisor.prepare)
        assert supervisor.describe().startswith(f"running, Spark {metadata.version('pyspark')}")
        assert (await supervisor.call(instantiate(tmp_path, 2))).output_schema == "{}"
        await until(lambda: supervisor.status("q1-join1") is not None)
        assert hosting.statuses[0].state is FragmentState.RUNNING
        with pytest.raises(StaleGenerationError):
            await supervisor.call(Migrate("q1-join1", 1, "me"))
        with pytest.raises(SbonError, match="does not run here"):
            await supervisor.call(Migrate("q1-join2", 1, "me"))
        hello = supervisor.hello
        assert hello is not None
    assert hosting.lost == 0
    with pytest.raises(ProcessLookupError):
        os.kill(hello.pid, 0)  # it ended with its daemon


@pytest.mark.parametrize(("own", "expected"), [(None, "2"), ("7", "7")])
async def test_an_engine_keeps_few_arenas_unless_the_daemon_was_told_otherwise(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, own: str | None, expected: str
) -> None:
    monkeypatch.delenv("MALLOC_ARENA_MAX", raising=False)
    if own is not None:
        monkeypatch.setenv("MALLOC_ARENA_MAX", own)
    async with supervised(tmp_path) as (supervisor, _):
        hello = await supervisor.prepare()
        environment = Path(f"/proc/{hello.pid}/environ").read_bytes().split(b"\0")
        assert f"MALLOC_ARENA_MAX={expected}".encode() in environment


async def test_a_running_engines_log_is_cut(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_supervisor, "LOG_INTERVAL_S", 0.05)
    async with supervised(tmp_path) as (supervisor, hosting):
        await supervisor.prepare()
        with supervisor.log_file.open("ab") as log:
            log.write((MAX_LOG_BYTES + 1) * b"a")
        await until(lambda: supervisor.log_file.stat().st_size == 0)
        assert supervisor.hello is not None
    assert hosting.lost == 0


async def test_an_engine_that_is_killed_is_reported_and_started_anew_when_wanted(tmp_path: Path) -> None:
    async with supervised(tmp_path) as (supervisor, hosting):
        first = await supervisor.prepare()
        await supervisor.call(instantiate(tmp_path))
        os.kill(first.pid, signal.SIGKILL)
        await until(lambda: hosting.lost == 1)
        assert supervisor.hello is None
        assert supervisor.status("q1-join1") is None
        assert (await supervisor.prepare()).pid != first.pid


async def test_an_engine_that_dies_at_start_says_why_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "fake.json").write_text(json.dumps({"die": "Java 11 is too old: install 17 or newer"}))
    async with supervised(tmp_path) as (supervisor, _):
        for _again in range(2):
            with pytest.raises(SbonError, match=r"sbon engine n: Java 11 is too old.*engine\.log") as failure:
                await supervisor.prepare()
            assert "\n" not in str(failure.value)
        (tmp_path / "fake.json").unlink()
        await supervisor.prepare()


async def test_an_engine_is_started_once_there_is_room_for_its_files(tmp_path: Path) -> None:
    scratch = tmp_path / "engine-scratch"
    scratch.touch()  # no folder can be made there
    async with supervised(tmp_path) as (supervisor, _):
        for _again in range(2):
            with pytest.raises(UnavailableError, match=r"no engine can be started now .*engine-scratch"):
                await supervisor.prepare()
        scratch.unlink()
        await supervisor.prepare()


async def test_an_engine_without_memory_says_so_whatever_else_it_says(tmp_path: Path) -> None:
    words = "print('Terminating due to java.lang.OutOfMemoryError: Java heap space'); print('Traceback\\n' * 2000)"
    exhausted = (sys.executable, "-c", f"{words}; raise SystemExit('Connection refused')")
    async with supervised(tmp_path, exhausted, EngineConfig(memory_mb=384)) as (supervisor, _):
        with pytest.raises(SbonError, match=r"no memory left \(Java heap space; its heap is 384 MB\): give it more"):
            await supervisor.prepare()


async def test_an_engine_that_says_nothing_is_given_up(tmp_path: Path) -> None:
    silent = (sys.executable, "-c", "import time; time.sleep(60)")
    async with supervised(tmp_path, silent, EngineConfig(start_timeout_s=0.2)) as (supervisor, _):
        with pytest.raises(SbonError, match=r"did not start within 0\.2 s"):
            await supervisor.prepare()


async def test_an_engine_without_fragments_is_stopped_after_a_while(tmp_path: Path) -> None:
    async with supervised(tmp_path, config=EngineConfig(start_timeout_s=30.0, idle_s=0.1)) as (supervisor, hosting):
        await supervisor.prepare()
        await trio.sleep(0.3)
        assert supervisor.hello is not None  # there are fragments
        hosting.needs_engine = False
        await until(lambda: supervisor.describe() == "stopped")
        assert hosting.lost == 0
        await supervisor.prepare()


def test_a_path_that_is_too_long_for_a_socket_is_refused(tmp_path: Path) -> None:
    path = tmp_path / ("x" * 100) / "engine.sock"
    with pytest.raises(ConfigurationError, match=r"node\.socket"):
        EngineSupervisor("n", "127.0.0.1", path, tmp_path, EngineConfig(), Events("n"))
