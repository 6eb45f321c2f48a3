from __future__ import annotations

import sqlite3
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spark_bridge.port_inbox import PassedError, PortInbox, Segment


def segment(producer: str, batch_id: int, watermark_ms: int | None, generation: int = 1) -> Segment:
    return Segment(producer, generation, batch_id, 1, watermark_ms, f"{producer}{batch_id}".encode())


def test_a_producer_that_moved_goes_on_where_it_was(tmp_path: Path) -> None:
    path = tmp_path / "in0.sqlite"
    inbox = PortInbox(path, ("p",))
    assert inbox.append(segment("p", 0, 5))
    inbox = PortInbox(path, ("p",))  # the consumer restarted
    assert inbox.next_batch("p") == 1
    assert inbox.append(segment("p", 1, 6, generation=2))
    assert not inbox.append(segment("p", 1, 6, generation=2))
    with pytest.raises(ValueError, match="where 2 was due"):
        inbox.append(segment("p", 3, 7, generation=2))
    assert list(inbox.bodies(0, inbox.end())) == [b"p0", b"p1"]


def test_a_port_begins_where_its_subscription_does(tmp_path: Path) -> None:
    inbox = PortInbox(tmp_path / "in0", ("p",), {"p": 7})
    assert inbox.next_batch("p") == 7
    assert inbox.append(Segment("p", 1, 7, 0, None, b""))
    assert PortInbox(tmp_path / "in0", ("p",), {"p": 7}).next_batch("p") == 8
    assert inbox.read_for_good() == {}


def test_the_watermark_is_that_of_the_slowest_producer(tmp_path: Path) -> None:
    inbox = PortInbox(tmp_path / "in0.sqlite", ("fast", "slow"))
    inbox.append(segment("fast", 0, 100))
    assert inbox.watermark_ms(1) is None  # nothing is known of the other one
    inbox.append(segment("slow", 0, 10))
    inbox.append(segment("fast", 1, 200))
    inbox.append(segment("slow", 1, 30))
    assert [inbox.watermark_ms(end) for end in range(5)] == [None, None, 10, 10, 30]


@settings(deadline=None, max_examples=15)
@given(st.data())
def test_nothing_unread_is_forgotten_and_acknowledgements_are_exact(data: st.DataObject) -> None:
    """Against a plain list: whatever the interleaving of two producers, reads and restarts."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "in0.sqlite"
        inbox = PortInbox(path, ("a", "b"))
        taken: list[Segment] = []
        read = 0
        for _ in range(data.draw(st.integers(1, 15))):
            match data.draw(st.sampled_from(["append", "read", "restart"])):
                case "append":
                    producer = data.draw(st.sampled_from("ab"))
                    due = sum(1 for one in taken if one.producer == producer)
                    assert inbox.next_batch(producer) == due
                    taken.append(segment(producer, due, due * 10))
                    assert inbox.append(taken[-1])
                case "read":
                    read = data.draw(st.integers(read, len(taken)))
                    inbox.forget(read)
                case "restart":
                    inbox = PortInbox(path, ("a", "b"))
            assert inbox.end() == len(taken)
            assert list(inbox.bodies(read, len(taken))) == [one.body for one in taken[read:]]
            expected: dict[str, int] = {}
            for one in taken[:read]:
                expected[one.producer] = one.batch_id
            assert inbox.read_for_good() == expected
            assert inbox.unread_bytes() == sum(len(one.body) for one in taken[read:])


def test_what_was_read_for_good_in_part_is_not_read_as_if_it_were_all(tmp_path: Path) -> None:
    inbox = PortInbox(tmp_path / "in0.sqlite", ("p",))
    for batch_id in range(3):
        inbox.append(segment("p", batch_id, batch_id))
    inbox.forget(2)
    assert list(inbox.bodies(0, 2)) == []
    assert list(inbox.bodies(2, 3)) == [b"p2"]
    with pytest.raises(PassedError):
        inbox.bodies(1, 3)


def test_nothing_is_written_to_a_closed_inbox(tmp_path: Path) -> None:
    inbox = PortInbox(tmp_path / "in0.sqlite", ("p",))
    inbox.append(segment("p", 0, 1))
    inbox.close()
    with pytest.raises(sqlite3.ProgrammingError):
        inbox.append(segment("p", 1, 1))
    assert [path.name for path in tmp_path.iterdir()] == ["in0.sqlite"]
    assert PortInbox(tmp_path / "in0.sqlite", ("p",)).next_batch("p") == 1


def test_a_crash_in_the_middle_leaves_no_half_entry(tmp_path: Path) -> None:
    path = tmp_path / "in0.sqlite"
    inbox = PortInbox(path, ("p",))
    inbox.append(segment("p", 0, 1))
    broken = sqlite3.connect(path, isolation_level=None)
    broken.execute("BEGIN IMMEDIATE")
    broken.execute("INSERT INTO journal VALUES (1, 'p', 1, 1, 1, 2, 2, x'00')")
    broken.close()  # as a killed process would: no commit
    assert inbox.end() == 1
    assert inbox.next_batch("p") == 1


def test_a_closed_inbox_is_as_small_as_what_is_unread(tmp_path: Path) -> None:
    inbox = PortInbox(tmp_path / "in0.sqlite", ("p",))
    inbox.append(Segment("p", 1, 0, 1, 5, bytes(1_000_000)))
    inbox.append(segment("p", 1, 6))
    inbox.forget(1)
    inbox.close()
    inbox.close()
    assert (tmp_path / "in0.sqlite").stat().st_size < 100_000
    assert PortInbox(tmp_path / "in0.sqlite", ("p",)).bodies(1, 2) == [b"p1"]


def test_what_a_closed_inbox_takes_is_known_before(tmp_path: Path) -> None:
    path = tmp_path / "in0.sqlite"
    inbox = PortInbox(path, ("p",))
    for batch_id in range(100):
        inbox.append(Segment("p", 1, batch_id, 1, batch_id, bytes(3_000)))
        inbox.forget(batch_id)
    expected = inbox.bytes_once_closed()
    assert sum(file.stat().st_size for file in tmp_path.iterdir()) > 10 * expected, "SQLite's log is as small by now"
    inbox.close()
    assert path.stat().st_size == inbox.bytes_once_closed() <= expected < path.stat().st_size + 16_384
