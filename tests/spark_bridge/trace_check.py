"""The modelled engine held against a real one: what Spark and the links were seen to do, done by the model.

The simulator of ownership says that nothing is lost or doubled as far as an engine behaves as its model does
(daemon.simulation.ownership.modelled_engine). A trace is what traced_engine.py has written. Each row that a source puts
out has a number in the model, which passes it on through all fragments, whatever these make of it really; so the model
sees whether each fragment reads each segment once and in order, before and after a kill or a move. Where the real
engine does what the model would not do, the model does not speak for it: :class:`DivergenceError`.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from daemon.simulation.ownership.modelled_engine import ModelledFragment, Row

Event = Mapping[str, Any]


class DivergenceError(AssertionError):
    """A real engine did something that the model does not."""


def read_traces(files: Iterable[Path]) -> list[Event]:
    """All events in order. The last line of an engine that was killed may be cut off."""
    events: list[Event] = []
    for file in files:
        *lines, rest = file.read_text().split("\n")
        events += [json.loads(line) for line in lines]
        assert not rest or rest.startswith("{")
    return sorted(events, key=lambda event: event["at_ns"])


@dataclass(slots=True)
class _Fragment:
    """``ends``: how many segments of each port the last batch had read; ``batches``: the ends of each batch."""

    state: ModelledFragment
    ports: dict[str, tuple[str, ...]]
    is_sink: bool
    ends: dict[str, int] = field(default_factory=dict)
    batches: dict[int, dict[str, int]] = field(default_factory=dict)
    starts: int = 1

    def forget_pull(self, producer: str) -> None:
        last = max(number for number, (name, _) in enumerate(self.state.inbox) if name == producer)
        del self.state.inbox[last]
        self.state.pulled[producer] -= 1


@dataclass(slots=True)
class TraceCheck:
    """The fragments of one deployment, as they are modelled."""

    fragments: dict[str, _Fragment] = field(default_factory=dict)

    def check(self, events: Iterable[Event]) -> None:
        """Raises DivergenceError, or LostOrDoubledError of the model, at the first event that does not fit."""
        for event in events:
            if str(event["fragment"]).endswith("rehearsal"):  # it computes nothing that anybody reads
                continue
            getattr(self, f"_{event['event']}")(event)

    def delivered(self, sink: str) -> Mapping[str, int]:
        """Source -> rows that have come through to the sink."""
        return self.fragments[sink].state.seen

    def _started(self, event: Event) -> None:
        known = self.fragments.get(event["fragment"])
        if known is None:
            ports = {port: tuple(producers) for port, producers in event["due"].items()}
            producers = tuple(producer for names in ports.values() for producer in names)
            state = ModelledFragment(producers, tuple(event["consumers"]))
            known = self.fragments[event["fragment"]] = _Fragment(state, ports, event["is_sink"])
        else:
            known.starts += 1
        for due in event["due"].values():
            for producer, batch_id in due.items():
                if batch_id == known.state.next_batch(producer) - 1:
                    known.forget_pull(producer)  # killed before it was there
                self._same(event, "next batch", batch_id, known.state.next_batch(producer))
        if not known.is_sink and event["newest"] != known.state.batch_id - 1:  # as above: Spark will say it again
            self._same(event, "newest batch", event["newest"], known.state.batch_id)

    def _pulled(self, event: Event) -> None:
        known = self.fragments[event["fragment"]]
        producer, batch_id = event["producer"], event["batch"]
        self._same(event, "being new", event["is_new"], batch_id == known.state.next_batch(producer))
        if event["is_new"]:
            served = self.fragments[producer].state.serve(batch_id, None)
            if not served:
                raise DivergenceError(f"{event}: the model has no such segment, or no longer")
            known.state.take_in(producer, served[0])

    def _put(self, event: Event) -> None:
        known, batch_id = self.fragments[event["fragment"]], event["batch"]
        if batch_id in known.batches:
            self._same(event, "end of the batch that is said again", event["ends"], known.batches[batch_id])
            return
        self._same(event, "batch", batch_id, known.state.batch_id + 1)
        if not known.ports:
            name, first = event["fragment"], known.state.seen[event["fragment"]]
            rows: tuple[Row, ...] = tuple((name, first + number) for number in range(event["rows"]))
            known.state.put_out(rows)
        else:
            self._read(event, known)
        known.batches[batch_id] = dict(event["ends"])

    def _read(self, event: Event, known: _Fragment) -> None:
        """A batch takes the first segments that came to each port, and all that it takes were pulled before."""
        taken = []
        for port, end in event["ends"].items():
            waiting = [segment for segment in known.state.inbox if segment[0] in known.ports[port]]
            count = end - known.ends.get(port, 0)
            if not 0 <= count <= len(waiting):
                raise DivergenceError(f"{event}: {count} segments are read of {len(waiting)} that were pulled")
            taken += waiting[:count]
        known.state.read_segments(taken)
        known.ends.update(event["ends"])

    def _forgot(self, event: Event) -> None:
        """What is forgotten in the inbox, and acknowledged from then on, was read by a batch that is over."""
        known, port = self.fragments[event["fragment"]], event["port"]
        if event["end"] > known.ends.get(port, 0):
            raise DivergenceError(f"{event}: the model has read {known.ends.get(port, 0)} segments of {port}")

    def _acknowledged(self, event: Event) -> None:
        known = self.fragments[event["fragment"]]
        reader = self.fragments[event["consumer"].partition(":")[0]]
        if event["batch"] > reader.state.read.get(event["fragment"], -1):
            raise DivergenceError(f"{event}: the model would not acknowledge what it has not read")
        known.state.acknowledge(event["consumer"], event["batch"])
        if event["oldest"] is not None and event["oldest"] > known.state.trimmed + 1:
            raise DivergenceError(f"{event}: the model has trimmed up to {known.state.trimmed} only")

    def _same(self, event: Event, what: str, real: object, modelled: object) -> None:
        if real != modelled:
            raise DivergenceError(f"{event}: {what} is {real}, and {modelled} in the model")
