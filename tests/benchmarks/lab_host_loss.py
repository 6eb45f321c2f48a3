"""A host is cut from the network while it runs a join, with real Spark, in the lab: how long until the query goes on.

    sudo python -m tests.benchmarks.lab_host_loss [--split | --cold [--warm]] [--json]

Four hosts: `airport` has two streams and no room, `office` the sink, `hub` and `spare` have room. The join runs on
`hub` while a month of flights arrives, a day every two seconds. Then `hub` is cut off from all others, or with --split
together with `spare`, so that it may talk to one and is in the minority all the same. The join goes on from its
replica: at the office, whose engine runs already, or with --cold at `spare`, which has to start one (unless it is kept
--warm). Then the network is healed, `hub` has to drop what it has, the rest of the month arrives, and every row of the
result must be there once.

Prints when what happened, in seconds from the cut, and fails if a row is lost or doubled.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import trio

from daemon.control.messages import Done, Event, Migrate, OperatorInfo, Operators, OperatorsReply, Submit, SubmitReply
from daemon.demo.asking import events_after
from daemon.demo.check import read_rows
from daemon.demo.configuration import ENGINE, OVERLAY
from daemon.demo.scenario import FLIGHTS_SCHEMA, WEATHER_SCHEMA
from sbon.streams import SinkSpec, StreamSpec
from tests.end_to_end.cluster import STAY
from tests.end_to_end.feed import JOINED, SENTINELS, Feed
from tests.lab.daemons import Node, Tables, WideArea, running, see
from tests.lab.lab import Lab, why_impossible

NAMES = ("office", "hub", "airport", "spare")
NEAR_OFFICE = ((0, 60, 60, 120), (60, 0, 20, 100), (60, 20, 0, 100), (120, 100, 100, 0))
NEAR_SPARE = ((0, 60, 60, 120), (60, 0, 20, 15), (60, 20, 0, 60), (120, 15, 60, 0))
PATIENCE_S = 240.0
DAY_S = 2.0
BEFORE_DAYS = 5
AFTER_DAYS = 5
END_DAY = 33
TOLD = (
    "lease-lost",
    "fragment-taken-over",
    "fragment-adopted",
    "engine-starting",
    "engine-started",
    "fragment-started",
    "fragment-released",
)


@dataclass(slots=True)
class Arriving:
    """The month, a day at a time, as far as it may; the last days only when they are asked for."""

    feed: Feed
    next_day: int = 1
    until_day: int = 1 + BEFORE_DAYS
    next_at_s: float = field(default_factory=time.monotonic)

    def go_on(self) -> None:
        """Let the next day happen if it is time."""
        if time.monotonic() >= self.next_at_s and self.next_day < self.until_day:
            self.feed.put(self.next_day, self.next_day + 1)
            self.next_day += 1
            self.next_at_s = time.monotonic() + DAY_S

    def end(self) -> None:
        """All that is left at once; no day of it comes again, in the place of them all."""
        self.feed.put(self.next_day, END_DAY, last=True)
        self.until_day = self.next_day


class HostLoss:
    """One run, on a lab that is up."""

    def __init__(self, area: WideArea, folder: Path, *, split: bool, warm: bool) -> None:
        self._area = area
        self._split = split
        self._warm = warm
        self._nodes = {node.name: node for node in area.nodes}
        self._folder = folder
        self._arriving = Arriving(Feed(folder))
        self._cut_at_s = 0.0

    def run(self) -> dict[str, object]:
        """What was seen. AssertionError if it is not what it should be."""
        area = self._area
        area.until(lambda: see(area.nodes, set(NAMES)), PATIENCE_S)
        query_id = self._nodes["office"].ask(Submit(JOINED), SubmitReply).query_id
        before = self._on_hub(query_id)
        self._until(lambda: len(self._rows()) > 0 and self._is_replicated(before.fragment_id))
        self._until(lambda: self._is_ready(before.fragment_id))
        lost = {"hub", "spare"} if self._split else {"hub"}
        self._cut(lost)
        self._until(lambda: self._goes_on_s() is not None)
        goes_on_s = self._goes_on_s()
        after = self._join(query_id)
        self._heal(lost)
        self._until(lambda: see(area.nodes, set(NAMES)) and self._folders("hub") == [])
        self._arriving.end()
        expected: Counter[tuple[object, ...]] = Counter(self._arriving.feed.joined(None).elements())
        self._until(lambda: len(self._rows()) >= expected.total())
        seen = self._told()
        found = Counter(self._rows())
        assert found == expected, f"lost {(expected - found).total()} rows, doubled {(found - expected).total()}"
        owners = [event for event in seen if event.kind == "fragment-started" and event.node == after.node]
        stopped = [event for event in seen if event.kind == "lease-lost" and event.node == "hub"]
        assert (after.node, self._join(query_id).generation) != ("hub", before.generation)
        assert stopped, "the host that was cut off did not stop"
        assert stopped[0].time_s < owners[0].time_s, "two owners at once"
        return {
            "goes_on_s": goes_on_s,
            "at": after.node,
            "rows": found.total(),
            "events": [(round(event.time_s - self._cut_at_s, 2), event.node, event.kind) for event in seen],
        }

    # --- what is there

    def _rows(self) -> list[tuple[object, ...]]:
        return read_rows(self._folder / "joined")

    def _join(self, query_id: str) -> OperatorInfo:
        operators = self._nodes["office"].ask(Operators(), OperatorsReply).operators
        return next(each for each in operators if each.query_id == query_id and each.kind == "join")

    def _folders(self, name: str, kind: str = "fragments") -> list[str]:
        return [path.name for path in (self._nodes[name].folder / "state" / kind).iterdir()]

    def _is_replicated(self, fragment_id: str) -> bool:
        """Named in the record, too: the host says so when it is agreed on."""
        changed = (event.kind == "replicas-changed" for event in self._events(self._nodes["hub"]))
        return any(changed) and any(
            name.startswith(fragment_id) for host in NAMES for name in self._folders(host, "replicas")
        )

    def _is_ready(self, fragment_id: str) -> bool:
        """Where an engine runs beside a replica, it has rehearsed it."""
        for node in self._area.nodes:
            kinds = Counter(event.kind for event in self._events(node))
            has_replica = any(name.startswith(fragment_id) for name in self._folders(node.name, "replicas"))
            if has_replica and (self._warm or kinds["engine-started"]) and not kinds["replica-rehearsed"]:
                return False
        return True

    def _events(self, node: Node) -> list[Event]:
        return trio.run(events_after, node.socket, -1)

    def _told(self) -> list[Event]:
        """What happened to the fragment since the cut, everywhere, in order."""
        seen = [event for node in self._area.nodes for event in self._events(node)]
        return sorted(
            (event for event in seen if event.time_s >= self._cut_at_s and event.kind in TOLD),
            key=lambda event: event.time_s,
        )

    def _goes_on_s(self) -> float | None:
        """When the first rows came out that the new owner gave, in seconds from the cut."""
        starts = [event.time_s for event in self._told() if event.kind == "fragment-started"]
        if not starts:
            return None
        written = (path.stat().st_mtime for path in (self._folder / "joined").glob("*.parquet"))
        return min((round(at_s - self._cut_at_s, 2) for at_s in written if at_s > starts[0]), default=None)

    # --- what happens

    def _until(self, condition: Callable[[], bool]) -> None:
        """While the month goes on."""

        def holds() -> bool:
            self._arriving.go_on()
            return condition()

        self._area.until(holds, PATIENCE_S)

    def _on_hub(self, query_id: str) -> OperatorInfo:
        """A busy machine may have measured other paths than there are."""
        join = self._join(query_id)
        if join.node != "hub":
            self._nodes["office"].ask(Migrate(join.fragment_id, "hub"), Done)
        return self._join(query_id)

    def _cut(self, lost: set[str]) -> None:
        for name in lost:
            for other in set(NAMES) - lost:
                self._area.lab.cut(self._nodes[name].host, self._nodes[other].host)
        self._cut_at_s = time.time()
        self._arriving.until_day = END_DAY - AFTER_DAYS

    def _heal(self, lost: set[str]) -> None:
        for name in lost:
            self._area.lab.reconnect(self._nodes[name].host)


def run(*, split: bool, cold: bool, warm: bool) -> dict[str, object]:
    rtt_ms = NEAR_SPARE if cold else NEAR_OFFICE
    with tempfile.TemporaryDirectory() as scratch, Lab(rtt_ms) as lab:
        folder = Path(scratch)
        for name in SENTINELS:
            (folder / name).mkdir()
        schemas = {"flights": FLIGHTS_SCHEMA, "weather": WEATHER_SCHEMA}
        streams = [
            StreamSpec(name, "csv", schema, "ts", {"path": str(folder / name), "header": "true"})
            for name, schema in schemas.items()
        ]
        declared: dict[str, Sequence[StreamSpec | SinkSpec]] = {
            "airport": streams,
            "office": [SinkSpec("joined", "parquet", {"path": str(folder / "joined")})],
        }
        tables: Tables = {"placement": STAY, "engine": {**ENGINE, "trigger_ms": 500}, "failover": {"warm": warm}}
        with running(
            lab, NAMES, rtt_ms, folder, OVERLAY, declared, tables=tables, without_room=("airport",), real_spark=True
        ) as area:
            return HostLoss(area, folder, split=split, warm=warm).run()


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--split", action="store_true", help="cut hub off together with spare")
    parser.add_argument("--cold", action="store_true", help="the join goes on where no engine runs yet")
    parser.add_argument("--warm", action="store_true", help="with `failover.warm`: that engine is kept ready")
    parser.add_argument("--json", action="store_true")
    parsed = parser.parse_args(arguments)
    problem = why_impossible()
    if problem is not None:
        sys.exit(f"lab_host_loss: error: no wide-area lab here: {problem}")
    if parsed.split and parsed.cold:
        parser.error("with --split the replica is at the office")
    seen = run(split=parsed.split, cold=parsed.cold, warm=parsed.warm)
    if parsed.json:
        print(msgspec.json.format(msgspec.json.encode(seen)).decode())
        return 0
    events = seen["events"]
    assert isinstance(events, list)
    for at_s, node, kind in events:
        print(f"{at_s:7.2f} s  {node:8} {kind}")
    print(f"{seen['goes_on_s']:7.2f} s  first rows from {seen['at']}; {seen['rows']} rows in all, none lost or doubled")
    return 0


if __name__ == "__main__":
    sys.exit(main())
