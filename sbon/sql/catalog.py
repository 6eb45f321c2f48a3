"""What a query can name: streams and sinks, and the nodes that own them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeVar

from sbon.errors import QueryError
from sbon.sql.spelling import nearest
from sbon.streams import SinkSpec, StreamSpec

_Spec = TypeVar("_Spec", StreamSpec, SinkSpec)


@dataclass(frozen=True, slots=True)
class Catalog:
    """Streams and sinks by name, each with the id of the node that owns it. Names are compared without case."""

    streams: Mapping[str, tuple[StreamSpec, str]] = field(default_factory=dict)
    sinks: Mapping[str, tuple[SinkSpec, str]] = field(default_factory=dict)

    def stream(self, name: str, place: str = "") -> tuple[StreamSpec, str]:
        """The stream and its owner. Raises QueryError with the streams there are."""
        return _find("stream", name, place, self.streams)

    def sink(self, name: str, place: str = "") -> tuple[SinkSpec, str]:
        """The sink and its owner. Raises QueryError with the sinks there are."""
        return _find("sink", name, place, self.sinks)


def _find(what: str, name: str, place: str, known: Mapping[str, tuple[_Spec, str]]) -> tuple[_Spec, str]:
    for candidate, found in known.items():
        if candidate.lower() == name.lower():
            return found
    there = (
        f"known {what}s: {', '.join(sorted(known))}" if known else f"no {what} is known here; declare one in [[{what}]]"
    )
    raise QueryError(f"unknown {what} '{name}'{place}{nearest(name, known)}; {there}")
