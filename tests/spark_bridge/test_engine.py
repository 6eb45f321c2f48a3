"""Real engines: a plan cut into fragments gives what it gives uncut, also when it is moved and killed on the way."""

from __future__ import annotations

import re
import shutil
import signal
from collections import defaultdict
from datetime import UTC, datetime, timedelta
from pathlib import Path

import msgspec
import pytest
from pyarrow import flight, parquet

from sbon.engine_messages import Destroy, FragmentState, Instantiate, Migrate, Rehearse, cursor_name
from sbon.fragment import FragmentKind, FragmentSpec, PortSpec
from sbon.row_multiset import difference
from sbon.streams import SinkSpec, StreamSpec
from spark_bridge.flight_links import connect as links_to
from spark_bridge.link_service import PullRequest
from spark_bridge.port_inbox import PortInbox
from tests.spark_bridge.driven_engine import DrivenEngine, connect, deploy
from tests.spark_bridge.trace_check import TraceCheck, read_traces

pytestmark = pytest.mark.spark

#: What these engines do is what the simulator's model of an engine does.
TRACED = "tests.spark_bridge.traced_engine"
SNAPSHOTS = "spark.sql.streaming.stateStore.minDeltasForSnapshot"
START = datetime(2013, 7, 1, tzinfo=UTC)
HOURS = 24
SKEW = timedelta(hours=3)  # site b runs ahead of site a by this much event time
#: Nothing later happens before the join has moved, however long that takes.
HELD_AT = START + timedelta(hours=8)
#: Nor does a end before the join was killed; all of b is earlier, and is read by then.
A_HELD_AT = START + timedelta(hours=23, minutes=30)
SPEEDUP = HOURS * 3600 / 30


def readings() -> list[tuple[datetime, str, int]]:
    return [(START + timedelta(minutes=5 * n), "xyz"[n % 3], n) for n in range(HOURS * 12)]


def rules() -> list[tuple[datetime, str, int]]:
    return [(START + timedelta(hours=n), key, n * 10) for n in range(HOURS) for key in "xy"]


def write_csv(path: Path, rows: list[tuple[datetime, str, int]]) -> None:
    lines = [f"{time:%Y-%m-%dT%H:%M:%SZ},{key},{value}" for time, key, value in rows]
    path.write_text("\n".join(["ts,k,v", *lines]) + "\n")


def expected() -> list[tuple[object, ...]]:
    """The join and the window by hand."""
    groups: dict[tuple[datetime, str], list[tuple[int, int]]] = defaultdict(list)
    for time, key, value in readings():
        for hour, other, rule in rules():
            if key == other and hour <= time <= hour + timedelta(minutes=59):
                window = START + timedelta(hours=2 * ((time - START) // timedelta(hours=2)))
                groups[window, key].append((value, rule))
    return [
        (window, key, len(pairs), sum(v for v, _ in pairs) / len(pairs), max(r for _, r in pairs))
        for (window, key), pairs in groups.items()
    ]


def source(folder: Path, name: str, **options: str) -> FragmentSpec:
    held = {"hold_at": HELD_AT.isoformat(), "hold_until": str(folder / "released")}
    options = {"path": str(folder / f"{name}.csv"), "speedup": str(SPEEDUP), **held, **options}
    stream = StreamSpec(name, "replay", "ts timestamp, k string, v bigint", "ts", options)
    sql = f"SELECT ts AS {name}__ts, k AS {name}__k, v AS {name}__v FROM source WHERE v >= 0"
    return FragmentSpec(f"q-{name}", "q", FragmentKind.SOURCE, sql, event_time=f"{name}__ts", stream=stream)


def plan(folder: Path) -> tuple[FragmentSpec, ...]:
    # b's events are due three hours of event time before a's: a starts that much later.
    held = {"hold_at": A_HELD_AT.isoformat(), "hold_until": str(folder / "killed")}
    a = source(folder, "a", start_delay_s=str(SKEW.total_seconds() / SPEEDUP), **held)
    b = source(folder, "b")
    join = FragmentSpec(
        "q-join1",
        "q",
        FragmentKind.JOIN,
        "SELECT in0.a__ts AS ts, in0.a__k AS k, in0.a__v AS v, in1.b__v AS rule FROM in0 JOIN in1 "
        "ON in0.a__k = in1.b__k AND in0.a__ts BETWEEN in1.b__ts AND in1.b__ts + INTERVAL 59 MINUTES",
        (PortSpec("in0", (a.fragment_id,)), PortSpec("in1", (b.fragment_id,))),
        event_time="ts",
        stateful=True,
    )
    aggregate = FragmentSpec(
        "q-aggregate1",
        "q",
        FragmentKind.AGGREGATE,
        "SELECT window.start AS start, k, count(*) AS n, avg(v) AS mean, max(rule) AS rule FROM in0 "
        "GROUP BY window(ts, '2 hours'), k",
        (PortSpec("in0", ("q-join1",)),),
        event_time="start",
        watermark_lag_ms=2 * 3600 * 1000,
        stateful=True,
    )
    sink = FragmentSpec(
        "q-sink1",
        "q",
        FragmentKind.SINK,
        "SELECT * FROM in0",
        (PortSpec("in0", ("q-aggregate1",)),),
        sink=SinkSpec("out", "parquet", {"path": str(folder / "out")}),
    )
    return a, b, join, aggregate, sink


def results(folder: Path) -> list[tuple[object, ...]]:
    return [tuple(row.values()) for row in parquet.read_table(folder / "out").to_pylist()]


def test_skewed_sites_a_move_and_a_kill_change_nothing(tmp_path: Path) -> None:
    write_csv(tmp_path / "a.csv", readings())
    write_csv(tmp_path / "b.csv", rules())
    a, b, join, aggregate, sink = fragments = plan(tmp_path)
    # So that a snapshot of the join's state is always due when it is stopped.
    with DrivenEngine(tmp_path / "first", module=TRACED, more=("--conf", f"{SNAPSHOTS}=1")) as first:
        with DrivenEngine(tmp_path / "second", module=TRACED) as second:
            deploy(fragments, dict.fromkeys((spec.fragment_id for spec in fragments), first))
            first.wait_until(lambda: first.output_rows(join.fragment_id) > 20, "the join puts out rows")

            # A replica's rehearsal tells nothing about the fragment itself: it can be moved all the same.
            described = _describe(first, (a, b))
            first.do(Rehearse(join.fragment_id, 9, "first", join, str(tmp_path / "rehearsal"), described))

            # Move the join: stop, carry its folder over, start it there under the next generation, point its consumer.
            first.do(Migrate(join.fragment_id, 2, "first"))
            shutil.copytree(first.fragment_folder(join), second.fragment_folder(join))
            first.do(Destroy(join.fragment_id, 2, "first", str(first.fragment_folder(join))))
            assert not first.fragment_folder(join).exists()
            stale = first.call(Migrate(join.fragment_id, 1, "test"))
            assert stale.stale, "a command under an old generation must be refused"
            assert first.hello is not None

            # It is rehearsed on a copy of its state, whose files are the state's own.
            state = tmp_path / "state.rehearsal"
            shutil.copytree(second.fragment_folder(join), state)
            rehearsal = str(tmp_path / "rehearsal")
            second.do(Rehearse(join.fragment_id, 2, "second", join, rehearsal, described, str(state)))
            assert not state.exists()
            told = re.search(r"rehearsed q-join1 on its state: (.*) s", second.log.read_text())
            assert told is not None, second.log.read_text()
            assert len(told[1].split(", ")) == 2, told

            second.start(join, 2, port_schemas=described, consumers=(cursor_name(aggregate.fragment_id, "in0"),))
            connect(second, join, "in0", a.fragment_id, first, generation=2)
            connect(second, join, "in1", b.fragment_id, first, generation=2)
            connect(first, aggregate, "in0", join.fragment_id, second, producer_generation=2)
            (tmp_path / "released").touch()
            rows = second.output_rows(join.fragment_id)
            second.wait_until(lambda: second.output_rows(join.fragment_id) > rows + 20, "the join goes on where it was")
            assert _relayed(second, a.fragment_id) == [], "it would relay what comes next, and knows of nothing yet"
            with pytest.raises(flight.FlightUnavailableError, match="is not read here"):
                _relayed(first, join.fragment_id + "0")
            # Spark forgets how far each input had come: of one that has ended it is told again.
            first.wait_for_state(b.fragment_id, FragmentState.FINISHED)
            of_b = PortInbox(second.fragment_folder(join) / "ports" / "in1.sqlite", (b.fragment_id,))
            last_of_b = first.statuses[b.fragment_id].batch_id
            second.wait_until(
                lambda: of_b.read_for_good().get(b.fragment_id) == last_of_b, "the join has read all of b"
            )
            second.process.send_signal(signal.SIGKILL)
            second.process.wait()
            (tmp_path / "killed").touch()
        with DrivenEngine(tmp_path / "second", module=TRACED) as second:
            second.start(join, 2, port_schemas=described, consumers=(cursor_name(aggregate.fragment_id, "in0"),))
            connect(second, join, "in0", a.fragment_id, first, generation=2)
            connect(second, join, "in1", b.fragment_id, first, generation=2)
            connect(first, aggregate, "in0", join.fragment_id, second, producer_generation=2)
            first.wait_for_state(sink.fragment_id, FragmentState.FINISHED)
            assert not first.fragment_folder(join).exists(), "what has gone must not come back"
            assert all(status.late_rows == 0 for status in first.statuses.values())
            measured = {fragment_id: status.cpu_cores for fragment_id, status in first.statuses.items()}
            assert all(measured[spec.fragment_id] for spec in (a, b, aggregate, sink)), measured
            assert first.statuses[a.fragment_id].stream_rows_per_s
            assert first.statuses[aggregate.fragment_id].stream_rows_per_s is None
    assert difference(results(tmp_path), expected()) is None
    check = TraceCheck()
    check.check(read_traces(tmp_path / engine / "trace.jsonl" for engine in ("first", "second")))
    assert {name: fragment.starts for name, fragment in check.fragments.items() if fragment.starts > 1} == {
        "q-join1": 3
    }
    assert check.delivered("q-sink1") == {"q-a": len(readings()), "q-b": len(rules())}


def _relayed(engine: DrivenEngine, fragment_id: str) -> list[flight.Result]:
    assert engine.hello is not None
    address = engine.hello.flight_address
    request = PullRequest(fragment_id, 1, "other:in0", 1_000_000, address.secret)
    with links_to(address) as client:
        return list(client.do_action(flight.Action("relay", msgspec.msgpack.encode(request))))


def _describe(engine: DrivenEngine, specs: tuple[FragmentSpec, ...]) -> tuple[str, ...]:
    """Instantiating what runs already is idempotent, and says again what its output looks like."""
    replies = [engine.start(spec, consumers=("q-join1:in0",)) for spec in specs]
    return tuple(reply.output_schema or "" for reply in replies)


def test_what_cannot_run_is_refused_in_one_line_and_leaves_nothing(tmp_path: Path) -> None:
    write_csv(tmp_path / "a.csv", readings())
    good = source(tmp_path, "a")
    with DrivenEngine(tmp_path / "engine") as engine:

        def refusal(spec: FragmentSpec) -> str:
            folder = str(engine.fragment_folder(spec))
            error = engine.call(Instantiate(spec.fragment_id, 1, "test", spec, folder)).error
            assert error is not None
            assert "\n" not in error
            return error

        wrong_column = _changed(good, "q-wrong", sql="SELECT nothing FROM source")
        assert "nothing" in refusal(wrong_column)
        assert good.stream is not None
        unknown_format = _changed(good, "q-format", format="no-such-format")
        assert "no-such-format" in refusal(unknown_format)
        sink = FragmentSpec("q-sink", "q", FragmentKind.SINK, "SELECT 1 AS one", sink=SinkSpec("out", "parquet"))
        assert "path" in refusal(sink)

        engine.start(good)
        engine.wait_until(lambda: engine.output_rows(good.fragment_id) > 0, "the source puts out rows")
        engine.do(Migrate(good.fragment_id, 1, "test"))
        other = _changed(good, good.fragment_id, sql="SELECT ts AS a__ts, v AS a__v FROM source")
        assert "state of another fragment" in refusal(other)

        offsets = engine.fragment_folder(good) / "checkpoint" / "offsets"
        damaged = max((path for path in offsets.iterdir() if path.name.isdigit()), key=lambda path: int(path.name))
        damaged.write_bytes(damaged.read_bytes().replace(b"1", b"2"))
        engine.start(good, 2)
        status = engine.wait_for_state(good.fragment_id, FragmentState.FAILED)
        assert status.error == f"{damaged} is damaged on this host's disk: its checksum is another one"
        assert status.damaged

        missing = _changed(good, "q-missing", path=str(tmp_path / "missing.csv"))
        engine.start(missing)
        status = engine.wait_for_state("q-missing", FragmentState.FAILED)
        assert "missing.csv" in (status.error or "")
    assert engine.process.returncode == 0, "an engine ends by itself when its daemon is gone"
    assert not _children(engine.process.pid)


def _changed(spec: FragmentSpec, fragment_id: str, sql: str | None = None, **stream: str) -> FragmentSpec:
    assert spec.stream is not None
    declared = spec.stream
    options = {**declared.options, **({"path": stream["path"]} if "path" in stream else {})}
    changed = StreamSpec(
        declared.name, stream.get("format", declared.format), declared.schema, declared.event_time, options
    )
    return FragmentSpec(
        fragment_id, "q", FragmentKind.SOURCE, sql or spec.sql, event_time=spec.event_time, stream=changed
    )


def _children(pid: int) -> list[int]:
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                parent = int((entry / "stat").read_text().rsplit(")", 1)[1].split()[1])
            except (FileNotFoundError, ProcessLookupError):
                continue
            if parent == pid:
                found.append(int(entry.name))
    return found
