"""Daemons as processes of their own: started, watched, and ended whatever happens."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import trio

from daemon.demo.configuration import configuration
from daemon.demo.scenario import Scenario, Site
from sbon.errors import SbonError

START_TIMEOUT_S = 30.0
#: A daemon stops its engine before it ends; what is still there after this is killed.
STOP_TIMEOUT_S = 15.0
_LOG_LINES = 15
_DEATH_KNOWN_AFTER_S = 0.3


class DaemonProcess:
    """``sbon run`` for one site. Its output goes to the site's log file."""

    def __init__(self, site: Site, process: trio.Process) -> None:
        self.site = site
        self.process = process

    @classmethod
    async def start(cls, site: Site) -> DaemonProcess:
        """Start it in a session of its own, so that Ctrl-C reaches the demo alone, which then ends it in order."""
        command = [sys.executable, "-m", "daemon", "run", "--config", str(site.config_file)]
        with site.log_file.open("ab") as log:
            process = await trio.lowlevel.open_process(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            )
        return cls(site, process)

    async def watch(self) -> None:
        """Return never; raise SbonError with the end of its log once the daemon ends by itself."""
        await self.process.wait()
        raise self.ended()

    def ended(self) -> SbonError:
        """What to tell about a daemon that has ended by itself."""
        status = self.process.returncode
        return SbonError(
            f"the daemon of {self.site.city} ended with status {status}; its log ends:\n{tail(self.site.log_file)}"
        )

    async def wait_until_ready(self) -> None:
        """Return when its control socket accepts; SbonError if that takes too long."""
        with trio.move_on_after(START_TIMEOUT_S):
            while True:
                with suppress(OSError):
                    stream = await trio.open_unix_socket(self.site.socket)
                    await stream.aclose()
                    return
                await trio.sleep(0.05)
        raise SbonError(f"the daemon of {self.site.city} does not come up; its log ends:\n{tail(self.site.log_file)}")

    def signal_group(self, number: signal.Signals) -> None:
        """Send ``number`` to the daemon and everything that it started."""
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, number)


@asynccontextmanager
async def running_daemons(scenario: Scenario) -> AsyncIterator[None]:
    """Five daemons, ready. A group with an SbonError leaves the block once one ends by itself; then all are ended."""
    daemons: list[DaemonProcess] = []
    try:
        async with trio.open_nursery() as nursery:
            for site in scenario.sites:
                site.folder.mkdir(parents=True, exist_ok=True)
                site.config_file.write_text(configuration(site, scenario), encoding="utf-8")
                daemon = await DaemonProcess.start(site)
                daemons.append(daemon)
                nursery.start_soon(daemon.watch)
            for daemon in daemons:
                await daemon.wait_until_ready()
            yield
            nursery.cancel_scope.cancel()
    except ExceptionGroup as group:
        # A daemon that dies also breaks what talks to it; its own end is what the user should hear of.
        with trio.CancelScope(shield=True):
            await trio.sleep(_DEATH_KNOWN_AFTER_S)
        for daemon in daemons:
            if daemon.process.returncode is not None:
                raise daemon.ended() from group
        raise
    finally:
        with trio.CancelScope(shield=True):
            await stop_all(daemons)


async def stop_all(daemons: Sequence[DaemonProcess]) -> None:
    """SIGTERM to every daemon, and SIGKILL to every group in which something is left after STOP_TIMEOUT_S."""
    for daemon in daemons:
        with suppress(ProcessLookupError):
            daemon.process.terminate()
    with trio.move_on_after(STOP_TIMEOUT_S):
        for daemon in daemons:
            await daemon.process.wait()
    for daemon in daemons:
        daemon.signal_group(signal.SIGKILL)


def tail(log: Path, lines: int = _LOG_LINES) -> str:
    """The last lines of ``log``, indented."""
    try:
        text = log.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return "  (no log)"
    return "\n".join(f"  {line}" for line in text.splitlines()[-lines:]) or "  (empty)"
