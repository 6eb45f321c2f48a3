"""What a stream computes, in a form in which equal is equal, however it was written."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Signature:
    """``body``: streams and the predicates that join them, canonically; ``filters``: further conjuncts on its rows.

    Filters are kept apart because a stream with fewer of them can stand in for one with more.
    """

    body: str
    filters: frozenset[str] = frozenset()

    def serves(self, wanted: Signature) -> bool:
        """Whether ``wanted`` is this stream, perhaps filtered further (and it may be filtered where this one is)."""
        return self.body == wanted.body and self.filters <= wanted.filters
