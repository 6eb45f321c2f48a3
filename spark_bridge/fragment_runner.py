"""One fragment on this engine: its ports, its Structured Streaming query, its link log or sink.

Each micro-batch becomes one segment. What the segment promises (its watermark) is derived from what Spark has written
down about the batch before it ran, so that a replay promises the same:

- a *source* decides lateness: rows older than the watermark so far are dropped and counted here and nowhere else;
- a *stateless* fragment passes on the smallest watermark of its ports;
- a *stateful* one passes on Spark's own watermark for the batch, less what its operator may hold back.

Nothing flows before somebody wants it: a source begins to read, and a port to be filled, when the fragment's own log is
first asked for. So a query that is deployed fragment by fragment starts at its sink, all at once, and misses nothing.
"""

from __future__ import annotations

import json
import re
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
from py4j.protocol import Py4JError, Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.types import StructType

from sbon.engine_messages import Bounds, Connect, FragmentState, FragmentStatus, Instantiate
from sbon.errors import SbonError, StaleGenerationError, UnavailableError
from sbon.fragment import END_OF_STREAM_MS, FragmentKind, PortSpec, Start
from spark_bridge.arrivals import Arrivals
from spark_bridge.callbacks import close_idle
from spark_bridge.changing_folder import FolderSize, folder_bytes
from spark_bridge.durable import write_durably, write_when_there_is_room
from spark_bridge.folder_lock import FolderLock
from spark_bridge.fragment_input import FragmentInput, names_in_use
from spark_bridge.fragment_ports import FragmentPorts
from spark_bridge.link_log import LinkLog, LogFaultError
from spark_bridge.link_service import LinkService, Served
from spark_bridge.moved_state import own_its_paths
from spark_bridge.offset_log import BatchPlan, is_committed, planned_batch
from spark_bridge.outlet import Outlet
from spark_bridge.output_rhythm import OutputRhythm
from spark_bridge.relay import Relay
from spark_bridge.replay_source import REPLAY_FORMAT
from spark_bridge.sinks import SinkWriter, open_sink
from spark_bridge.snapshots import Snapshot
from spark_bridge.source_batch import read_source
from spark_bridge.state_stores import unload_state_stores
from spark_bridge.statistics import FragmentMeters
from spark_bridge.stopped_error import StoppedError

#: Formats that need to be told the schema; the others know their own, and are cast to what was declared.
_SCHEMA_FORMATS = frozenset({REPLAY_FORMAT, "csv", "json", "parquet", "orc", "text", "xml", "avro"})

# Spark gives the Python process of a source ten seconds to come up, which a busy host exceeds when many start at once:
# they start one after another, and one that was too slow is started again (it has not read anything yet).
_starting = threading.Lock()
_START_ATTEMPTS = 10
_SLOW_WORKER = "Python worker failed to connect back"
_INITIALIZING = "Initializing sources"
_WANTED_POLL_S = 0.2
_PORTS = "ports"
_RAISED = re.compile(r"[\w.]+(Error|Exception): \S")


@dataclass(frozen=True, slots=True)
class RunnerSettings:
    """``trigger_ms``: pause between micro-batches; ``log_bytes``: how far consumers may be behind."""

    trigger_ms: int = 500
    log_bytes: int = 64 * 1024 * 1024


class FragmentRunner:
    """Runs from construction (which takes the folder's lock and starts the query) until :meth:`stop`.

    Raises SbonError if the fragment cannot start here: a folder in use, a checkpoint of another fragment, SQL or a
    sink that Spark refuses.
    """

    def __init__(
        self,
        spark: SparkSession,
        command: Instantiate,
        settings: RunnerSettings,
        link_lost: Callable[[str, str, str], None],
        snapshot_taken: Callable[[Snapshot], None],
        report_soon: Callable[[], None],
        prepared: FragmentInput | None = None,
        own_links: LinkService | None = None,
    ) -> None:
        """``report_soon()`` is called after the first batch: somebody may be waiting for that. ``prepared``: what it
        reads, if that was made ready before. ``own_links``: of the engine that it runs on."""
        self.spec = command.spec
        self.generation = command.generation
        self.owner = command.owner
        self._spark = spark
        self._settings = settings
        self._link_lost = link_lost
        self._report_soon = report_soon
        self.folder = Path(command.folder)
        self.folder.mkdir(parents=True, exist_ok=True)
        self._checkpoint = self.folder / "checkpoint"
        #: Holds the number of the batch with which everything is read.
        self._ended = self.folder / "ended"
        self._stopping = threading.Event()
        self._no_more_batches = threading.Event()
        self._start_lock = threading.Lock()
        self._batch_lock = threading.Lock()
        self._error: str | None = None
        self._log_fault: str | None = None
        #: Why it waits in the middle of a batch, if it does.
        self._paused: str | None = None
        self._batch_id = -1
        self._state_size = FolderSize(self.state_bytes)
        pause_s = max(settings.trigger_ms, self.spec.output_interval_ms) / 1000.0
        self._arrivals = Arrivals(pause_s, for_rows=self.spec.sink is not None)
        self.meters = FragmentMeters(time.monotonic())
        self._query: StreamingQuery | None = None
        with ExitStack() as held:
            held.callback(FolderLock(spark, self.folder).release)
            self._check_folder()
            self._rhythm = OutputRhythm()
            self._log = LinkLog(
                self.folder / "log",
                self.spec.fragment_id,
                command.consumers,
                settings.log_bytes,
                self._rhythm.rows_left,
            )
            folder, wanted = self.folder / _PORTS, self._log.wanted
            self._ports = FragmentPorts(folder, self.spec, wanted, self._arrivals.tell, own_links)
            held.callback(self._ports.stop)
            self._outlet = Outlet(self.folder, self._log, self._ports.inboxes, snapshot_taken)
            held.callback(self._outlet.stop)
            self._outlet.bound(command.bounds)
            stream, self.output_schema = self._stream(command.port_schemas, prepared)
            self._sink = self._open_sink()
            if self._finished():
                pass  # nothing is left but to serve its log
            elif self.spec.kind is FragmentKind.SOURCE and not self._log.wanted.is_set():
                threading.Thread(target=self._start_when_wanted, args=(stream,), daemon=True).start()
            else:
                self._query = self._start(stream)
            #: What is let go of at the end, the lock last: who has it may change what is in the folder.
            self._held = held.pop_all()

    # -- commands ------------------------------------------------------------------------------------------------

    def connect(self, command: Connect) -> None:
        """Pull ``command.producer`` from where it runs now."""
        self._ports.connect(
            command,
            lambda reason: self._link_lost(command.port, command.producer, reason),
            lambda: self._outlet.read_for_good(command.port, command.producer),
        )

    def set_readers(self, consumers: tuple[str, ...]) -> dict[str, Start]:
        """From now on these are the cursors on the log; where each of them begins."""
        return self._log.set_readers(consumers)

    def feed_nothing(self) -> None:
        """Have all ports say something, which gives no rows, but a watermark that makes a difference."""
        self._ports.feed_nothing()

    def bound(self, bounds: Bounds) -> None:
        """From now on let out no more than that."""
        self._outlet.bound(bounds)

    def set_port(self, port: PortSpec) -> None:
        """From now on it is fed as that says."""
        self._ports.set(port)

    def await_output(self) -> None:
        """Return when it has just let rows out, if that is soon: then it is best stopped."""
        self._rhythm.wait_for_rows()

    def runs(self) -> bool:
        """False once it has failed or was stopped: it can only be started anew from its folder."""
        return self._state()[0] not in (FragmentState.FAILED, FragmentState.STOPPED)

    def raise_generation(self, generation: int, owner: str) -> None:
        """Run on under a newer generation; StaleGenerationError if it is older."""
        if generation < self.generation:
            raise StaleGenerationError(f"{self.spec.fragment_id} runs under generation {self.generation} here")
        self.generation, self.owner = generation, owner

    def stop(self) -> None:
        """Stop between two batches, let go of the folder; it then is all of the fragment's state."""
        self._stopping.set()
        self._log.wake()
        try:
            self._stop_query()
        finally:
            self._held.close()

    # -- what others ask -----------------------------------------------------------------------------------------

    def served(self) -> Served:
        """The link log, for consumers."""
        return Served(self._log, self.generation, self._stopping, self._outlet.is_open, self._fault)

    def relay(self, producer: str) -> Relay | None:
        """What comes from there, for other readers."""
        return self._ports.relay(producer)

    def _fault(self, error: str) -> None:
        """Its log cannot be served: it has failed, even if its query does not know it yet."""
        self._error = self._log_fault = error

    @property
    def newest_batch(self) -> int:
        """The newest batch in the link log, -1 if there is none: nothing later was ever let out."""
        return self._log.last.batch_id if self._log.last else -1

    def state_bytes(self) -> int:
        """What a move would carry: the folder as it is once this is stopped."""
        apart_from_inboxes = folder_bytes(self.folder) - folder_bytes(self.folder / _PORTS)
        return max(0, apart_from_inboxes) + self._ports.bytes_once_stopped()

    def status(self) -> FragmentStatus:
        """A snapshot for the daemon."""
        now, meters = time.monotonic(), self.meters
        bytes_in = self._ports.bytes_in()
        state, error = self._state()
        return FragmentStatus(
            fragment_id=self.spec.fragment_id,
            generation=self.generation,
            state=state,
            ports=self._ports.statuses(now),
            output_rate_bytes_per_s=meters.bytes_out.per_s(now),
            output_rate_rows_per_s=meters.rows_out.per_s(now),
            output_rows=int(meters.rows_out.total),
            stream_rows_per_s=meters.stream_rows.settled_per_s(now),
            cpu_cores=meters.processor_s.settled_per_s(now),
            late_rows=meters.late_rows,
            batch_id=self._batch_id,
            watermark_ms=self._log.last.watermark_ms if self._log.last else None,
            selectivity=meters.bytes_out.total / bytes_in if bytes_in else None,
            state_bytes=self._state_size.after(self._batch_id, now),
            error=error,
            waited_for_s=self._log.waited_for_s(),
        )

    def rest_if_finished(self) -> None:
        """Once everything is read and committed, end the query with its processes; the log is still served."""
        if self._query is not None and self._query.isActive and not self._stopping.is_set() and self._finished():
            self._stop_query()

    def _state(self) -> tuple[FragmentState, str | None]:
        if self._stopping.is_set():
            return FragmentState.STOPPED, None
        if self._log_fault is not None:
            return FragmentState.FAILED, self._log_fault
        if self._finished():
            return FragmentState.FINISHED, None
        if self._query is None:
            return (FragmentState.FAILED, self._error) if self._error else (FragmentState.STARTING, None)
        if not self._query.isActive:
            failure = self._query.exception()
            return FragmentState.FAILED, self._error or one_line(failure) or "the query ended by itself"
        return FragmentState.RUNNING, self._paused

    def _finished(self) -> bool:
        return self._ended.exists() and is_committed(self._checkpoint, int(self._ended.read_text()))

    # -- the query -----------------------------------------------------------------------------------------------

    def _check_folder(self) -> None:
        """A checkpoint opened with other SQL or other ports would give wrong rows without an error."""
        signature = self.folder / "signature"
        if not signature.exists():
            write_durably(signature, self.spec.signature().encode())
        elif signature.read_text() != self.spec.signature():
            raise SbonError(f"{self.folder} holds the state of another fragment than {self.spec.fragment_id}")
        elif self.spec.stateful:
            own_its_paths(self._checkpoint)

    def _stream(self, port_schemas: tuple[str, ...], prepared: FragmentInput | None) -> tuple[DataFrame, str]:
        """The query's input, and a description of the fragment's output (JSON)."""
        try:
            if self.spec.kind is FragmentKind.SOURCE:
                stream = self._source_stream()
                with names_in_use:
                    self._spark.createDataFrame([], stream.schema).createOrReplaceTempView("source")
                    return stream, self._described(self._spark.sql(self.spec.sql).schema)
            if prepared is None or not prepared.is_for(self.spec, port_schemas):
                prepared = FragmentInput(self._spark, self.spec, port_schemas)
            prepared.open(self._ports.inboxes, self._arrivals, self._checkpoint)
            return prepared.stream, self._described(prepared.stream.schema)
        except (PySparkException, Py4JError) as error:
            raise SbonError(f"Spark refuses {self.spec.fragment_id}: {one_line(error)}") from None

    def _open_sink(self) -> SinkWriter | None:
        if self.spec.sink is None:
            return None
        is_new = next((self._checkpoint / "offsets").glob("[0-9]*"), None) is None
        return open_sink(self.spec.sink, self.spec.query_id, is_new=is_new)

    def _described(self, schema: StructType) -> str:
        """What consumers must know of this fragment's output before they can read it."""
        return json.dumps({"schema": schema.jsonValue(), "event_time": self.spec.event_time})

    def _source_stream(self) -> DataFrame:
        declared = self.spec.stream
        assert declared is not None, "a source fragment carries its stream"
        options = dict(declared.options)
        if declared.format == REPLAY_FORMAT:
            options |= {"event_time": declared.event_time, "folder": str(self.folder / "replay")}
        reader = self._spark.readStream.format(declared.format).options(**options)
        wanted = self._spark.createDataFrame([], declared.schema).schema
        if declared.format in _SCHEMA_FORMATS:
            reader = reader.schema(wanted)
        return reader.load().select(
            [sf.col(f"`{field.name}`").cast(field.dataType).alias(field.name) for field in wanted.fields]
        )

    def _start_when_wanted(self, stream: DataFrame) -> None:
        while not self._log.wanted.wait(_WANTED_POLL_S):
            if self._stopping.is_set():
                return
        with self._start_lock:
            if self._stopping.is_set():
                return
            try:
                self._query = self._start(stream)
            except SbonError as error:
                self._error = one_line(error)

    def _start(self, stream: DataFrame) -> StreamingQuery:
        # Spark begins a batch as soon as there is input. Ports wait for it themselves; for what an external source has,
        # Spark looks every pollingDelay, and a batch of it ends when the next one may begin.
        writer = (
            stream.writeStream.queryName(self.spec.fragment_id)
            .foreachBatch(self._run_batch)
            .outputMode("append")
            .option("checkpointLocation", str(self._checkpoint))
        )
        self.meters = FragmentMeters(time.monotonic())
        try:
            for _ in range(_START_ATTEMPTS):
                with _starting:
                    query = writer.start()
                    _wait_for_sources(query)
                if query.isActive or _SLOW_WORKER not in str(query.exception()):
                    return query
        except (PySparkException, Py4JError) as error:
            raise SbonError(f"Spark refuses {self.spec.fragment_id}: {one_line(error)}") from None
        raise UnavailableError(f"{self.spec.fragment_id} cannot start: this host is too busy to start Python workers")

    def _stop_query(self) -> None:
        """Stop between two batches. Spark waits for a batch that has begun, so that batch must not wait for us."""
        self._no_more_batches.set()
        self._arrivals.stop()
        with self._start_lock, self._batch_lock:
            if self._query is not None:
                try:
                    if self.spec.stateful:
                        unload_state_stores(self._spark, self._query, self._checkpoint)
                finally:
                    self._query.stop()
                    close_idle(self._spark)

    # -- a micro-batch -------------------------------------------------------------------------------------------

    def _run_batch(self, rows: DataFrame, batch_id: int) -> None:
        # Batches come one at a time: whoever else holds the lock is about to stop the query.
        if not self._batch_lock.acquire(blocking=False):
            raise StoppedError
        try:
            if self._no_more_batches.is_set():
                raise StoppedError
            self._arrivals.batch_begins()
            self._log.wait_for_room(self._stopping)
            began_s = time.monotonic()
            plan = planned_batch(self._checkpoint, batch_id)
            ended = write_when_there_is_room(
                lambda: self._put_out(rows, batch_id, plan), self._note_full, self._no_more_batches.wait
            )
            if ended is None:
                raise StoppedError
            if ended and not self._ended.exists():
                write_durably(self._ended, str(batch_id).encode())
            is_first, self._batch_id = self._batch_id < 0, batch_id
            self._outlet.batch_ended(batch_id)
            self.meters.busy_s += time.monotonic() - began_s
            if is_first:
                self._report_soon()
            if not self.spec.ports and not ended:
                self._arrivals.rest()
        except (LogFaultError, SbonError, OSError) as error:
            self._error = one_line(error)
            raise
        finally:
            self._batch_lock.release()

    def _note_full(self, why: str | None) -> None:
        self._paused = why

    def _put_out(self, rows: DataFrame, batch_id: int, plan: BatchPlan) -> bool:
        """Write the batch to the sink or the log; True if it is the last one."""
        if self._sink is not None:
            written = self._sink.write(rows, batch_id)
            self.meters.rows_out.add(written, time.monotonic())
            if written:
                self._rows_come()
                self._rhythm.rows_left()
            return self._ports.watermark_ms(plan.port_ends()) == END_OF_STREAM_MS
        if self.spec.kind is FragmentKind.SOURCE:
            table, watermark_ms = self._source_batch(rows, batch_id, plan)
        else:
            table = rows.toArrow()
            watermark_ms = self._lagged(
                plan.watermark_ms if self.spec.stateful else self._ports.watermark_ms(plan.port_ends())
            )
        if table.num_rows:
            self._rows_come()
        ended = watermark_ms == END_OF_STREAM_MS
        before_bytes, before_rows = self._log.totals
        self._log.append(
            self.generation,
            batch_id,
            table,
            event_time=self.spec.event_time,
            watermark_ms=watermark_ms,
            end_of_stream=ended,
        )
        now = time.monotonic()
        self.meters.bytes_out.add(self._log.totals[0] - before_bytes, now)
        self.meters.rows_out.add(self._log.totals[1] - before_rows, now)
        return ended

    def _rows_come(self) -> None:
        if self._rhythm.rows_come():
            self._arrivals.hold()

    def _source_batch(self, rows: DataFrame, batch_id: int, plan: BatchPlan) -> tuple[pa.Table, int | None]:
        """Drop and count what is late, apply the pushed-down SQL to the rest, advance the watermark."""
        declared = self.spec.stream
        assert declared is not None, "a source fragment carries its stream"
        before = self._log.header(batch_id - 1)
        watermark_ms = before.watermark_ms if before else None
        read = read_source(rows, declared.event_time, watermark_ms, self.spec.sql)
        self.meters.late_rows += read.late_rows
        self.meters.stream_rows.add(read.rows, time.monotonic())
        if plan.sources_ended():
            return read.table, END_OF_STREAM_MS
        if read.newest_us is None:
            return read.table, watermark_ms
        advanced_ms = read.newest_us // 1000 - round(declared.watermark_delay_s * 1000)
        return read.table, advanced_ms if watermark_ms is None else max(watermark_ms, advanced_ms)

    def _lagged(self, watermark_ms: int | None) -> int | None:
        """What the output promises, given the input's watermark; never less than was promised before."""
        if watermark_ms is None:
            return self._log.last.watermark_ms if self._log.last else None
        if watermark_ms >= END_OF_STREAM_MS:
            return END_OF_STREAM_MS
        if self.spec.watermark_steps is not None:
            # Windows that end at Spark's watermark are closed: the next ones end a step later.
            watermark_ms = self.spec.watermark_steps.next_ms(watermark_ms - 1)
        return watermark_ms - self.spec.watermark_lag_ms


def _wait_for_sources(query: StreamingQuery) -> None:
    """Until the sources of ``query`` are up, or it has failed."""
    while query.isActive and query.status["message"] == _INITIALIZING:
        time.sleep(0.05)


def one_line(error: BaseException | None) -> str:
    """An error in one line: the first of its text, or what a Python traceback in it ends with."""
    if isinstance(error, Py4JJavaError):
        return str(error.java_exception.toString()).splitlines()[0]
    lines = str(error).strip().splitlines() if error is not None else []
    if raised := [line for line in lines if _RAISED.match(line)]:  # what a Python process of Spark's ended with
        return raised[-1].split(": ", 1)[1]
    return lines[0] if lines else type(error).__name__ if error is not None else ""
