"""FakeEngine: a process that speaks the engine socket like the real one, in milliseconds and without Spark.

A fragment counts: every few milliseconds it takes what its folder's file ``count`` holds, and adds one. It holds the
folder's lock while it runs, and appends "start GENERATION PID" and "stop GENERATION PID" to ``history``, so that tests
see from the files whether anything ever ran twice. Run as ``python fake_engine.py --socket PATH --name NAME ...``.

What it does is steered by a file ``<scratch>/../fake.json``: {"die": "words"} ends it at the start with status 2,
{"spark": "version"} has it say that it is that one, {"refuse": "kind"} refuses to instantiate fragments of that kind,
{"damaged": "kind"} because of what is on the disk, {"finish": true} reports all fragments as finished, {"fail": "kind"}
reports fragments of that kind as failed, {"fail_once": "kind"} until they are instantiated again.
Every link carries 1000 bytes and 10 rows a second, which is measured unless its producer's id ends with {"unmeasured":
"-source2"}; {"stream_rows_per_s": 70.0} is what sources read, {"cpu_cores": {"kind": 0.5}} what fragments use.
{"lagging": true} has ports go on needing a producer that another one has come for.
"""

from __future__ import annotations

import argparse
import fcntl
import json
import os
import shutil
import socket
import sys
import threading
import time
from importlib import metadata
from pathlib import Path
from typing import Any

import msgspec

from sbon.engine_messages import (
    PROTOCOL_VERSION,
    Connect,
    Destroy,
    EngineCall,
    EngineReply,
    FlightAddress,
    FragmentState,
    FragmentStatus,
    FromEngine,
    Hello,
    Instantiate,
    Migrate,
    Permit,
    PortStatus,
    Rehearse,
    SetPort,
    SetReaders,
    SnapshotTaken,
)
from sbon.fragment import FragmentKind, PortSpec, Start
from sbon.frames import FrameReader, frame

PERIOD_S = 0.02
#: Of a fragment's state, so much never changes.
FROZEN_BYTES = 5000
#: A snapshot, if one is asked for, after so many batches.
SNAPSHOT_BATCHES = 10


class FakeFragment:
    """One that runs; ``again``: it took the place of one that had failed."""

    def __init__(self, command: Instantiate, *, again: bool = False) -> None:
        self.command = command
        self.again = again
        self.folder = Path(command.folder)
        self.connected: dict[tuple[str, str], Connect] = {}
        self.batches = -1
        self.bounds = command.bounds
        self.consumers = command.consumers
        self.ports = {port.name: port for port in command.spec.ports}
        self._lock = (self.folder / "lock").open("w")
        deadline = time.monotonic() + 10
        while True:
            try:
                fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.01)
        (self.folder / "frozen").write_bytes(bytes(FROZEN_BYTES))
        self._note("start")

    def _note(self, what: str) -> None:
        with (self.folder / "history").open("a") as history:
            history.write(f"{what} {self.command.generation} {os.getpid()}\n")

    def work(self) -> None:
        count = self.folder / "count"
        before = int(count.read_text()) if count.exists() else 0
        new = count.with_suffix(".new")
        new.write_text(str(before + 1))
        new.replace(count)
        self.batches += 1

    @property
    def newest_batch(self) -> int:
        """Over all its stays, as Spark counts; ``batches`` is since the start."""
        count = self.folder / "count"
        return int(count.read_text()) - 1 if count.exists() else -1

    def snapshot(self) -> SnapshotTaken | None:
        """Copies of the count and the history, now and then."""
        batch_id = self.newest_batch
        if self.bounds.snapshots is None or batch_id % SNAPSHOT_BATCHES:
            return None
        folder = Path(self.bounds.snapshots) / str(batch_id)
        folder.mkdir(parents=True, exist_ok=True)
        for name in ("count", "history", "frozen"):
            shutil.copyfile(self.folder / name, folder / name)
        return SnapshotTaken(self.command.fragment_id, self.command.generation, batch_id, str(folder))

    def passed(self, port: str, producer: str) -> bool:
        """Another producer has come in its place, and all that was to be read of it is here: at once."""
        switch = self.ports[port].switch
        return switch is not None and producer == switch.old and (port, switch.new) in self.connected

    def set_port(self, port: PortSpec) -> None:
        self.ports[port.name] = port
        for name, producer in list(self.connected):
            if name == port.name and producer not in port.producers:
                del self.connected[name, producer]

    def stop(self) -> None:
        self._note("stop")
        self._lock.close()


class FakeEngine:
    def __init__(self, arguments: argparse.Namespace) -> None:
        self.steering = Path(arguments.scratch).parent / "fake.json"
        self.fragments: dict[str, FakeFragment] = {}
        self.generations: dict[str, int] = {}
        self.turn = threading.Lock()
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.connect(arguments.socket)

    def steer(self) -> dict[str, Any]:
        try:
            found: dict[str, Any] = json.loads(self.steering.read_text())
        except (OSError, ValueError):
            return {}
        return found

    def send(self, message: FromEngine) -> None:
        self.socket.sendall(frame(msgspec.msgpack.encode(message)))

    def run(self) -> None:
        address = FlightAddress("127.0.0.1", os.getpid() % 60000 + 1)
        spark_version = self.steer().get("spark", metadata.version("pyspark"))
        self.send(Hello(PROTOCOL_VERSION, os.getpid(), address, spark_version, "17-fake"))
        threading.Thread(target=self.tell, daemon=True).start()
        reader = FrameReader()
        decoder = msgspec.msgpack.Decoder(EngineCall)
        while data := self.socket.recv(65536):
            for body in reader.receive(data):
                call = decoder.decode(body)
                with self.turn:
                    self.send(self.answer(call))

    def tell(self) -> None:
        while True:
            time.sleep(PERIOD_S)
            with self.turn:
                steering = self.steer()
                for fragment_id, fragment in self.fragments.items():
                    fragment.work()
                    self.send(self.status(fragment_id, fragment, steering))
                    if snapshot := fragment.snapshot():
                        self.send(snapshot)

    def status(self, fragment_id: str, fragment: FakeFragment, steering: dict[str, Any]) -> FragmentStatus:
        state, error = FragmentState.RUNNING, None
        if steering.get("finish"):
            state = FragmentState.FINISHED
        kind = fragment.command.spec.kind
        unmeasured = steering.get("unmeasured", " ")
        if steering.get("fail") == kind or (steering.get("fail_once") == kind and not fragment.again):
            state, error = FragmentState.FAILED, "the fake one failed"
        return FragmentStatus(
            fragment_id,
            fragment.command.generation,
            state,
            ports=tuple(
                PortStatus(
                    port,
                    producer,
                    1000.0,
                    10.0,
                    10,
                    settled=not producer.endswith(unmeasured),
                    passed=fragment.passed(port, producer) and not steering.get("lagging"),
                )
                for port, producer in fragment.connected
            ),
            output_rate_bytes_per_s=1000.0,
            output_rate_rows_per_s=10.0,
            selectivity=0.5 if fragment.connected else None,
            stream_rows_per_s=steering.get("stream_rows_per_s") if kind == FragmentKind.SOURCE else None,
            cpu_cores=steering.get("cpu_cores", {}).get(kind),
            batch_id=fragment.batches,
            state_bytes=FROZEN_BYTES,
            error=error,
        )

    def answer(self, call: EngineCall) -> EngineReply:
        command = call.command
        known = self.generations.get(command.fragment_id, 0)
        if not isinstance(command, Rehearse):
            if command.generation < known:
                return EngineReply(call.call_id, error=f"generation {known} is known", stale=True)
            self.generations[command.fragment_id] = command.generation
        fragment = self.fragments.get(command.fragment_id)
        match command:
            case Instantiate():
                if self.steer().get("refuse") == command.spec.kind:
                    return EngineReply(call.call_id, error="Spark refuses this")
                if self.steer().get("damaged") == command.spec.kind:
                    return EngineReply(call.call_id, error="count is damaged on this host's disk", damaged=True)
                if fragment is not None:  # asked for again because it had failed
                    fragment.stop()
                self.fragments[command.fragment_id] = FakeFragment(command, again=fragment is not None)
                newest = self.fragments[command.fragment_id].newest_batch
                return EngineReply(call.call_id, output_schema="{}", newest_batch=newest)
            case Permit():
                if fragment is None:
                    return EngineReply(call.call_id, error="does not run here")
                fragment.bounds = command.bounds
                return EngineReply(call.call_id, newest_batch=fragment.newest_batch)
            case SetReaders():
                if fragment is None:
                    return EngineReply(call.call_id, error="does not run here")
                fragment.consumers = command.consumers
                begin = Start(fragment.newest_batch + 1, 1000)
                return EngineReply(call.call_id, starts=dict.fromkeys(command.consumers, begin))
            case Connect():
                if fragment is None:
                    return EngineReply(call.call_id, error="does not run here")
                fragment.connected[command.port, command.producer] = command
            case SetPort():
                if fragment is None:
                    return EngineReply(call.call_id, error="does not run here")
                fragment.set_port(command.port)
            case Migrate():
                if fragment is None:
                    return EngineReply(call.call_id, error="does not run here")
                self.fragments.pop(command.fragment_id).stop()
                return EngineReply(call.call_id, state_bytes=1234)
            case Destroy():
                if fragment is not None:
                    self.fragments.pop(command.fragment_id).stop()
                shutil.rmtree(command.folder, ignore_errors=True)
            case _:
                pass
        return EngineReply(call.call_id)


def main() -> int:
    parser = argparse.ArgumentParser()
    for option in ("--socket", "--name", "--scratch"):
        parser.add_argument(option)
    arguments, _ = parser.parse_known_args()  # the rest is about Spark
    steering = Path(arguments.scratch).parent / "fake.json"
    if steering.exists() and "die" in (steered := json.loads(steering.read_text())):
        print(f"sbon engine {arguments.name}: {steered['die']}", file=sys.stderr)
        return 2
    FakeEngine(arguments).run()
    return 0


if __name__ == "__main__":
    sys.exit(main())
