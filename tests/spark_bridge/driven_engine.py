"""A real engine process, driven by the test in place of a daemon."""

from __future__ import annotations

import itertools
import re
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType, TracebackType

import msgspec

from sbon.engine_messages import (
    Command,
    Connect,
    Destroy,
    EngineCall,
    EngineReply,
    FragmentState,
    FragmentStatus,
    FromEngine,
    Hello,
    Instantiate,
    LinkLost,
    cursor_name,
)
from sbon.fragment import FragmentSpec
from sbon.frames import FrameReader, frame

PATIENCE_S = 400.0


class DrivenEngine:
    """Starts ``python -m spark_bridge``, or another ``module``, and speaks the engine socket to it. As a context."""

    def __init__(
        self,
        folder: Path,
        name: str = "engine",
        trigger_ms: int = 400,
        more: Sequence[str] = (),
        module: str = "spark_bridge",
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self.statuses: dict[str, FragmentStatus] = {}
        self.lost: list[LinkLost] = []
        self._calls = itertools.count(1)
        self._replies: dict[int, EngineReply] = {}
        self._changed = threading.Condition()
        self.hello: Hello | None = None
        path = folder / "engine.sock"
        path.unlink(missing_ok=True)
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.bind(str(path))
        self._listener.listen()
        command = [sys.executable, "-m", module, "--socket", str(path), "--name", name]
        command += ["--scratch", str(folder / "scratch"), "--trigger-ms", str(trigger_ms)]
        # Half the processor time for what runs for a minute only: no second compiler.
        command += ["--conf", "spark.driver.extraJavaOptions=-XX:TieredStopAtLevel=1", *more]
        self.log = folder / "engine.log"
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(command, stdout=log, stderr=log, stdin=subprocess.DEVNULL)
        self._connection: socket.socket | None = None
        threading.Thread(target=self._read, daemon=True).start()

    def __enter__(self) -> DrivenEngine:
        self.wait_until(lambda: self.hello is not None, "the engine says hello")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Behave as a daemon that is gone; the engine must end by itself."""
        if self._connection is not None:
            self._connection.shutdown(socket.SHUT_RDWR)
            self._connection.close()
        self._listener.close()
        self.process.wait(PATIENCE_S)

    def call(self, command: Command) -> EngineReply:
        """Send one command and wait for its reply."""
        assert self._connection is not None
        call_id = next(self._calls)
        self._connection.sendall(frame(msgspec.msgpack.encode(EngineCall(call_id, command))))
        self.wait_until(lambda: call_id in self._replies, f"a reply to {type(command).__name__}")
        return self._replies.pop(call_id)

    def do(self, command: Command) -> EngineReply:
        """As :meth:`call`, and the command must succeed."""
        reply = self.call(command)
        assert reply.error is None, reply.error
        return reply

    def start(self, spec: FragmentSpec, generation: int = 1, **more: object) -> EngineReply:
        """Instantiate ``spec`` in a folder of this engine."""
        return self.do(
            Instantiate(spec.fragment_id, generation, "test", spec, str(self.fragment_folder(spec)), **more)  # type: ignore[arg-type]
        )

    def destroy(self, spec: FragmentSpec, generation: int = 1) -> None:
        """Stop ``spec`` and delete its folder."""
        self.do(Destroy(spec.fragment_id, generation, "test", str(self.fragment_folder(spec))))

    def fragment_folder(self, spec: FragmentSpec) -> Path:
        """Where the state of ``spec`` lies on this engine."""
        return self.folder / "fragments" / spec.fragment_id

    def wait_for_state(self, fragment_id: str, state: FragmentState) -> FragmentStatus:
        """Wait until the engine reports ``state``; a fragment that failed meanwhile fails the test."""

        def reached() -> bool:
            status = self.statuses.get(fragment_id)
            if status is not None and status.state is FragmentState.FAILED and state is not FragmentState.FAILED:
                raise AssertionError(f"{fragment_id} failed: {status.error}")
            return status is not None and status.state is state

        self.wait_until(reached, f"{fragment_id} is {state}")
        return self.statuses[fragment_id]

    def output_rows(self, fragment_id: str) -> int:
        """As last reported; none before the first report."""
        status = self.statuses.get(fragment_id)
        return 0 if status is None else status.output_rows

    def wait_until(self, condition: Callable[[], bool], what: str) -> None:
        """Wait for ``condition``; fails with the engine's last words after PATIENCE_S, or when the engine has ended."""
        deadline = time.monotonic() + PATIENCE_S
        with self._changed:
            while not condition():
                ended = self.process.poll()
                if ended is not None or time.monotonic() > deadline:
                    raise AssertionError(f"waited for: {what}; the engine's exit status is {ended}\n{self._words()}")
                self._changed.wait(0.2)

    def _words(self) -> str:
        """Of the engine's log what went wrong first, which much may follow, and the end."""
        log = self.log.read_text(errors="replace")
        faults = [at.start() for at in re.finditer(r"^(.* ERROR |# |Caused by: )", log, re.MULTILINE)]
        return "\n".join([*(log[at : at + 400] for at in faults[:10]), "...", log[-3000:]])

    def _read(self) -> None:
        decoder = msgspec.msgpack.Decoder(FromEngine)
        self._connection, _ = self._listener.accept()
        reader = FrameReader()
        try:
            while data := self._connection.recv(65536):
                for body in reader.receive(data):
                    self._take(decoder.decode(body))
        except OSError:
            return

    def _take(self, message: FromEngine) -> None:
        with self._changed:
            match message:
                case Hello():
                    self.hello = message
                case EngineReply():
                    self._replies[message.call_id] = message
                case FragmentStatus():
                    self.statuses[message.fragment_id] = message
                case LinkLost():
                    self.lost.append(message)
            self._changed.notify_all()


def deploy(
    fragments: tuple[FragmentSpec, ...],
    engines: dict[str, DrivenEngine],
    running: Mapping[str, str] = MappingProxyType({}),
) -> dict[str, str]:
    """Start a plan in topological order, each fragment on its engine, and connect the ports.

    Returns the schemas of what it puts out, by fragment; ``running`` are those of what runs already, and is read.
    """
    described = dict(running)
    for spec in fragments:
        consumers = tuple(
            cursor_name(other.fragment_id, port.name)
            for other in fragments
            for port in other.ports
            if spec.fragment_id in port.producers
        )
        port_schemas = tuple(described[port.producers[0]] for port in spec.ports)
        engine = engines[spec.fragment_id]
        reply = engine.start(spec, port_schemas=port_schemas, consumers=consumers)
        assert reply.output_schema is not None
        described[spec.fragment_id] = reply.output_schema
        for port in spec.ports:
            for producer in port.producers:
                connect(engine, spec, port.name, producer, engines[producer])
    return described


def connect(
    engine: DrivenEngine,
    spec: FragmentSpec,
    port: str,
    producer: str,
    at: DrivenEngine,
    generation: int = 1,
    producer_generation: int = 1,
) -> None:
    """Point one port at a producer."""
    assert at.hello is not None
    engine.do(
        Connect(spec.fragment_id, generation, "test", port, producer, producer_generation, at.hello.flight_address)
    )
