"""A wide-area network on one machine: hosts with addresses of their own, and processes that run on them.

    with Lab(rtt_ms) as lab:
        server = lab.run(lab.hosts[0], ["python3", "-m", "http.server"])
        lab.set_rtt(lab.hosts[0], lab.hosts[1], 240.0)
        lab.isolate(lab.hosts[2])

Needs root and /dev/net/tun: :func:`why_impossible` says what is missing. All of it goes when the block is left, and
also when this process is killed: its children die with it, and namespaces without processes vanish.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import TracebackType
from typing import IO, Self

import msgspec

from tests.lab import namespaces
from tests.lab.router import (
    MAX_HOSTS,
    MAX_MESSAGE_BYTES,
    Command,
    Cut,
    GiveReport,
    Heal,
    Report,
    SetJitter,
    SetLoss,
    SetRtt,
    Start,
    address_of,
)

_ROOT = Path(__file__).resolve().parents[2]
_STOP_TIMEOUT_S = 10.0
_ANSWER_TIMEOUT_S = 30.0


@cache
def why_impossible() -> str | None:
    """Why there can be no lab here, or None."""
    trial = subprocess.run([*namespaces.SCRIPT, "try"], capture_output=True, text=True, check=False)
    return (trial.stdout + trial.stderr).strip() or None


@dataclass(frozen=True, slots=True)
class Host:
    """``namespace`` is a path that `nsenter --net=...` takes, for a look around."""

    index: int
    address: str
    namespace: str


class Lab:
    """``rtt_ms``: round trips from row to column; the diagonal is not used. ``seed`` is for loss and jitter."""

    def __init__(self, rtt_ms: Sequence[Sequence[float]], *, seed: int = 0) -> None:
        if not 1 <= len(rtt_ms) <= MAX_HOSTS or any(len(row) != len(rtt_ms) for row in rtt_ms):
            raise ValueError(f"a square matrix of 1 to {MAX_HOSTS} hosts is needed")
        self._start = Start([list(row) for row in rtt_ms], seed)
        self._processes: list[subprocess.Popen[bytes]] = []
        self.hosts: tuple[Host, ...] = ()

    def __enter__(self) -> Self:
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._control.settimeout(_ANSWER_TIMEOUT_S)
        with theirs:
            command = [sys.executable, "-m", "tests.lab.router"]
            self._router = subprocess.Popen(command, stdin=theirs.fileno(), cwd=_ROOT)
        try:
            report = self._tell(self._start)
        except BaseException:
            self._end()
            raise
        self.hosts = tuple(
            Host(index, address_of(index), f"/proc/{self._router.pid}/fd/{namespace}")
            for index, namespace in enumerate(report.namespaces)
        )
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end()

    def _end(self) -> None:
        for process in self._processes:
            process.terminate()
        for process in self._processes:
            with suppress(subprocess.TimeoutExpired):
                process.wait(_STOP_TIMEOUT_S)
            process.kill()
            process.wait()
        self._control.close()
        self._router.wait(_STOP_TIMEOUT_S)

    # --- the hosts

    def run(
        self, host: Host, command: Sequence[str], *, stdout: int | IO[bytes] | None = None, stderr: int | None = None
    ) -> subprocess.Popen[bytes]:
        """Start ``command`` on ``host``. It is ended with the lab, if it is still there then.

        From the main thread only: the kernel ties the life of a child to the thread that started it.
        """
        assert threading.current_thread() is threading.main_thread()
        enter = [*namespaces.SCRIPT, "enter", host.namespace, str(os.getpid())]
        process = subprocess.Popen([*enter, *command], stdin=subprocess.DEVNULL, stdout=stdout, stderr=stderr)
        self._processes.append(process)
        return process

    def output_of(self, host: Host, command: Sequence[str], timeout_s: float = 60.0) -> bytes:
        """What ``command`` prints on ``host``. Raises CalledProcessError if it fails."""
        process = self.run(host, command, stdout=subprocess.PIPE)
        out, _ = process.communicate(timeout=timeout_s)
        self._processes.remove(process)
        if process.returncode:
            raise subprocess.CalledProcessError(process.returncode, list(command), out)
        return out

    # --- the network

    def set_rtt(self, a: Host, b: Host, rtt_ms: float) -> None:
        """In both directions, from now on."""
        self._tell(SetRtt(a.index, b.index, rtt_ms))

    def set_jitter(self, jitter_ms: float) -> None:
        """Add an exponential delay of this mean to every packet."""
        self._tell(SetJitter(jitter_ms))

    def set_loss(self, a: Host, b: Host, probability: float) -> None:
        """Lose packets from a to b."""
        self._tell(SetLoss(a.index, b.index, probability))

    def cut(self, a: Host, b: Host) -> None:
        """Nothing passes between a and b."""
        self._tell(Cut(a.index, b.index))

    def heal(self, a: Host, b: Host) -> None:
        self._tell(Heal(a.index, b.index))

    def isolate(self, host: Host) -> None:
        """Cut ``host`` off from all others."""
        for other in self._others(host):
            self.cut(host, other)

    def reconnect(self, host: Host) -> None:
        for other in self._others(host):
            self.heal(host, other)

    def report(self) -> Report:
        """What became of the packets, and how late the router itself has been."""
        return self._tell(GiveReport())

    def _others(self, host: Host) -> Iterable[Host]:
        return (other for other in self.hosts if other != host)

    def _tell(self, command: Command) -> Report:
        with suppress(BrokenPipeError, ConnectionResetError):
            self._control.send(msgspec.msgpack.encode(command))
            answer = self._control.recv(MAX_MESSAGE_BYTES)
            if answer:
                return msgspec.msgpack.decode(answer, type=Report)
        raise RuntimeError(f"the router of the lab ended with status {self._router.wait()}, see its output")
