"""The engine beside this daemon: a process that is started when it is needed, watched, and ended when it is not.

:meth:`EngineSupervisor.prepare` has an engine running, :meth:`EngineSupervisor.call` gives it a command; the first
takes many seconds, the second must not. What the engine tells by itself goes to an :class:`EngineListener`. When it
dies its listener is told, and decides what to do: nothing is started again until somebody prepares it.
"""

from __future__ import annotations

import itertools
import logging
import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from importlib import metadata
from pathlib import Path
from typing import Protocol

import msgspec
import trio

import sbon
from daemon.config import MAX_SOCKET_PATH_BYTES, EngineConfig
from daemon.events import Events
from daemon.fragments.engine_log import EngineLog
from daemon.peering.frame_stream import FrameStream
from sbon.engine_messages import (
    PROTOCOL_VERSION,
    Command,
    EngineCall,
    EngineReply,
    FragmentStatus,
    FromEngine,
    Hello,
    LinkLost,
    SnapshotTaken,
)
from sbon.errors import (
    ConfigurationError,
    DamagedError,
    RemoteProtocolError,
    SbonError,
    StaleGenerationError,
    UnavailableError,
)
from sbon.frames import decode_body

log = logging.getLogger("sbon.engine")

#: What an engine gets beside the daemon's own, which goes first. glibc keeps memory that was freed for the thread that
#: had it, in up to eight arenas per core: state that many threads open and close in turn made Java grow for an hour.
_ENVIRONMENT = {"MALLOC_ARENA_MAX": "2"}
ENGINE_COMMAND = (sys.executable, "-P", "-m", "spark_bridge")
#: The engine waits for the folder lock of a predecessor that is still dying, some 20 s.
CALL_TIMEOUT_S = 60.0
#: An engine stops its queries at SIGTERM; what is still there after this is killed.
STOP_TIMEOUT_S = 8.0
#: An engine that died after less than this is started again only after a pause, which doubles each time.
HEALTHY_S = 60.0
FIRST_PAUSE_S = 0.5
LONGEST_PAUSE_S = 30.0
#: A running engine's log is looked at this often.
LOG_INTERVAL_S = 60.0

_FROM_ENGINE: msgspec.msgpack.Decoder[FromEngine] = msgspec.msgpack.Decoder(FromEngine)


class EngineListener(Protocol):
    """Who hosts the fragments. The calls return at once."""

    @property
    def needs_engine(self) -> bool: ...
    def link_lost(self, lost: LinkLost) -> None: ...
    def snapshot_taken(self, snapshot: SnapshotTaken) -> None: ...
    def status_changed(self, status: FragmentStatus) -> None: ...
    def engine_lost(self) -> None: ...


class _Start:
    """One attempt to have an engine; those who wait for it share its outcome."""

    def __init__(self) -> None:
        self.over = trio.Event()
        self.error: SbonError | None = None


class _Waiting:
    """A call that has not been answered yet. ``reply`` stays None if the engine ends first."""

    def __init__(self) -> None:
        self.over = trio.Event()
        self.reply: EngineReply | None = None


class EngineSupervisor:
    """At most one engine process. All methods belong to the thread of trio."""

    def __init__(
        self,
        name: str,
        bind_host: str,
        socket_path: Path,
        state_dir: Path,
        config: EngineConfig,
        events: Events,
        command: Sequence[str] = ENGINE_COMMAND,
    ) -> None:
        """``socket_path`` is where the engine connects to; ``command`` is what starts one.

        Raises ConfigurationError if the path is too long for a socket.
        """
        if len(bytes(socket_path)) > MAX_SOCKET_PATH_BYTES:
            raise ConfigurationError(f"node.socket: no room for the engine's {socket_path}: choose a shorter path")
        self._name = name
        self._bind_host = bind_host
        self._socket_path = socket_path
        self._state_dir = state_dir
        self._log = EngineLog(state_dir / "engine.log")
        self._config = config
        self._events = events
        self._command = tuple(command)
        self._listener: EngineListener | None = None
        self._start: _Start | None = None
        self._wanted = trio.Event()
        self._hello: Hello | None = None
        self._spark_version = ""
        self._frames: FrameStream | None = None
        self._waiting: dict[int, _Waiting] = {}
        self._call_ids = itertools.count(1)
        self._statuses: dict[str, FragmentStatus] = {}
        self._last_used_s = 0.0
        self._early_deaths = 0

    # --- what others use

    @property
    def hello(self) -> Hello | None:
        """What the running engine said about itself; None if there is none."""
        return self._hello

    @property
    def spark_version(self) -> str:
        """Of the engine that runs or ran last, else of the one that would be started."""
        return self._spark_version or metadata.version("pyspark")

    def describe(self) -> str:
        """One word or line for `sbon status`."""
        if self._hello is not None:
            return f"running, Spark {self._hello.spark_version}, process {self._hello.pid}"
        return "stopped" if self._start is None else "starting"

    def status(self, fragment_id: str) -> FragmentStatus | None:
        """The latest word of the running engine on a fragment."""
        return self._statuses.get(fragment_id)

    def forget_status(self, fragment_id: str) -> None:
        """Wait for news: what was said of the fragment so far is about an earlier run."""
        self._statuses.pop(fragment_id, None)

    async def prepare(self) -> Hello:
        """Return once an engine is up. Raises SbonError, with the engine's last words, if it does not start."""
        self._last_used_s = trio.current_time()
        while self._hello is None:
            if self._start is None:
                self._start = _Start()
                self._wanted.set()
            start = self._start
            await start.over.wait()
            if start.error is not None:
                raise start.error
        return self._hello

    async def call(self, command: Command, timeout_s: float = CALL_TIMEOUT_S) -> EngineReply:
        """Have a running engine carry out ``command``.

        Raises StaleGenerationError if its generation is refused, DamagedError if the fragment cannot start from what is
        on the disk, SbonError if it fails otherwise, UnavailableError if there is no
        engine or it does not answer; then it is not known whether the command was carried out.
        """
        frames = self._frames
        if frames is None:
            raise UnavailableError("the engine of this node is not running: try again")
        self._last_used_s = trio.current_time()
        call_id = next(self._call_ids)
        waiting = self._waiting[call_id] = _Waiting()
        try:
            with trio.move_on_after(timeout_s) as scope:
                try:
                    await frames.send(msgspec.msgpack.encode(EngineCall(call_id, command)))
                except (trio.BrokenResourceError, trio.ClosedResourceError):
                    raise UnavailableError("the engine of this node has just ended: try again") from None
                await waiting.over.wait()
        finally:
            del self._waiting[call_id]
        what = f"{type(command).__name__} of {command.fragment_id}"
        if scope.cancelled_caught:
            raise UnavailableError(f"{what}: the engine did not answer within {timeout_s:g} s: see {self.log_file}")
        reply = waiting.reply
        if reply is None:
            raise UnavailableError(f"{what}: the engine ended in the middle: see {self.log_file}")
        if reply.stale:
            raise StaleGenerationError(reply.error or f"{what} comes too late")
        if reply.error is not None:
            raise DamagedError(reply.error) if reply.damaged else SbonError(reply.error)
        return reply

    @property
    def log_file(self) -> Path:
        """What the engine writes on its standard output and error."""
        return self._log.path

    # --- the process

    async def run(
        self, listener: EngineListener, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
    ) -> None:
        """Start engines when they are wanted, until cancelled; then the one that runs is ended."""
        self._listener = listener
        self._socket_path.unlink(missing_ok=True)
        with trio.socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listening:
            await listening.bind(str(self._socket_path))
            self._socket_path.chmod(0o600)
            listening.listen(1)
            task_status.started()
            try:
                while True:
                    await self._wanted.wait()
                    self._wanted = trio.Event()
                    await self._pause()
                    await self._run_once(listening)
            finally:
                self._socket_path.unlink(missing_ok=True)

    async def _pause(self) -> None:
        if self._early_deaths > 1:
            await trio.sleep(min(LONGEST_PAUSE_S, FIRST_PAUSE_S * 2.0 ** (self._early_deaths - 2)))

    async def _run_once(self, listening: trio.socket.SocketType) -> None:
        """From the start of a process to its end."""
        start = self._start
        assert start is not None
        self._events.publish("engine-starting")
        began_s = trio.current_time()
        process: trio.Process | None = None
        try:
            try:
                process = await self._begin()
                stream, hello = await self._greet(listening, process)
            except SbonError as error:
                start.error = error
                self._events.publish("engine-failed", error=str(error))
                return
            finally:
                self._start = None
                start.error = start.error or (None if self._hello else UnavailableError("the daemon is shutting down"))
                start.over.set()
            self._events.publish(
                "engine-started", pid=hello.pid, spark=hello.spark_version, seconds=trio.current_time() - began_s
            )
            async with stream:
                idle = await self._serve(process)
            if not idle:
                early = trio.current_time() - began_s < HEALTHY_S
                self._early_deaths = self._early_deaths + 1 if early else 1
        finally:
            self._forget_engine()
            if process is not None:
                with trio.CancelScope(shield=True):
                    await _end(process)
        if idle:
            self._events.publish("engine-stopped", reason=f"no fragment for {self._config.idle_s:g} s")
        else:
            self._events.publish("engine-lost", status=process.returncode, last_words=self._last_words())
            assert self._listener is not None
            self._listener.engine_lost()

    async def _begin(self) -> trio.Process:
        """Raises UnavailableError if there is no room for it, or for its log."""
        try:
            return await self._open_process()
        except OSError as error:
            what = f"{error.strerror or error}: {error.filename}" if error.filename else error.strerror or error
            raise UnavailableError(f"no engine can be started now ({what}): see this host's disk and limits") from error

    async def _open_process(self) -> trio.Process:
        scratch = self._state_dir / "engine-scratch"
        shutil.rmtree(scratch, ignore_errors=True)
        scratch.mkdir(parents=True)
        config = self._config
        arguments = [
            *("--socket", str(self._socket_path), "--name", self._name, "--scratch", str(scratch)),
            *("--bind", self._bind_host, "--master", config.master, "--memory-mb", str(config.memory_mb)),
            *("--trigger-ms", str(config.trigger_ms), "--log-bytes", str(config.log_bytes)),
            *(f"--conf={key}={value}" for key, value in config.spark.items()),
        ]
        # The same packages as ours, wherever the daemon was started.
        packages = str(Path(str(sbon.__file__)).parent.parent)
        path = os.pathsep.join([packages, *filter(None, [os.environ.get("PYTHONPATH")])])
        with self._log.open() as output:
            return await trio.lowlevel.open_process(
                [*self._command, *arguments],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env={**_ENVIRONMENT, **os.environ, "PYTHONPATH": path},
                start_new_session=True,  # Ctrl-C is for the daemon, which ends its engine in order
            )

    async def _greet(self, listening: trio.socket.SocketType, process: trio.Process) -> tuple[trio.SocketStream, Hello]:
        """Wait for the engine to connect and to say hello. Raises SbonError if it ends, or stays silent, instead."""
        greeting: tuple[trio.SocketStream, Hello] | None = None
        with trio.move_on_after(self._config.start_timeout_s) as limit:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(_cancel_at_end, process, nursery.cancel_scope)
                greeting = await self._accept(listening)
                nursery.cancel_scope.cancel()
        if greeting is not None:
            stream, hello = greeting
            if hello.protocol_version == PROTOCOL_VERSION:
                self._hello, self._spark_version = hello, hello.spark_version
                return stream, hello
            await trio.aclose_forcefully(stream)
            raise SbonError("the engine is of another version than the daemon: install sbon anew")
        if limit.cancelled_caught:
            remedy = f"see {self.log_file}, and give a slow host more time with engine.start_timeout_s"
            raise SbonError(f"the engine did not start within {self._config.start_timeout_s:g} s: {remedy}")
        with trio.move_on_after(1.0):  # whoever closed the connection without a word is probably ending
            await process.wait()
        words = self._last_words() or f"it ended with status {process.returncode}"
        raise SbonError(f"the engine does not start: {words} (see {self.log_file})")

    async def _accept(self, listening: trio.socket.SocketType) -> tuple[trio.SocketStream, Hello] | None:
        """The next connection, if it begins with a Hello."""
        connection, _ = await listening.accept()
        try:
            stream = trio.SocketStream(connection)
            frames = FrameStream(stream)
            body = await frames.receive()
            hello = None if body is None else decode_body(_FROM_ENGINE, body)
            if isinstance(hello, Hello):
                self._frames = frames
                return stream, hello
        except (RemoteProtocolError, trio.BrokenResourceError) as error:
            log.warning("no greeting from the engine: %s", error)
        except BaseException:
            connection.close()
            raise
        connection.close()
        return None

    async def _serve(self, process: trio.Process) -> bool:
        """Listen to the engine until it ends (False) or has had nothing to do for long enough (True)."""
        self._last_used_s = trio.current_time()
        idle = False
        async with trio.open_nursery() as nursery:

            async def read() -> None:
                await self._read()
                nursery.cancel_scope.cancel()

            nursery.start_soon(read)
            nursery.start_soon(self._bound_log)
            nursery.start_soon(_cancel_at_end, process, nursery.cancel_scope)
            await self._until_idle()
            idle = True
            nursery.cancel_scope.cancel()
        return idle

    async def _until_idle(self) -> None:
        assert self._listener is not None
        while True:
            if self._listener.needs_engine or self._waiting:
                self._last_used_s = trio.current_time()
            left_s = self._last_used_s + self._config.idle_s - trio.current_time()
            if left_s <= 0.0:
                return
            await trio.sleep(left_s)

    async def _bound_log(self) -> None:
        while True:
            await trio.sleep(LOG_INTERVAL_S)
            with suppress(OSError):  # no room for a copy
                self._log.bound()

    def _last_words(self) -> str:
        return self._log.last_words(self._config.memory_mb)

    async def _read(self) -> None:
        assert self._frames is not None
        assert self._listener is not None
        try:
            while (body := await self._frames.receive()) is not None:
                match decode_body(_FROM_ENGINE, body):
                    case EngineReply() as reply:
                        if waiting := self._waiting.get(reply.call_id):
                            waiting.reply = reply
                            waiting.over.set()
                    case FragmentStatus() as status:
                        self._statuses[status.fragment_id] = status
                        self._listener.status_changed(status)
                    case LinkLost() as lost:
                        self._listener.link_lost(lost)
                    case SnapshotTaken() as snapshot:
                        self._listener.snapshot_taken(snapshot)
                    case Hello():
                        pass
        except (RemoteProtocolError, trio.BrokenResourceError) as error:
            log.warning("lost the engine: %s", error)

    def _forget_engine(self) -> None:
        self._hello = None
        self._frames = None
        self._statuses.clear()
        for waiting in self._waiting.values():
            waiting.over.set()


async def _cancel_at_end(process: trio.Process, scope: trio.CancelScope) -> None:
    await process.wait()
    scope.cancel()


async def _end(process: trio.Process) -> None:
    """SIGTERM, time to end, SIGKILL to whatever is left of the process and of those that it started."""
    if process.returncode is None:
        process.terminate()
        with trio.move_on_after(STOP_TIMEOUT_S):
            await process.wait()
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    await process.wait()
