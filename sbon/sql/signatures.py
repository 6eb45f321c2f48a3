"""What a join of some of a query's inputs computes, in a form that does not depend on how it is written.

Aliases, the order of streams and of conditions, and which side of a comparison is written first make no difference.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import permutations

from sqlglot import exp

from sbon.fragment import Computes
from sbon.planning.signature import Signature
from sbon.sql.dialect import column, render
from sbon.sql.join_graph import JoinGraph, join_graph
from sbon.sql.logical_plan import Filter, Join, Output, Plan, Scan, bare, conjuncts, used

#: A comparison with its sides changed about.
_TURNED: dict[type[exp.Expr], type[exp.Expr]] = {exp.GT: exp.LT, exp.GTE: exp.LTE}
_SYMMETRIC = (exp.EQ, exp.NEQ, exp.NullSafeEQ)


def stream_of(plan: Plan) -> tuple[Scan, list[exp.Expr]] | None:
    """The stream and the filters on it, if that is all that the plan is."""
    filters: list[exp.Expr] = []
    while isinstance(plan, Filter):
        filters += conjuncts(plan.condition)
        plan = plan.input
    return (plan, filters) if isinstance(plan, Scan) else None


@dataclass(frozen=True, slots=True)
class Canonical:
    """A signature, and what it calls the attributes and the filters of the plan, by attribute and by signature."""

    signature: Signature
    names: Mapping[str, str]
    filters: Mapping[str, exp.Expr]


def canonical(graph: JoinGraph, numbers: Iterable[int]) -> Canonical:
    """Of the join of these inputs, all of them streams with filters. Raises ValueError if one is not."""
    found = []
    for number in numbers:
        stream = stream_of(graph.inputs[number])
        if stream is None:
            raise ValueError(f"input {number} is no stream")
        found.append(stream)
    found.sort(key=lambda pair: pair[0].stream.name.lower())
    scans = [scan for scan, _ in found]
    names = {attribute for scan in scans for attribute, _, _ in scan.columns}
    between = [part for part in graph.conditions if used(part) <= names]
    filters = [part for _, parts in found for part in parts]
    # Which of several uses of one stream is called the first is free: the least text decides.
    return min(
        (_written(scans, numbering, between, filters) for numbering in _numberings(scans)),
        key=lambda found: (found.signature.body, sorted(found.signature.filters)),
    )


def computes(join: Join, outputs: Sequence[Output], event_time: str | None) -> Computes | None:
    """What a fragment computes that puts out ``outputs`` of a join; None for what others cannot read from some point
    of event time on, or could not find: its inputs are not all streams."""
    graph = join_graph(join)
    if any(stream_of(plan) is None for plan in graph.inputs):
        return None
    found = canonical(graph, range(len(graph.inputs)))
    columns = {found.names[name]: output.name or "" for output in outputs if (name := bare(output.expression) or "")}
    time = next((name for name, column in columns.items() if column == event_time), None)
    if time is None:
        return None
    read = (stream_of(plan) for plan in graph.inputs)
    names = tuple(sorted({stream[0].stream.name for stream in read if stream is not None}))
    return Computes(found.signature.body, tuple(sorted(found.signature.filters)), columns, time, names)


def _written(
    scans: list[Scan], numbering: tuple[int, ...], between: list[exp.Expr], filters: list[exp.Expr]
) -> Canonical:
    names: dict[str, exp.Expr] = {}
    for scan, number in zip(scans, numbering, strict=True):
        for attribute, name, _ in scan.columns:
            names[attribute] = column(f"{scan.stream.name.lower()}{number}__{name.lower()}")
    streams = sorted(f"{scan.stream.name.lower()}{number}" for scan, number in zip(scans, numbering, strict=True))
    conditions = sorted({_canonical(part, names) for part in between})
    body = ", ".join(streams) + (" ON " + " AND ".join(conditions) if conditions else "")
    by_text = {_canonical(part, names): part for part in filters}
    called = {attribute: name.name for attribute, name in names.items()}
    return Canonical(Signature(body, frozenset(by_text)), called, by_text)


def _numberings(scans: list[Scan]) -> Iterable[tuple[int, ...]]:
    """Ways to number the uses of each stream from 1. Streams are sorted by name."""
    ways: list[tuple[int, ...]] = [()]
    position = 0
    while position < len(scans):
        same = sum(scan.stream.name.lower() == scans[position].stream.name.lower() for scan in scans)
        ways = [way + part for way in ways for part in permutations(range(1, same + 1))]
        position += same
    return ways


def _canonical(part: exp.Expr, names: Mapping[str, exp.Expr]) -> str:
    renamed = part.transform(
        lambda node: names[node.name].copy() if isinstance(node, exp.Column) and node.name in names else node
    ).unnest()
    turned = _TURNED.get(type(renamed))
    if turned is not None:
        return render(turned(this=renamed.expression, expression=renamed.this))
    if isinstance(renamed, _SYMMETRIC):
        sides = sorted((render(renamed.this), render(renamed.expression)))
        return f" {renamed.key} ".join(sides)
    return render(renamed)
