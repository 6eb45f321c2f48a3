"""A port that changes its producer at a point of event time: whoever reads it cannot tell."""

from __future__ import annotations

import random
import tempfile
import threading
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sbon.errors import SbonError
from sbon.fragment import END_OF_STREAM_MS, FragmentKind, FragmentSpec, PortSpec, Switch
from spark_bridge.fragment_ports import FragmentPorts
from spark_bridge.port_inbox import PortInbox, Segment
from spark_bridge.segment import body_table, decode_segment, encode_segment

SWITCH = Switch("old", "new", "ts")
Row = tuple[int, int]


def body(rows: list[Row]) -> pa.Table:
    times = [datetime.fromtimestamp(ts / 1000, UTC) for ts, _ in rows]
    return pa.table({"v": [v for _, v in rows], "ts": pa.array(times, pa.timestamp("us", "UTC"))})


def segments(producer: str, rows: list[Row], chance: random.Random, from_ms: int | None = None) -> Iterator[Segment]:
    """As a link log has them: out of order within what the watermark promises, in batches of any size."""
    left = sorted(row for row in rows if from_ms is None or row[0] >= from_ms)
    newest: int | None = None
    batch_id = 0
    while True:
        ahead = left[:8]
        batch = [ahead.pop(chance.randrange(len(ahead))) for _ in range(chance.randint(0, min(3, len(ahead))))]
        for row in batch:
            left.remove(row)
        ended = not left and chance.random() < 0.5
        promised = END_OF_STREAM_MS if ended else left[0][0] if left else max((ts for ts, _ in rows), default=0)
        header, data = encode_segment(
            producer,
            1,
            batch_id,
            body(batch),
            event_time="ts",
            watermark_ms=promised,
            end_of_stream=ended,
            newest_before_ms=newest,
        )
        newest = header.newest_ms
        yield Segment(producer, 1, batch_id, header.rows, promised, decode_segment(data)[1], newest)
        batch_id += 1
        if ended:
            return


def read(inbox: PortInbox, start: int, end: int) -> list[Row]:
    tables = [body_table(each) for each in inbox.bodies(start, end)]
    return [
        (round(row["ts"].timestamp() * 1000), row["v"])
        for table in tables
        if table is not None
        for row in table.to_pylist()
    ]


@settings(deadline=None, max_examples=25)
@given(
    rows=st.lists(st.tuples(st.integers(0, 60), st.integers(0, 3)), max_size=40),
    seed=st.integers(0, 1_000_000),
    from_ms=st.one_of(st.none(), st.integers(0, 50)),
)
def test_each_row_comes_once_whenever_it_is_switched_and_whoever_is_ahead(
    rows: list[Row], seed: int, from_ms: int | None
) -> None:
    """``from_ms``: the new producer has rows from then on only. Restarts at any point; watermarks are kept."""
    chance = random.Random(seed)
    switch = Switch("old", "new", "ts", from_ms)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "in0.sqlite"
        inbox = PortInbox(path, ("old",))
        coming = {"old": segments("old", rows, chance)}
        taken: Counter[Row] = Counter()
        promised = -1
        while promised != END_OF_STREAM_MS:
            if "new" not in coming and chance.random() < 0.2:
                inbox.follow(switch)
                coming["new"] = segments("new", rows, chance, from_ms)
            if chance.random() < 0.2:
                inbox.close()
                inbox = PortInbox(path, tuple(coming), switch=switch if "new" in coming else None)
            if inbox.has_passed("old"):
                coming.pop("old", None)  # it is not there any more
            producer = chance.choice(list(coming))
            segment = next(coming[producer], None)
            if segment is None:
                continue
            before = inbox.end()
            assert inbox.append(segment)
            new = read(inbox, before, inbox.end())
            assert all(ts >= promised for ts, _ in new)
            taken += Counter(new)
            now = inbox.watermark_ms(inbox.end())
            assert now is None or now >= promised
            promised = promised if now is None else now
            if chance.random() < 0.3:
                inbox.forget(inbox.end())
        assert taken == Counter(rows)
        inbox.close()


def began_ms(inbox: PortInbox, switch: Switch = SWITCH) -> int:
    """From which event time on rows of the new producer are read, once it has said something."""
    inbox.follow(switch)
    inbox.append(Segment("new", 1, inbox.next_batch("new"), 0, None, b""))
    with inbox._database() as database:
        (from_ms,) = database.execute("SELECT from_ms FROM producers WHERE producer = 'new'").fetchone()
    return int(from_ms)


def test_the_point_is_later_than_all_that_was_taken_and_than_the_start_of_the_new_one(tmp_path: Path) -> None:
    def inbox(name: str, newest_ms: int | None, watermark_ms: int | None) -> PortInbox:
        made = PortInbox(tmp_path / name, ("old",))
        made.append(Segment("old", 1, 0, 0, watermark_ms, b"", newest_ms))
        return made

    assert began_ms(inbox("rows", 700, 500)) == 701
    assert began_ms(inbox("watermark", 700, 900)) == 900
    assert began_ms(inbox("start", 700, 900), Switch("old", "new", "ts", 2000)) == 2000
    assert began_ms(PortInbox(tmp_path / "nothing", ("old",)), Switch("old", "new", "ts", 7)) == 7
    ended = inbox("ended", 700, END_OF_STREAM_MS)
    assert began_ms(ended) == END_OF_STREAM_MS
    assert ended.has_passed("old")
    assert ended.watermark_ms(ended.end()) == END_OF_STREAM_MS


def test_the_old_one_goes_on_for_ever_while_the_new_one_says_nothing(tmp_path: Path) -> None:
    inbox = PortInbox(tmp_path / "in0", ("old",))
    inbox.follow(SWITCH)
    for batch_id in range(3):
        rows = body([(batch_id * 1000, batch_id)])
        header, data = encode_segment(
            "old", 1, batch_id, rows, event_time="ts", watermark_ms=batch_id * 1000, end_of_stream=False
        )
        inbox.append(Segment("old", 1, batch_id, 1, batch_id * 1000, decode_segment(data)[1], header.newest_ms))
    assert read(inbox, 0, 3) == [(0, 0), (1000, 1), (2000, 2)]
    assert inbox.watermark_ms(3) == 2000
    assert not inbox.has_passed("old")


def test_rows_of_strangers_are_not_let_in(tmp_path: Path) -> None:
    inbox = PortInbox(tmp_path / "in0", ("old",))
    with pytest.raises(ValueError, match="stranger does not feed this port"):
        inbox.append(Segment("stranger", 1, 0, 0, 5, b""))
    assert inbox.end() == 0


def test_an_inbox_of_an_earlier_version_is_switched_once_it_is_known_what_was_taken(tmp_path: Path) -> None:
    inbox = PortInbox(tmp_path / "in0", ("old",))
    inbox.append(Segment("old", 1, 0, 0, 5, b"", 700))
    with inbox._database(writes=True) as database:
        database.execute("DROP TABLE producers")
    inbox.close()
    inbox = PortInbox(tmp_path / "in0", ("old", "new"), switch=SWITCH)
    with pytest.raises(ValueError, match="not known yet"):
        began_ms(inbox)
    inbox.append(Segment("old", 1, 1, 0, 6, b"", 800))
    assert began_ms(inbox) == 801


def test_a_copy_of_an_inbox_goes_on_with_the_switch(tmp_path: Path) -> None:
    inbox = PortInbox(tmp_path / "in0", ("old",))
    inbox.append(Segment("old", 1, 0, 0, 5, b"", 700))
    assert began_ms(inbox) == 701
    inbox.export(tmp_path / "copy", 2)
    copy = PortInbox(tmp_path / "copy", ("old", "new"), switch=SWITCH)
    assert began_ms(copy) == 701
    assert not copy.has_passed("old")
    copy.append(Segment("old", 1, 1, 0, 701, b"", 700))
    assert copy.has_passed("old")
    assert copy.watermark_ms(copy.end()) == 701, "the new one promises nothing less"


def test_two_switches_follow_each_other(tmp_path: Path) -> None:
    inbox = PortInbox(tmp_path / "in0", ("old",))
    inbox.append(Segment("old", 1, 0, 0, 5, b"", 10))
    assert began_ms(inbox) == 11
    inbox.follow(Switch("new", "newest", "ts", 20))
    inbox.append(Segment("newest", 1, 0, 0, 90, b"", None))
    assert inbox.watermark_ms(inbox.end()) == 5
    inbox.append(Segment("old", 1, 1, 0, 80, b"", 80))
    assert inbox.watermark_ms(inbox.end()) == 11
    inbox.append(Segment("new", 1, 1, 0, 80, b"", 80))
    assert inbox.watermark_ms(inbox.end()) == 90


def test_a_fragment_that_starts_again_does_with_its_ports_as_its_plan_says(tmp_path: Path) -> None:
    def ports(port: PortSpec) -> FragmentPorts:
        spec = FragmentSpec("f", "q", FragmentKind.SINK, "SELECT * FROM in0", (port,))
        return FragmentPorts(tmp_path, spec, threading.Event(), lambda *_: None)

    first = ports(PortSpec("in0", ("old",)))
    first.inboxes["in0"].append(Segment("old", 1, 0, 0, 5, b"", 10))
    both = PortSpec("in0", ("old", "new"), switch=SWITCH, changes=1)
    with pytest.raises(SbonError, match="f has no port in1"):
        first.set(PortSpec("in1", ("new",)))
    first.set(both)
    first.stop()
    second = ports(both)
    second.inboxes["in0"].append(Segment("new", 1, 0, 0, None, b""))
    second.stop()
    third = ports(PortSpec("in0", ("new",), switch=SWITCH, changes=2))
    third.inboxes["in0"].append(Segment("new", 1, 1, 0, 90, b"", 80))
    assert third.watermark_ms({"in0": 3}) == 5, "what the old one has is still to come"
    third.stop()
