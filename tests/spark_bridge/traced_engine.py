"""An engine as ``python -m spark_bridge``, which writes down what Spark and the links do to its fragments.

One JSON object a line, to ``trace.jsonl`` beside its scratch folder; what the fields mean is in trace_check.py. What
others can see at once (a segment, an entry of an inbox) is written down just before it is there, everything else after.
"""

from __future__ import annotations

import functools
import json
import logging
import os
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from spark_bridge.__main__ import main
from spark_bridge.fragment_runner import FragmentRunner
from spark_bridge.link_log import LinkLog
from spark_bridge.offset_log import BatchPlan
from spark_bridge.port_inbox import PortInbox, Segment


class Tracer:
    """Wraps what is to be seen; the original is the argument after ``self``'s."""

    def __init__(self, file: Path) -> None:
        self._file = file.open("a")
        self._lock = threading.Lock()
        #: Inbox -> fragment id and port.
        self._places: dict[PortInbox, tuple[str, str]] = {}
        self._plan = threading.local()
        for owner, name, wrapper in (
            (FragmentRunner, "_start", self._start),
            (FragmentRunner, "_put_out", self._put_out),
            (LinkLog, "append", self._append),
            (LinkLog, "acknowledge", self._acknowledge),
            (PortInbox, "__init__", self._open_inbox),
            (PortInbox, "append", self._take_in),
            (PortInbox, "forget", self._forget),
        ):
            _wrap(owner, name, wrapper)

    def _tell(self, fragment_id: str, event: str, **fields: object) -> None:
        with self._lock:
            line = {"at_ns": time.monotonic_ns(), "fragment": fragment_id, "event": event, **fields}
            self._file.write(json.dumps(line) + "\n")
            self._file.flush()

    def _start(self, original: Any, runner: FragmentRunner, stream: Any) -> Any:
        due = {
            port.name: {producer: runner._ports.inboxes[port.name].next_batch(producer) for producer in port.producers}
            for port in runner.spec.ports
        }
        self._tell(
            runner.spec.fragment_id,
            "started",
            due=due,
            newest=runner.newest_batch,
            consumers=list(runner._log._cursors),
            is_sink=runner.spec.sink is not None,
        )
        return original(runner, stream)

    def _put_out(self, original: Any, runner: FragmentRunner, rows: Any, batch_id: int, plan: BatchPlan) -> Any:
        self._plan.ends = plan.port_ends()
        if runner.spec.sink is not None:
            self._tell(runner.spec.fragment_id, "put", batch=batch_id, ends=self._plan.ends, rows=None)
        return original(runner, rows, batch_id, plan)

    def _append(self, original: Any, log: LinkLog, generation: int, batch_id: int, table: Any, **more: Any) -> None:
        self._tell(log._fragment_id, "put", batch=batch_id, ends=self._plan.ends, rows=table.num_rows)
        original(log, generation, batch_id, table, **more)

    def _acknowledge(self, original: Any, log: LinkLog, consumer: str, batch_id: int) -> None:
        original(log, consumer, batch_id)
        oldest = min(log._sizes, default=None)
        self._tell(log._fragment_id, "acknowledged", consumer=consumer, batch=batch_id, oldest=oldest)

    def _open_inbox(self, original: Any, inbox: PortInbox, path: Path, *more: Any) -> None:
        self._places[inbox] = path.parent.parent.name, path.stem
        original(inbox, path, *more)

    def _take_in(self, original: Any, inbox: PortInbox, segment: Segment) -> bool:
        fragment_id, port = self._places[inbox]
        is_new = segment.batch_id == inbox.next_batch(segment.producer)
        self._tell(fragment_id, "pulled", port=port, producer=segment.producer, batch=segment.batch_id, is_new=is_new)
        return bool(original(inbox, segment))

    def _forget(self, original: Any, inbox: PortInbox, end: int) -> None:
        original(inbox, end)
        fragment_id, port = self._places[inbox]
        self._tell(fragment_id, "forgot", port=port, end=end)


def _wrap(owner: type, name: str, wrapper: Callable[..., Any]) -> None:
    original = getattr(owner, name)

    @functools.wraps(original)
    def wrapped(*arguments: Any, **more: Any) -> Any:
        return wrapper(original, *arguments, **more)

    setattr(owner, name, wrapped)


if __name__ == "__main__":
    scratch = Path(sys.argv[sys.argv.index("--scratch") + 1])
    Tracer(scratch.with_name("trace.jsonl"))
    status = main()
    logging.shutdown()
    os._exit(status)
