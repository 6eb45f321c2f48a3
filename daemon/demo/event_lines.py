"""Events as lines for a person; those that say nothing to one are left out."""

from __future__ import annotations

from typing import Any

from daemon.control_messages import Event

#: Of no interest here: the demo itself says so, or every daemon says it of every other.
_QUIET = frozenset({"started", "joined", "member-joined", "member-up"})


def event_line(event: Event) -> str | None:
    """``event`` in one line, or None."""
    if event.kind in _QUIET:
        return None
    fields = event.fields
    match event.kind:
        case "path-changed":
            change = f"is {fields['after_ms']:.0f} ms, was {fields['before_ms']:.0f} ms"
            return f"{event.node}: round trip to {fields['peer']} {change}"
        case _:
            return f"{event.node}: {event.kind} " + ", ".join(f"{key} {_text(value)}" for key, value in fields.items())


def _text(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
