"""Spark's state stores under a fragment: what they cost at rest, and how long it takes to start with state.

    python -m tests.benchmarks.state_store [--stores rocksdb heap] [--state-mb 1 100] [--restarts 5] [--json]

One engine runs a join that keeps ``--state-mb`` of rows of 1,000 bytes and puts out a row for each of a trickle, five a
second. At rest its share of a core and the engine's memory are measured. Then it is stopped and started again from its
folder: that is a move without a network.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import sys
import tempfile
import time
from pathlib import Path

from sbon.engine_messages import Instantiate, Migrate, cursor_name
from sbon.fragment import FragmentKind, FragmentSpec, PortSpec
from tests.benchmarks.links.processes import cost_of_tree
from tests.benchmarks.links.workload import sink, source
from tests.benchmarks.migration.workload import HEAP_STORE, JOIN, STATE_ROW_BYTES, streams
from tests.spark_bridge.driven_engine import DrivenEngine, connect, deploy

#: Settings of the engine's.
STORES: dict[str, dict[str, str]] = {"rocksdb": {}, "heap": HEAP_STORE}
REST_S = 15.0


def plan(folder: Path, state_bytes: int) -> tuple[FragmentSpec, ...]:
    lefts, rights = (source(stream) for stream in streams(folder, "join", state_bytes))
    ports = (PortSpec("in0", (lefts.fragment_id,)), PortSpec("in1", (rights.fragment_id,)))
    join = FragmentSpec(
        "q-join", "q", FragmentKind.JOIN, JOIN.format(lefts="in0", rights="in1"), ports, event_time="ts", stateful=True
    )
    return lefts, rights, join, sink(join.fragment_id, "q", folder / "out")


def measure(folder: Path, store: str, state_mb: float, restarts: int, more: list[str]) -> dict[str, object]:
    fragments = plan(folder, int(state_mb * 1e6))
    join = fragments[2]
    settings = [f"--conf={key}={value}" for key, value in STORES[store].items()]
    with DrivenEngine(folder / "engine", more=[*settings, *more]) as engine:
        began_s = time.monotonic()
        deploy(fragments, dict.fromkeys((spec.fragment_id for spec in fragments), engine))
        rows = int(state_mb * 1e6 / STATE_ROW_BYTES)

        def loaded() -> bool:
            status = engine.statuses.get(join.fragment_id)
            return status is not None and any(port.port == "in1" and port.rows >= rows for port in status.ports)

        engine.wait_until(loaded, "the state has come")
        batch = engine.statuses[join.fragment_id].batch_id
        engine.wait_until(lambda: engine.statuses[join.fragment_id].batch_id > batch + 3, "it is kept")
        load_s = time.monotonic() - began_s
        time.sleep(REST_S)
        rest = cost_of_tree(engine.process.pid, REST_S)
        cores = engine.statuses[join.fragment_id].cpu_cores
        timed = [restart(engine, fragments) for _ in range(restarts)]
        state_bytes = engine.statuses[join.fragment_id].state_bytes

    return {
        "store": store,
        "state_mb": state_mb,
        "folder_mb": round(state_bytes / 1e6, 1),
        "load_s": round(load_s, 1),
        "engine_memory_mb": round(rest.memory_bytes / 1e6),
        "engine_core_share": round(rest.core_share, 3),
        "join_core_share": round(cores or 0.0, 3),
        "restart_s": {
            step: round(statistics.median(each[step] for each in timed), 2) for step in ("stop", "start", "first batch")
        },
        "restart_total_s": [round(sum(each.values()), 2) for each in timed],
    }


def restart(engine: DrivenEngine, fragments: tuple[FragmentSpec, ...]) -> dict[str, float]:
    lefts, rights, join, out = fragments
    schemas = tuple(
        engine.start(spec, consumers=(cursor_name(join.fragment_id, port.name),)).output_schema or ""
        for spec, port in zip((lefts, rights), join.ports, strict=True)
    )
    time.sleep(3.0)
    folder = str(engine.fragment_folder(join))
    times_s = [time.monotonic()]
    engine.do(Migrate(join.fragment_id, 1, "test"))
    times_s.append(time.monotonic())
    del engine.statuses[join.fragment_id]
    consumers = (cursor_name(out.fragment_id, "in0"),)
    engine.do(Instantiate(join.fragment_id, 1, "test", join, folder, schemas, consumers))
    times_s.append(time.monotonic())
    for port, producer in zip(join.ports, (lefts, rights), strict=True):
        connect(engine, join, port.name, producer.fragment_id, engine)

    def runs() -> bool:
        status = engine.statuses.get(join.fragment_id)
        return status is not None and status.batch_id >= 0

    engine.wait_until(runs, "the first batch")
    times_s.append(time.monotonic())
    stop, start, first = (later - earlier for earlier, later in itertools.pairwise(times_s))
    return {"stop": stop, "start": start, "first batch": first}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.state_store", description=__doc__.splitlines()[0])
    parser.add_argument("--stores", nargs="+", choices=STORES, default=list(STORES))
    parser.add_argument("--state-mb", nargs="+", type=float, default=[1.0, 100.0])
    parser.add_argument("--restarts", type=int, default=5)
    parser.add_argument("--conf", action="append", default=[], metavar="KEY=VALUE", help="a setting of Spark's")
    parser.add_argument("--json", action="store_true", help="print one line for each")
    arguments = parser.parse_args()
    more = [word for setting in arguments.conf for word in ("--conf", setting)]
    for state_mb in arguments.state_mb:
        for store in arguments.stores:
            with tempfile.TemporaryDirectory(prefix="sbon-state-") as folder:
                report = measure(Path(folder), store, state_mb, arguments.restarts, more)
            print(json.dumps(report, indent=None if arguments.json else 2), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
