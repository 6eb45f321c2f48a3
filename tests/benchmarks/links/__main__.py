"""What links cost, each figure beside the same query in one plain Spark process, measured one after the other.

    python -m tests.benchmarks.links [--only throughput,latency,idle] [--json]

*Throughput*: rows of 100 bytes read from files, filtered, written to Parquet: by a source and a sink fragment with one
link between them. *Latency*: from when a row happens until it is in a file, a row a second or so, over one link and
over two. *Idle*: memory (proportional set size) and processor of all processes, two queries of five fragments each that
have nothing to do.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import msgspec
import pyarrow as pa
from pyarrow import parquet

from sbon.fragment import FragmentSpec
from sbon.streams import StreamSpec
from tests.benchmarks.links.processes import Cost, cost_of_tree, processor_of_tree_s
from tests.benchmarks.links.workload import (
    CHAIN_SQL,
    ROW_BYTES,
    STATE_SQL,
    PlainJob,
    chain,
    files_stream,
    stateful,
    trickle_stream,
)
from tests.spark_bridge.driven_engine import DrivenEngine, deploy

PARTS = ("throughput", "latency", "idle")
#: No multiple of the pauses that the engine makes, so that rows come at any phase of them.
GAP = timedelta(milliseconds=1310)
#: Rows that are not counted: the first batches run code that is not compiled yet.
WARM_UP_ROWS = 12
#: As a daemon starts it: with both compilers of Java's.
ENGINE_OPTIONS = ("--conf", "spark.driver.extraJavaOptions=")
_POLL_S = 0.2
_PATIENCE_S = 600.0


@contextmanager
def plain_spark(folder: Path, streams: tuple[StreamSpec, ...], queries: dict[str, str]) -> Iterator[int]:
    """A plain Spark process; its id."""
    folder.mkdir(parents=True)
    job = folder / "job.json"
    job.write_bytes(msgspec.json.encode(PlainJob(str(folder), streams, queries)))
    command = [sys.executable, "-m", "tests.benchmarks.links.plain", str(job)]
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
    try:
        yield process.pid
    finally:
        process.terminate()
        process.wait(60)


@contextmanager
def cut_in_fragments(folder: Path, fragments: tuple[FragmentSpec, ...], trigger_ms: int) -> Iterator[int]:
    """An engine with all of ``fragments``; its process id."""
    with DrivenEngine(folder, trigger_ms=trigger_ms, more=ENGINE_OPTIONS) as engine:
        deploy(fragments, dict.fromkeys((spec.fragment_id for spec in fragments), engine))
        yield engine.process.pid


def written(out: Path) -> list[tuple[float, list[int]]]:
    """Files of results: when each was complete (s since the epoch), and the numbers of its rows."""
    found = []
    for path in out.glob("[!._]*.parquet"):
        numbers = parquet.read_table(path, columns=["v"])["v"].to_pylist()
        found.append((path.stat().st_mtime, numbers))
    return sorted(found)


def complete_rows(path: Path) -> int:
    """0 while the file is being written: plain Spark does that under its last name."""
    with suppress(pa.ArrowInvalid):
        return int(parquet.read_metadata(path).num_rows)
    return 0


def wait_for(out: Path, rows: int) -> list[tuple[float, list[int]]]:
    """Until that many rows are written. TimeoutError, with what there is, if they do not come."""
    deadline = time.monotonic() + _PATIENCE_S
    while True:
        count = sum(complete_rows(path) for path in out.glob("[!._]*.parquet"))
        if count >= rows:
            return written(out)
        if time.monotonic() > deadline:
            raise TimeoutError(f"{count} of {rows} rows are in {out}")
        time.sleep(_POLL_S)


@dataclass(frozen=True, slots=True)
class Throughput:
    """``per_processor_s``: rows per second that any processor spent on them; that of a busy machine says as much."""

    rows_per_s: float
    rows_per_processor_s: float

    def report(self) -> dict[str, float]:
        return {
            "rows_per_s": round(self.rows_per_s),
            "MB_per_s": round(self.rows_per_s * ROW_BYTES / 1e6, 1),
            "rows_per_processor_s": round(self.rows_per_processor_s),
        }


def measure_throughput(pid: int, out: Path, rows: int) -> Throughput:
    """From the end of the first third on: until then code is compiled."""
    began = wait_for(out, rows // 3)
    before_s = processor_of_tree_s(pid)
    ended = wait_for(out, rows)
    spent_s = processor_of_tree_s(pid) - before_s
    count = sum(len(numbers) for _, numbers in ended[len(began) :])
    return Throughput(count / (ended[-1][0] - began[-1][0]), count / spent_s)


def throughput(folder: Path, files: int, rows_per_file: int, trigger_ms: int) -> dict[str, object]:
    stream = files_stream(folder / "events", files, rows_per_file)
    rows = files * rows_per_file
    with plain_spark(folder / "plain", (stream,), {str(folder / "plain-out"): CHAIN_SQL}) as pid:
        plain = measure_throughput(pid, folder / "plain-out", rows)
    with cut_in_fragments(folder / "engine", chain(stream, 1, folder / "out"), trigger_ms) as pid:
        link = measure_throughput(pid, folder / "out", rows)
    return {
        "plain": plain.report(),
        "link": link.report(),
        "ratio": round(link.rows_per_s / plain.rows_per_s, 3),
        "ratio_per_processor_s": round(link.rows_per_processor_s / plain.rows_per_processor_s, 3),
    }


def latencies_ms(files: list[tuple[float, list[int]]], replay: Path) -> list[float]:
    """Of each row, from when it was due by the clock of its replay until it was in a file."""
    anchor_s = float((replay / "started_at").read_text())
    return [
        (at_s - anchor_s - number * GAP.total_seconds()) * 1000.0
        for at_s, numbers in files
        for number in numbers
        if number >= WARM_UP_ROWS
    ]


def latency(folder: Path, count: int, trigger_ms: int) -> dict[str, object]:
    folder.mkdir()
    rows = count + WARM_UP_ROWS
    stream = trickle_stream("events", folder / "events.parquet", rows, GAP)
    found = {}
    with plain_spark(folder / "plain", (stream,), {str(folder / "plain-out"): CHAIN_SQL}):
        found["plain"] = latencies_ms(wait_for(folder / "plain-out", rows), folder / "plain" / "replay" / "events")
    for links in (1, 2):
        name = f"{links} link{'s' * (links > 1)}"
        engine, out = folder / f"engine{links}", folder / f"out{links}"
        with cut_in_fragments(engine, chain(stream, links, out), trigger_ms):
            found[name] = latencies_ms(wait_for(out, rows), engine / "fragments" / "q-events" / "replay")
    medians = {name: statistics.median(values) for name, values in found.items()}
    report: dict[str, object] = {
        name: {"median_ms": round(medians[name]), "p95_ms": round(statistics.quantiles(values, n=20)[-1])}
        for name, values in found.items()
    }
    added_ms = {"first link": medians["1 link"] - medians["plain"], "next link": medians["2 links"] - medians["1 link"]}
    return report | {
        "added_ms": {name: round(value) for name, value in added_ms.items()},
        "ratio": round(medians["1 link"] / medians["plain"], 2),
    }


def idle(folder: Path, settle_s: float, seconds: float, trigger_ms: int) -> dict[str, object]:
    folder.mkdir()
    streams = tuple(trickle_stream(name, folder / f"{name}.parquet", 5, GAP) for name in ("lefts", "rights"))
    assert len(streams) == 2
    costs: dict[str, Cost] = {}
    with plain_spark(folder / "plain", streams, {str(folder / f"plain-out{n}"): STATE_SQL for n in range(2)}) as pid:
        time.sleep(settle_s)
        costs["plain"] = cost_of_tree(pid, seconds)
    fragments = tuple(spec for n in range(2) for spec in stateful(streams, f"q{n}", folder / f"out{n}"))
    with cut_in_fragments(folder / "engine", fragments, trigger_ms) as pid:
        time.sleep(settle_s)
        costs["fragments"] = cost_of_tree(pid, seconds)
    report: dict[str, object] = {
        name: {
            "processes": cost.processes,
            "memory_MB": round(cost.memory_bytes / 1e6),
            "core_percent": round(100.0 * cost.core_share, 1),
        }
        for name, cost in costs.items()
    }
    return report | {
        "count": len(fragments),
        "ratio": {
            "memory": round(costs["fragments"].memory_bytes / costs["plain"].memory_bytes, 2),
            "core": round(costs["fragments"].core_share / costs["plain"].core_share, 2),
        },
    }


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.links", description=__doc__.splitlines()[0])
    parser.add_argument("--only", default=",".join(PARTS), help=f"some of {', '.join(PARTS)}")
    parser.add_argument("--files", type=int, default=45, help="micro-batches of the throughput")
    parser.add_argument("--rows-per-file", type=int, default=40_000)
    parser.add_argument("--latency-rows", type=int, default=25)
    parser.add_argument("--settle-s", type=float, default=40.0, help="before an idle process is measured")
    parser.add_argument("--idle-s", type=float, default=20.0)
    parser.add_argument("--trigger-ms", type=int, default=500, help="of the engine; 500 is what a daemon sets")
    parser.add_argument("--json", action="store_true", help="print one line of JSON")
    arguments = parser.parse_args()
    parts: dict[str, Callable[[Path], dict[str, object]]] = {
        "throughput": lambda folder: throughput(folder, arguments.files, arguments.rows_per_file, arguments.trigger_ms),
        "latency": lambda folder: latency(folder, arguments.latency_rows, arguments.trigger_ms),
        "idle": lambda folder: idle(folder, arguments.settle_s, arguments.idle_s, arguments.trigger_ms),
    }
    report = {}
    with tempfile.TemporaryDirectory(prefix="sbon-links-") as scratch:
        for name in arguments.only.split(","):
            report[name] = parts[name](Path(scratch) / name)
            if not arguments.json:
                print(f"{name}: {json.dumps(report[name])}", flush=True)
    if arguments.json:
        print(json.dumps(report))
    return 0


if __name__ == "__main__":
    sys.exit(main())
