"""What a query has several times, a WITH that is used twice for example, is computed once and read by all that have it.

A part of the plan is cut first, with all the columns that any of its uses needs; the uses then read it as they would
read a fragment of another query (:mod:`sbon.sql.reuse`). It is taken for the same by what it computes, and a use with
more filters applies them itself.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass

from sbon.errors import QueryError
from sbon.planning.signature import Signature
from sbon.sql.cut import Cutter
from sbon.sql.dialect import column
from sbon.sql.event_times import event_times
from sbon.sql.logical_plan import Compute, Filter, Output, Plan, Reused, Scan, attributes, identity, used
from sbon.sql.reuse import Part, parts_of, views, with_views
from sbon.sql.signatures import Canonical, canonical, scans

#: Says from when on a plan begins; raises QueryError for windows of which it cannot be told whether they are whole.
Begin = Callable[[Plan, Cutter], Plan]


@dataclass(frozen=True, slots=True, eq=False)
class _Common:
    """A part, and those of its attributes that it and all that are the same need of it."""

    part: Part
    signature: Signature
    needed: set[str]


def computed_once(plan: Plan, outputs: Sequence[Output], cutter: Cutter, begin: Begin) -> tuple[Plan, Cutter]:
    """``plan``, reading what it has several times, and the cutter with the fragments that it reads there.

    Small parts come first: larger ones that are the same, too, read them.
    """
    refused: set[Signature] = set()
    while (common := _smallest(plan, outputs, refused)) is not None:
        found = _cut(common, plan, outputs, cutter, begin)
        if found is None:
            refused.add(common.signature)
        else:
            plan, cutter = found
    return plan, cutter


def _smallest(plan: Plan, outputs: Sequence[Output], refused: set[Signature]) -> _Common | None:
    read = [scan.stream.name for scan in scans(plan)]
    if len(set(read)) == len(read):
        return None
    parts = [(part, canonical(part.plan)) for part in parts_of(plan, _used(outputs)) if _is_computed(part.plan)]
    for _, least in reversed(parts):
        same = [(part, what) for part, what in parts if least.signature.serves(what.signature)]
        if len(same) > 1 and least.signature not in refused:
            first, its = next((part, what) for part, what in same if what.signature == least.signature)
            needed = set[str]().union(*(_needed(part, what, its) for part, what in same))
            return _Common(first, its.signature, needed)
    return None


def _cut(
    common: _Common, plan: Plan, outputs: Sequence[Output], cutter: Cutter, begin: Begin
) -> tuple[Plan, Cutter] | None:
    """None if not even two of its uses can read it. Which of its columns is the event time has to suit them all."""
    times = event_times(common.part.plan).lags_us
    for time in sorted(times, key=lambda time: time not in common.needed):
        with suppress(QueryError):
            tried = cutter.copy()
            names = [name for name in attributes(common.part.plan) if name in common.needed | {time}]
            fragment_id = tried.cut_part(begin(common.part.plan, tried), identity(names), time)
            if fragment_id in tried.offers:
                chosen = views(plan, outputs, {fragment_id: tried.offers[fragment_id]})
                reading = with_views(plan, chosen)
                event_times(begin(reading, tried))
                if len(chosen) > 1:
                    return reading, tried
    return None


def _is_computed(plan: Plan) -> bool:
    """A stream by itself is read where it is, and what others have at theirs."""
    while isinstance(plan, (Filter, Compute)):
        plan = plan.input
    return not isinstance(plan, Scan | Reused)


def _needed(part: Part, what: Canonical, common: Canonical) -> set[str]:
    """What ``part`` needs of a part that serves it, as that calls it."""
    called = {common.called(column(name)): name for name in common.definitions}
    left = [what.filters[text] for text in what.signature.filters - common.signature.filters]
    definitions = dict(part.computed)
    found: set[str] = set()
    pending = part.needed | used(*left)
    while pending:
        name = pending.pop()
        there = called.get(what.called(column(name)))
        if there is not None:
            found.add(there)
        elif name in definitions:
            pending |= used(definitions[name])
    return found


def _used(outputs: Sequence[Output]) -> set[str]:
    return used(*(output.expression for output in outputs))
