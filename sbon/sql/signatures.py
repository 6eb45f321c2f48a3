"""What a part of a query computes, in a form that does not depend on how it is written.

Aliases, the order of streams, of parts of a union, of conditions and of keys, and how a condition is written
(:mod:`sbon.sql.normal_form`) make no difference; nor does in which order streams are joined, nor whether a part of it
is read from another query. Filters are kept apart, because a stream with fewer of them can stand in for one with more;
so are those on the keys of an aggregate, and those that all parts of a union have: they may as well be applied behind.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import permutations

from sqlglot import exp

from sbon.errors import QueryError
from sbon.fragment import Computes
from sbon.planning.signature import Signature
from sbon.sql.dialect import column
from sbon.sql.join_graph import JoinGraph, join_graph
from sbon.sql.late_start import complete_from
from sbon.sql.logical_plan import (
    Aggregate,
    Compute,
    Filter,
    Join,
    Output,
    Plan,
    Reused,
    Scan,
    Union,
    bare,
    declared_types,
    substitute,
    used,
)
from sbon.sql.normal_form import parts, text
from sbon.sql.pushdown import push_filters

#: Ways to tell uses of the same stream apart that are tried.
MAX_NUMBERINGS = 120


@dataclass(frozen=True, slots=True)
class Canonical:
    """A signature, and what stands behind it in the plan.

    ``definitions``: the plan's attributes in columns that are called the same for all. ``filters``: by their text in
    the signature, what they are over the plan's attributes. ``is_stream``: it is nothing but a stream, filtered.
    """

    signature: Signature
    definitions: Mapping[str, exp.Expr]
    filters: Mapping[str, exp.Expr]
    is_stream: bool = False

    def called(self, expression: exp.Expr) -> str:
        """What an expression over the plan's attributes is called by all."""
        meant = substitute(expression, self.definitions)
        return bare(meant) or text(meant)

    def filtered(self, conditions: Iterable[exp.Expr]) -> Canonical:
        new = {self.called(part): part for condition in conditions for part in parts(condition)}
        filters = {**self.filters, **new}
        return replace(self, signature=Signature(self.signature.body, frozenset(filters)), filters=filters)

    def without(self, filters: Collection[str]) -> Canonical:
        """The same without these filters, which are applied somewhere else."""
        rest = {written: part for written, part in self.filters.items() if written not in filters}
        return replace(self, signature=Signature(self.signature.body, frozenset(rest)), filters=rest)

    @property
    def whole(self) -> str:
        """Body and filters, as a part of something else."""
        filters = " AND ".join(f"({part})" for part in sorted(self.filters))
        if filters:
            return f"({self.signature.body} WHERE {filters})"
        return self.signature.body if self.is_stream else f"({self.signature.body})"


def canonical(plan: Plan) -> Canonical:
    """Of a plan whose filters have been pushed down."""
    return _canonical(_computed_anew(plan))


def canonical_join(graph: JoinGraph, numbers: Iterable[int]) -> Canonical:
    """Of the join of these inputs, with all conditions between them."""
    inputs = (canonical(graph.inputs[number]) for number in numbers)
    found = sorted(inputs, key=lambda each: (each.signature.body, each.whole))
    names = {attribute for each in found for attribute in each.definitions}
    between = [part for part in graph.conditions if used(part) <= names]
    # Which of several uses of one stream is called the first is free: the least text decides.
    return min(
        (_joined(found, numbering, between) for numbering in _numberings(found)),
        key=lambda each: (each.signature.body, sorted(each.signature.filters)),
    )


def computes(plan: Plan, outputs: Sequence[Output], event_time: str | None) -> Computes | None:
    """What a fragment computes that puts out ``outputs`` of ``plan``, which may read from others; None for what others
    cannot read: it has no event time from which on they could."""
    time = next((bare(output.expression) for output in outputs if output.name == event_time), None)
    if event_time is None or time is None:
        return None
    try:
        from_ms = complete_from(plan, time)
    except QueryError:
        return None
    found = canonical(plan)
    columns = {found.called(output.expression): output.name or "" for output in outputs}
    signature = found.signature
    return Computes(
        signature.body,
        tuple(sorted(signature.filters)),
        columns,
        found.called(column(time)),
        tuple(sorted({scan.stream.name for scan in scans(_computed_anew(plan))})),
        from_ms,
    )


def scans(plan: Plan) -> list[Scan]:
    """All streams that are read, from left to right."""
    match plan:
        case Scan():
            return [plan]
        case Filter() | Compute() | Aggregate():
            return scans(plan.input)
        case Join():
            return scans(plan.left) + scans(plan.right)
        case Union():
            return [scan for branch in plan.inputs for scan in scans(branch)]
        case Reused():
            return scans(plan.instead_of)


def scan_of(plan: Plan) -> Scan | None:
    """The stream, if filters and computed columns on it are all that the plan is."""
    while isinstance(plan, (Filter, Compute)):
        plan = plan.input
    return plan if isinstance(plan, Scan) else None


def _computed_anew(plan: Plan) -> Plan:
    """The same without anything of others, and whatever point of time it begins with."""
    return push_filters(_expanded(plan))


def _expanded(plan: Plan) -> Plan:
    match plan:
        case Scan():
            return plan
        case Filter():
            below = _expanded(plan.input)
            return below if plan.is_start else Filter(below, plan.condition)
        case Compute():
            return Compute(_expanded(plan.input), plan.columns)
        case Join():
            return Join(_expanded(plan.left), _expanded(plan.right), plan.condition, plan.place)
        case Union():
            return Union(tuple(_expanded(branch) for branch in plan.inputs), plan.columns, plan.expressions)
        case Aggregate():
            return Aggregate(_expanded(plan.input), plan.window, plan.keys, plan.measures)
        case Reused():
            return _expanded(plan.instead_of)


def _canonical(plan: Plan) -> Canonical:
    match plan:
        case Scan():
            names = {attribute: column(name.lower()) for attribute, name, _ in plan.columns}
            return Canonical(Signature(plan.stream.name.lower()), names, {}, is_stream=True)
        case Filter():
            return _canonical(plan.input).filtered([plan.condition])
        case Compute():
            below = _canonical(plan.input)
            computed = {name: substitute(expression, below.definitions) for name, expression in plan.columns}
            return replace(below, definitions={**below.definitions, **computed})
        case Join():
            graph = join_graph(plan)
            return canonical_join(graph, range(len(graph.inputs)))
        case Union():
            return _of_union(plan)
        case Aggregate():
            return _of_aggregate(plan)
        case Reused():
            raise AssertionError("plans are looked at as if nothing was read from others")


def _of_union(union: Union) -> Canonical:
    branches, shared = _without_shared([_canonical(branch) for branch in union.inputs], union)
    order = sorted(range(len(branches)), key=lambda number: branches[number].whole)
    body = " UNION ALL ".join(branches[number].whole for number in order)
    fed = list(zip(*union.expressions, strict=True))
    called = [" | ".join(branches[number].called(sources[number]) for number in order) for sources in fed]
    names = {name: column(text) for name, text in zip(union.columns, called, strict=True)}
    return Canonical(Signature(body), names, {}).filtered(shared)


def _without_shared(branches: list[Canonical], union: Union) -> tuple[list[Canonical], list[exp.Expr]]:
    """The parts of a union without the filters that all of them have on its columns, and these as filters on it."""
    kept_types = declared_types(union).keys()  # of others a part may see another value
    on_union: list[dict[str, tuple[str, exp.Expr]]] = []
    for branch, sources in zip(branches, union.expressions, strict=True):
        columns = zip(union.columns, sources, strict=True)
        called = {name: column(each) for each, source in columns if each in kept_types and (name := bare(source))}
        lifted = {
            written: substitute(part, called)
            for written, part in branch.filters.items()
            if used(part) and used(part) <= called.keys()
        }
        on_union.append({text(part): (written, part) for written, part in lifted.items()})
    shared = set[str](on_union[0]).intersection(*on_union)
    rest = []
    for branch, parts_ in zip(branches, on_union, strict=True):
        gone = {parts_[each][0] for each in shared}
        rest.append(branch.without(gone))
    return rest, [on_union[0][each][1] for each in sorted(shared)]


def _of_aggregate(aggregate: Aggregate) -> Canonical:
    below, window = _canonical(aggregate.input), aggregate.window
    keys = {name: below.called(key) for name, key in aggregate.keys}
    by_input = {source: name for name, key in aggregate.keys if (source := bare(key)) is not None}
    # A condition on the keys keeps whole groups: it may as well be applied to the result.
    on_keys = {written: part for written, part in below.filters.items() if used(part) and used(part) <= by_input.keys()}
    within = below.without(on_keys).whole
    lengths = (window.length_us, window.slide_us, window.offset_us % window.slide_us)
    call = f"window({below.called(column(window.time))}, {', '.join(str(length) for length in lengths)})"
    body = f"{within} GROUP BY {', '.join((call, *sorted(set(keys.values()))))}"
    measures = {name: below.called(measure) for name, measure in aggregate.measures}
    # Names of columns are in small letters here, so none of them is called so.
    called = {window.start: "WINDOW.start", window.end: "WINDOW.end", **keys, **measures}
    found = Canonical(Signature(body), {name: column(text) for name, text in called.items()}, {})
    behind = {source: column(name) for source, name in by_input.items()}
    return found.filtered(substitute(part, behind) for part in on_keys.values())


def _joined(inputs: Sequence[Canonical], numbering: tuple[int, ...], between: Sequence[exp.Expr]) -> Canonical:
    labels = [f"{_label(each)}{number}" for each, number in zip(inputs, numbering, strict=True)]
    definitions: dict[str, exp.Expr] = {}
    filters: list[exp.Expr] = []
    for each, label in zip(inputs, labels, strict=True):
        definitions |= {name: _of(label, expression) for name, expression in each.definitions.items()}
        filters += each.filters.values()
    found = Canonical(Signature(""), definitions, {})
    listed = sorted(
        label if each.is_stream else f"({each.signature.body}) AS {label}"
        for each, label in zip(inputs, labels, strict=True)
    )
    conditions = sorted({found.called(part) for condition in between for part in parts(condition)})
    body = ", ".join(listed) + (" ON " + " AND ".join(conditions) if conditions else "")
    return replace(found, signature=Signature(body)).filtered(filters)


def _of(label: str, expression: exp.Expr) -> exp.Expr:
    """What is a column of an input is called after that, too."""
    return expression.transform(
        lambda node: column(f"{label}__{node.name}") if isinstance(node, exp.Column) and not node.table else node
    )


def _label(each: Canonical) -> str:
    body = each.signature.body
    return body if each.is_stream else f"v{hashlib.blake2b(body.encode(), digest_size=4).hexdigest()}_"


def _numberings(inputs: Sequence[Canonical]) -> Iterable[tuple[int, ...]]:
    """Ways to number the uses of each input from 1. They are sorted by body.

    A single one where there would be too many: such joins may then be the same and not be found to be.
    """
    bodies = [each.signature.body for each in inputs]
    count = math.prod(math.factorial(bodies.count(body)) for body in set(bodies))
    ways: list[tuple[int, ...]] = [()]
    position = 0
    while position < len(bodies):
        same = bodies.count(bodies[position])
        numberings = permutations(range(1, same + 1)) if count <= MAX_NUMBERINGS else [tuple(range(1, same + 1))]
        ways = [way + part for way in ways for part in numberings]
        position += same
    return ways
