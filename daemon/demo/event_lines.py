"""Events as lines for a person; those that say nothing to one are left out."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from daemon.control.messages import Event

_Fields = Mapping[str, Any]


def _path_changed(fields: _Fields) -> str:
    return f"round trip to {fields['peer']} is {fields['after_ms']:.0f} ms, was {fields['before_ms']:.0f} ms"


def _engine_started(fields: _Fields) -> str:
    return f"Spark {fields['spark']} is up after {fields['seconds']:.0f} s"


def _evaluated(fields: _Fields) -> str:
    operators = " and ".join(_short(fragment) for fragment in fields["fragments"])
    return f"{fields['because']}; {operators}: {fields['decision']}: {fields['reason']}"


def _migrated(fields: _Fields) -> str:
    state, downtime = f"{fields['state_bytes'] / 1000:.0f} kB of state", f"{fields['downtime_ms']:.0f} ms without it"
    return f"{_short(fields['fragment'])} has moved to {fields['target']}: {state}, {downtime}"


_LINES: dict[str, Callable[[_Fields], str]] = {
    "path-changed": _path_changed,
    "engine-starting": lambda fields: "starts Spark",
    "engine-started": _engine_started,
    "engine-lost": lambda fields: f"Spark has died: {fields['last_words']}",
    "fragment-started": lambda fields: f"{_short(fields['fragment'])} runs",
    "fragment-failed": lambda fields: f"{_short(fields['fragment'])} failed: {fields['error']}",
    "placement-evaluated": _evaluated,
    "move-announce": lambda fields: f"{_short(fields['fragment'])} shall move to {fields['target']}",
    "move-prepare": lambda fields: f"{fields['target']} is ready for {_short(fields['fragment'])}",
    "move-stop": lambda fields: f"{_short(fields['fragment'])} has stopped",
    "move-ship": lambda fields: f"the state of {_short(fields['fragment'])} is at {fields['target']}",
    "move-failed": lambda fields: f"{_short(fields['fragment'])} does not move: {fields['error']}",
    "migrated": _migrated,
    "query-failed": lambda fields: f"the query failed: {fields['error']}",
    "query-finished": lambda fields: "the query has finished",
}


def event_line(event: Event) -> str | None:
    """``event`` in one line, or None."""
    line = _LINES.get(event.kind)
    return None if line is None else f"{event.node}: {line(event.fields)}"


def _short(fragment_id: str) -> str:
    """``q3f2a81-join1`` without the query."""
    return fragment_id.rpartition("-")[2]
