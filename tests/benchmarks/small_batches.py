"""What a small batch of a join or an aggregate costs, as engines run it and as Spark would by itself.

    python -m tests.benchmarks.small_batches [--kinds join aggregate] [--feeds 60] [--json]

Two Spark processes with an engine's settings run the same fragment, and are fed in turns, so that both have the same
machine: five rows, of which two batches come, as the second one has nothing but the new watermark. ``light``: as
engines do it, interpreted, with the rows in the plan, and Hadoop's settings made light. ``own``: without these. Of the
second half of the feeds: the time of a batch, and the processor time of the process, both in ms.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from unittest import mock

import pyarrow as pa

from sbon.engine_messages import Instantiate
from sbon.fragment import FragmentKind, FragmentSpec, PortSpec
from spark_bridge import local_files, session, small_batches
from spark_bridge.fragment_runner import FragmentRunner, RunnerSettings
from spark_bridge.port_inbox import Segment
from spark_bridge.segment import decode_segment, encode_segment
from tests.benchmarks.links.processes import processor_of_tree_s
from tests.benchmarks.links.workload import SCHEMA, START
from tests.benchmarks.migration.workload import QUERIES, STATE_ROW_BYTES

WAYS = ("light", "own")
_BATCHES = 2
_ROWS = 5
_STATE_ROWS = 1000
_POLL_S = 0.002
_REST_S = 0.1
_PATIENCE_S = 20.0
_START_MS = round(START.timestamp() * 1000.0)
_DAY_MS = 86_400_000
_NEVER_MS = _START_MS + 1000 * _DAY_MS


def segment(producer: str, batch_id: int, from_ms: int, rows: int, text_bytes: int, watermark_ms: int) -> Segment:
    table = pa.table(
        {
            "ts": pa.array([(from_ms + number) * 1000 for number in range(rows)]).cast(pa.timestamp("us", "UTC")),
            "v": pa.array(range(rows), pa.int64()),
            "text": pa.array(["x" * text_bytes] * rows),
        }
    )
    _, whole = encode_segment(
        producer, 1, batch_id, table, event_time="ts", watermark_ms=watermark_ms, end_of_stream=False
    )
    header, body = decode_segment(whole)
    return Segment(producer, 1, batch_id, rows, watermark_ms, body, header.newest_ms)


class Fragment:
    """Of ``kind``, in this process, until :meth:`stop`."""

    def __init__(self, folder: Path, kind: str) -> None:
        self._spark = session.start_session("small-batches", folder / "scratch", settings=local_files.SETTINGS)
        local_files.use_plain_files(self._spark)
        schema = self._spark.createDataFrame([], SCHEMA).schema
        described = json.dumps({"schema": schema.jsonValue(), "event_time": "ts"})
        ports = (PortSpec("in0", ("q-lefts",)), PortSpec("in1", ("q-rights",)))
        sql = QUERIES[kind].format(lefts="in0", rights="in1")
        # What comes out is as late as a join's rows may be.
        spec = FragmentSpec(f"q-{kind}", "q", FragmentKind(kind), sql, ports, None, 2 * _DAY_MS, stateful=True)
        start = Instantiate(spec.fragment_id, 1, "benchmark", spec, str(folder / "fragment"), (described, described))
        self._runner = FragmentRunner(
            self._spark, start, RunnerSettings(0), lambda *_: None, lambda _: None, lambda: None
        )
        # All there at once, and kept.
        kept_ms = _START_MS if kind == "join" else _START_MS + _DAY_MS
        rights = segment("q-rights", 0, kept_ms, _STATE_ROWS, STATE_ROW_BYTES, _NEVER_MS)
        self._runner._ports.inboxes["in1"].append(rights)
        self._fed = 0

    def feed(self) -> tuple[float, float]:
        """Some rows: how long each of their batches took, and the processor time that it took, in ms."""
        due, from_ms = self._runner.newest_batch + _BATCHES, _START_MS + 1000 * self._fed
        lefts = segment("q-lefts", self._fed, from_ms, _ROWS, 0, from_ms + 1000)
        pid = os.getpid()
        before_s, began_s = processor_of_tree_s(pid), time.monotonic()
        self._runner._ports.inboxes["in0"].append(lefts)
        self._runner._arrivals.tell(1)
        while self._runner.newest_batch < due:
            # Whether it runs is a question to Java: not to be asked all the time.
            if time.monotonic() - began_s > _PATIENCE_S and not self._runner.runs():
                raise RuntimeError(self._runner.status().error)
            time.sleep(_POLL_S)
        took_s = time.monotonic() - began_s
        time.sleep(_REST_S)  # what it leaves to other threads is part of it
        self._fed += 1
        return 1000.0 * took_s / _BATCHES, 1000.0 * (processor_of_tree_s(pid) - before_s) / _BATCHES

    def stop(self) -> None:
        self._runner.stop()
        self._spark.stop()


def run_one(folder: Path, kind: str, way: str) -> None:
    """Feed it as often as a line comes, and say what that took."""
    with ExitStack() as stack:
        if way == "own":
            stack.enter_context(mock.patch.object(small_batches, "SMALL_BYTES", 0))
            stack.enter_context(mock.patch.object(session, "make_settings_light"))
        fragment = Fragment(folder, kind)
        for _ in sys.stdin:
            print(json.dumps(fragment.feed()), flush=True)
        fragment.stop()


def compare(kind: str, feeds: int) -> dict[str, object]:
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="sbon-small-")))
        processes = {way: stack.enter_context(_process(folder / way, kind, way)) for way in WAYS}
        taken: dict[str, list[tuple[float, float]]] = {way: [] for way in WAYS}
        for number in range(feeds):
            for way, process in processes.items():
                assert process.stdin is not None
                assert process.stdout is not None
                process.stdin.write("\n")
                process.stdin.flush()
                answer = process.stdout.readline()
                if not answer:
                    raise RuntimeError(f"{way}: see what it said above")
                taken[way].append(json.loads(answer))
            print(f"\r{kind}: {number + 1} of {feeds}", end="", file=sys.stderr, flush=True)
        print(file=sys.stderr)
    report: dict[str, object] = {"kind": kind}
    for index, figure in enumerate(("batch_ms", "processor_ms")):
        values = {way: statistics.median(one[index] for one in taken[way][feeds // 2 :]) for way in WAYS}
        report[figure] = {way: round(value) for way, value in values.items()} | {
            "ratio": round(values["light"] / values["own"], 2)
        }
    return report


def _process(folder: Path, kind: str, way: str) -> subprocess.Popen[str]:
    folder.mkdir()
    command = [sys.executable, "-m", "tests.benchmarks.small_batches", "--one", str(folder), way, "--kinds", kind]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.benchmarks.small_batches", description=__doc__.splitlines()[0]
    )
    parser.add_argument("--kinds", nargs="+", choices=QUERIES, default=list(QUERIES))
    parser.add_argument("--feeds", type=int, default=60)
    parser.add_argument("--json", action="store_true", help="print one line for each")
    parser.add_argument("--one", nargs=2, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.one:
        run_one(Path(arguments.one[0]), arguments.kinds[0], arguments.one[1])
        return 0
    for kind in arguments.kinds:
        print(json.dumps(compare(kind, arguments.feeds), indent=None if arguments.json else 2), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
