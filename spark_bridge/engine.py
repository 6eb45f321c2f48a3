"""The engine process: Spark beside a daemon, driven over the engine socket, gone when its daemon is gone."""

from __future__ import annotations

import logging
import os
import shutil
import signal
import socket
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from weakref import WeakKeyDictionary, WeakValueDictionary

import msgspec
from pyspark.sql import SparkSession

from sbon.engine_messages import (
    PROTOCOL_VERSION,
    AwaitOutput,
    Command,
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
    LinkLost,
    Migrate,
    Permit,
    Rehearse,
    SetPort,
    SetReaders,
    SnapshotTaken,
)
from sbon.errors import SbonError, StaleGenerationError, UnavailableError
from sbon.frames import FrameReader, frame
from spark_bridge import local_files
from spark_bridge.changing_folder import folder_bytes
from spark_bridge.flight_links import LinkServer
from spark_bridge.fragment_input import FragmentInput
from spark_bridge.fragment_runner import FragmentRunner, RunnerSettings, one_line
from spark_bridge.link_service import LinkService, Served
from spark_bridge.processor_time import ProcessorTime, spent_by_tree_s
from spark_bridge.rehearsal import Rehearsals
from spark_bridge.relay import Relay
from spark_bridge.replay_source import register_replay_source
from spark_bridge.restraint import Restraint
from spark_bridge.session import start_session
from spark_bridge.snapshots import Snapshot
from spark_bridge.soundness import find_damage

_log = logging.getLogger(__name__)

_STATUS_PERIOD_S = 1.0
_STOP_WITHIN_S = 3.0
_COMMANDS_AT_ONCE = 8
#: Fragments for which all is ready, at most: of those that are expected not all come.
_MOST_PREPARED = 8
_CALLS = msgspec.msgpack.Decoder(EngineCall)


@dataclass(frozen=True, slots=True)
class EngineSettings:
    """What the daemon decides about its engine; ``bind_host`` is where other engines pull from."""

    name: str
    socket: Path
    scratch: Path
    bind_host: str = "127.0.0.1"
    master: str = "local[2]"
    memory_mb: int = 512
    spark: Mapping[str, str] = field(default_factory=dict)
    runner: RunnerSettings = field(default_factory=RunnerSettings)


class Fragments:
    """The fragments on this engine, and the one place where their commands are carried out.

    Commands about one fragment follow each other, those about different ones run side by side. A generation lower than
    the highest one seen for a fragment is refused with StaleGenerationError.
    """

    def __init__(
        self,
        spark: SparkSession,
        settings: RunnerSettings,
        tell: Callable[[FromEngine], None],
        report_soon: Callable[[], None],
    ) -> None:
        """``report_soon()`` asks for statuses to be sent at once."""
        self._spark = spark
        self._settings = settings
        self._tell = tell
        self._report_soon = report_soon
        self.links = LinkService(self)
        self._runners: dict[str, FragmentRunner] = {}
        #: Also of those that have gone: what comes too late may come much too late.
        self._generations: dict[str, int] = {}
        self._rehearsals = Rehearsals(spark, settings)
        self._restraint = Restraint()
        self._starting: set[str] = set()
        #: Of fragments that are about to arrive, the newest last.
        self._prepared: dict[str, FragmentInput] = {}
        self._damage: WeakKeyDictionary[FragmentRunner, str | None] = WeakKeyDictionary()
        #: Each for as long as somebody has it or waits for it.
        self._turns: WeakValueDictionary[str, threading.Lock] = WeakValueDictionary()
        self._turns_lock = threading.Lock()

    def carry_out(self, call_id: int, command: Command) -> EngineReply:
        """Do what ``command`` says and answer it; errors become a reply, not an exception."""
        with self._turns_lock:
            turn = self._turns.setdefault(_whose(command), threading.Lock())
        with turn:
            try:
                self._check_generation(command)
                return self._dispatch(call_id, command)
            except StaleGenerationError as error:
                return EngineReply(call_id, error=str(error), stale=True)
            except UnavailableError as error:
                return EngineReply(call_id, error=one_line(error))
            except (SbonError, OSError) as error:
                return _failed(call_id, command, one_line(error))
            except Exception as error:
                _log.exception("%s of %s failed", type(command).__name__, command.fragment_id)
                return _failed(call_id, command, f"the engine failed: {one_line(error)}")

    def served(self, fragment_id: str) -> Served | None:
        """For the link server."""
        runner = self._runners.get(fragment_id)
        return runner.served() if runner else None

    def relayed(self, fragment_id: str) -> Relay | None:
        """For the link server."""
        return next((relay for runner in self.running() if (relay := runner.relay(fragment_id))), None)

    def running(self) -> list[FragmentRunner]:
        """All fragments here."""
        return list(self._runners.values())

    def statuses(self) -> list[FragmentStatus]:
        """Of all fragments here. Why one has failed is looked for on the disk, once."""
        statuses = []
        for runner in self.running():
            runner.rest_if_finished()
            status = runner.status()
            if status.state is FragmentState.FAILED:
                if runner not in self._damage:
                    self._damage[runner] = find_damage(runner.folder)
                damage = self._damage[runner]
                status = msgspec.structs.replace(status, error=damage or status.error, damaged=damage is not None)
            statuses.append(status)
        return statuses

    def stop_all(self) -> None:
        """Stop every fragment, side by side."""
        threads = [threading.Thread(target=runner.stop, daemon=True) for runner in self.running()]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(_STOP_WITHIN_S)

    def _check_generation(self, command: Command) -> None:
        if isinstance(command, Rehearse):  # it touches nothing of the fragment, which may even run here, to be moved
            return
        known = self._generations.get(command.fragment_id, 0)
        if command.generation < known:
            raise StaleGenerationError(
                f"{command.fragment_id} has generation {known}; a command under {command.generation} comes too late"
            )
        self._generations[command.fragment_id] = command.generation

    def _dispatch(self, call_id: int, command: Command) -> EngineReply:
        match command:
            case Instantiate():
                runner = self._instantiate(command)
                return EngineReply(call_id, output_schema=runner.output_schema, newest_batch=runner.newest_batch)
            case Rehearse():
                with self._restraint.rehearsing(lambda: not (self._runners or self._starting)):
                    is_to_come = self._rehearsals.rehearse(command)
                if is_to_come and command.spec.ports:
                    prepared = FragmentInput(self._spark, command.spec, command.port_schemas)
                    self._keep_prepared(command.fragment_id, prepared)
            case Permit():
                runner = self._runner(command.fragment_id)
                runner.bound(command.bounds)
                return EngineReply(call_id, newest_batch=runner.newest_batch)
            case SetReaders():
                return EngineReply(call_id, starts=self._runner(command.fragment_id).set_readers(command.consumers))
            case Connect():
                self._runner(command.fragment_id).connect(command)
            case SetPort():
                self._runner(command.fragment_id).set_port(command.port)
            case AwaitOutput():
                self._runner(command.fragment_id).await_output()
            case Migrate():
                return EngineReply(call_id, state_bytes=self._migrate(command))
            case Destroy():
                self._destroy(command)
        return EngineReply(call_id)

    def _keep_prepared(self, fragment_id: str, prepared: FragmentInput) -> None:
        self._prepared.pop(fragment_id, None)
        self._prepared[fragment_id] = prepared
        for oldest in list(self._prepared)[:-_MOST_PREPARED]:
            self._prepared.pop(oldest, None)

    def _instantiate(self, command: Instantiate) -> FragmentRunner:
        runner = self._runners.get(command.fragment_id)
        if runner is not None and runner.runs():
            runner.raise_generation(command.generation, command.owner)
            runner.bound(command.bounds)
            return runner
        if runner is not None:  # it failed: start over from its checkpoint
            self._runners.pop(command.fragment_id).stop()

        def link_lost(port: str, producer: str, reason: str) -> None:
            self._tell(LinkLost(command.fragment_id, command.generation, port, producer, reason))

        def snapshot_taken(snapshot: Snapshot) -> None:
            folder = str(snapshot.folder)
            self._tell(SnapshotTaken(command.fragment_id, command.generation, snapshot.batch_id, folder))

        self._starting.add(command.fragment_id)
        try:
            self._restraint.lift()
            self._rehearsals.leave(command.fragment_id)
            prepared = self._prepared.pop(command.fragment_id, None)
            runner = FragmentRunner(
                self._spark,
                command,
                self._settings,
                link_lost,
                snapshot_taken,
                self._report_soon,
                prepared,
                self.links,
            )
            self._runners[command.fragment_id] = runner
        finally:
            self._starting.discard(command.fragment_id)
        return runner

    def _migrate(self, command: Migrate) -> int:
        runner = self._runner(command.fragment_id)
        # Out of the directory first: consumers that pull are refused, and ask where the fragment is.
        del self._runners[command.fragment_id]
        runner.stop()
        return runner.state_bytes()

    def _destroy(self, command: Destroy) -> None:
        self._prepared.pop(command.fragment_id, None)
        if runner := self._runners.pop(command.fragment_id, None):
            runner.stop()
        folder = Path(command.folder)
        if folder.exists():
            _log.info("deleting %s (%d bytes)", folder, folder_bytes(folder))
            shutil.rmtree(folder)

    def _runner(self, fragment_id: str) -> FragmentRunner:
        runner = self._runners.get(fragment_id)
        if runner is None:
            raise SbonError(f"{fragment_id} does not run here")
        return runner


def _whose(command: Command) -> str:
    """Those of one fragment are carried out one after the other. A rehearsal is somebody else's, and who waits for
    output does not hold up what it depends on."""
    match command:
        case Rehearse():
            return f"{command.fragment_id}-rehearsal"
        case AwaitOutput():
            return f"{command.fragment_id}-output"
    return command.fragment_id


def _failed(call_id: int, command: Command, error: str) -> EngineReply:
    """The answer to a command that failed; if a fragment does not start, perhaps because of what is on the disk."""
    damage = find_damage(Path(command.folder)) if isinstance(command, Instantiate) else None
    return EngineReply(call_id, error=damage or error, damaged=damage is not None)


class Engine:
    """The engine socket around :class:`Fragments`."""

    def __init__(self, settings: EngineSettings) -> None:
        self._settings = settings
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        #: There is something to tell before the next period is over.
        self._due = threading.Event()
        self._sending = threading.Lock()
        self._fragments: Fragments | None = None
        self._ending = threading.Event()

    def run(self) -> None:
        """Serve until the daemon closes the socket or SIGTERM comes. SbonError if the engine cannot start."""
        self._socket.connect(str(self._settings.socket))
        # Watched from the first moment: a daemon may die while Spark is still starting.
        threading.Thread(target=self._read_calls, name="engine socket", daemon=True).start()
        spark = start_session(
            self._settings.name,
            self._settings.scratch,
            master=self._settings.master,
            bind_host=self._settings.bind_host,
            memory_mb=self._settings.memory_mb,
            settings={**local_files.SETTINGS, **self._settings.spark},
        )
        local_files.use_plain_files(spark)
        register_replay_source(spark)
        fragments = Fragments(spark, self._settings.runner, self._send, self._due.set)
        server = LinkServer(self._settings.bind_host, fragments.links)
        self._fragments = fragments
        signal.signal(signal.SIGTERM, lambda *_: self._end())
        self._send(self._hello(spark, server.address))
        processor_time = ProcessorTime(spent_by_tree_s(os.getpid()))
        while True:
            self._due.wait(_STATUS_PERIOD_S)
            self._due.clear()
            if self._ending.is_set():
                break
            running = fragments.running()
            meters = [runner.meters for runner in running]
            if processor_time.is_due(meters):
                processor_time.divide(meters, spent_by_tree_s(os.getpid()), time.monotonic())
            for status in fragments.statuses():
                self._send(status)
        fragments.stop_all()

    def _hello(self, spark: SparkSession, address: FlightAddress) -> Hello:
        jvm = spark.sparkContext._jvm
        assert jvm is not None
        return Hello(
            protocol_version=PROTOCOL_VERSION,
            pid=os.getpid(),
            flight_address=address,
            spark_version=spark.version,
            java_version=str(jvm.java.lang.System.getProperty("java.version")),
        )

    def _read_calls(self) -> None:
        """However that ends, the engine does, at the latest when what it was told is done: one that runs nothing says
        nothing, and would not notice otherwise."""
        reader = FrameReader()
        try:
            with ThreadPoolExecutor(_COMMANDS_AT_ONCE, thread_name_prefix="command") as pool:
                while data := self._socket.recv(65536):
                    for body in reader.receive(data):
                        pool.submit(self._answer, _CALLS.decode(body))
        except ConnectionResetError:
            _log.info("the daemon was killed before it had read all that this engine said")
        finally:
            if self._fragments is None:
                os._exit(0)  # Spark is still starting, and nobody waits for it any more
            self._end()

    def _answer(self, call: EngineCall) -> None:
        assert self._fragments is not None
        self._send(self._fragments.carry_out(call.call_id, call.command))

    def _send(self, message: FromEngine) -> None:
        try:
            with self._sending:
                self._socket.sendall(frame(msgspec.msgpack.encode(message)))
        except OSError:
            self._end()

    def _end(self) -> None:
        self._ending.set()
        self._due.set()
