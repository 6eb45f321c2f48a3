"""The logical plan: relational algebra over attributes with unique names.

Every column that a plan node makes is an *attribute*, a name such as ``f__origin`` that no other node of the plan uses
and that needs no quoting; expressions are sqlglot trees whose columns are attributes. Renaming is no operator: a column
that passes through a subquery keeps its attribute, so that predicates and columns move through a plan by substitution
alone (as in Spark's Catalyst).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from sqlglot import exp

from sbon.sql.dialect import column, render
from sbon.streams import StreamSpec


@dataclass(frozen=True, slots=True, eq=False)
class Scan:
    """All columns of a stream, as (attribute, name in the stream, declared type)."""

    stream: StreamSpec
    columns: tuple[tuple[str, str, str], ...]


@dataclass(frozen=True, slots=True, eq=False)
class Filter:
    """``is_start``: no part of what is computed; it says from which event time on (:mod:`sbon.sql.late_start`)."""

    input: Plan
    condition: exp.Expr
    is_start: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class Compute:
    """The input's columns and further ones, as (attribute, expression over the input)."""

    input: Plan
    columns: tuple[tuple[str, exp.Expr], ...]


@dataclass(frozen=True, slots=True, eq=False)
class Join:
    """Inner join; ``condition`` is a conjunction. ``place`` says where in the text it stands."""

    left: Plan
    right: Plan
    condition: tuple[exp.Expr, ...]
    place: str


@dataclass(frozen=True, slots=True, eq=False)
class Union:
    """UNION ALL: the attributes it makes, and per input the expressions that feed them, in order."""

    inputs: tuple[Plan, ...]
    columns: tuple[str, ...]
    expressions: tuple[tuple[exp.Expr, ...], ...]


@dataclass(frozen=True, slots=True, eq=False)
class TimeWindow:
    """Windows of ``length_us`` every ``slide_us`` microseconds over the attribute ``time``, one at ``offset_us``.

    ``call`` is how Spark writes it; ``start`` and ``end`` are the attributes of the bounds.
    """

    call: exp.Expr
    time: str
    length_us: int
    slide_us: int
    offset_us: int
    start: str
    end: str
    place: str


@dataclass(frozen=True, slots=True, eq=False)
class Aggregate:
    """Groups by a window of event time and ``keys``, computes ``measures``; both as (attribute, expression)."""

    input: Plan
    window: TimeWindow
    keys: tuple[tuple[str, exp.Expr], ...]
    measures: tuple[tuple[str, exp.Expr], ...]

    def definitions(self) -> dict[str, exp.Expr]:
        """What each output attribute is in Spark SQL, beside the GROUP BY."""
        bounds = {
            self.window.start: exp.Column(this=exp.to_identifier("start"), table=exp.to_identifier("window")),
            self.window.end: exp.Column(this=exp.to_identifier("end"), table=exp.to_identifier("window")),
        }
        return {**bounds, **dict(self.keys), **dict(self.measures)}


@dataclass(frozen=True, slots=True, eq=False)
class Reused:
    """The output of a fragment of another query, or of the same one: its columns as (attribute, name there).

    ``instead_of`` is what would have to be computed without it; ``time`` is the attribute of its event time.
    ``first_batch`` is where reading begins. ``surplus``: it is expected to have so many times more rows than that.
    ``whole_from_ms``: rows of earlier times may be missing, in ms since the epoch; None: it is known to have all.
    """

    fragment_id: str
    columns: tuple[tuple[str, str], ...]
    time: str
    instead_of: Plan
    first_batch: int = 0
    surplus: float = 1.0
    whole_from_ms: int | None = None


Plan = Scan | Filter | Compute | Join | Union | Aggregate | Reused


@dataclass(frozen=True, slots=True, eq=False)
class Output:
    """A named expression over a plan; ``name`` is None where the user gave none."""

    name: str | None
    expression: exp.Expr


def attributes(plan: Plan) -> tuple[str, ...]:
    """What the plan's rows have, in order."""
    match plan:
        case Scan():
            return tuple(attribute for attribute, _, _ in plan.columns)
        case Filter():
            return attributes(plan.input)
        case Compute():
            return attributes(plan.input) + tuple(attribute for attribute, _ in plan.columns)
        case Join():
            return attributes(plan.left) + attributes(plan.right)
        case Union():
            return plan.columns
        case Aggregate():
            return tuple(plan.definitions())
        case Reused():
            return tuple(attribute for attribute, _ in plan.columns)


def declared_types(plan: Plan) -> dict[str, str]:
    """Types of the attributes that come unchanged from streams; the others are only known to Spark."""
    match plan:
        case Scan():
            return {attribute: kind for attribute, _, kind in plan.columns}
        case Filter() | Compute():
            return declared_types(plan.input)
        case Join():
            return declared_types(plan.left) | declared_types(plan.right)
        case Union():
            types = [declared_types(branch) for branch in plan.inputs]
            found: dict[str, str] = {}
            for attribute, *sources in zip(plan.columns, *plan.expressions, strict=True):
                kinds = {known.get(bare(source) or "") for known, source in zip(types, sources, strict=True)}
                kind = kinds.pop()
                if kind is not None and not kinds:
                    found[attribute] = kind
            return found
        case Aggregate():
            known = declared_types(plan.input)
            return {key: known[name] for key, source in plan.keys if (name := bare(source)) in known and name}
        case Reused():
            return declared_types(plan.instead_of)


def bare(expression: exp.Expr) -> str | None:
    """The attribute's name if the expression is nothing but an attribute."""
    inner = expression.unnest()
    return inner.name if isinstance(inner, exp.Column) and not inner.table else None


def used(*expressions: exp.Expr) -> set[str]:
    """Names of the attributes that occur in the expressions."""
    return {node.name for expression in expressions for node in expression.find_all(exp.Column)}


def substitute(expression: exp.Expr, definitions: Mapping[str, exp.Expr]) -> exp.Expr:
    """``expression`` with attributes replaced by their definitions. Repeating them is safe: all are deterministic."""

    def replaced(node: exp.Expr) -> exp.Expr:
        definition = definitions.get(node.name) if isinstance(node, exp.Column) and not node.table else None
        if definition is None:
            return node
        closed = (exp.Column, exp.Literal, exp.Paren, exp.Anonymous, exp.AggFunc, exp.Cast)
        return definition.copy() if isinstance(definition, closed) else exp.Paren(this=definition.copy())

    direct = definitions.get(bare(expression) or "")
    return direct.copy() if direct is not None else expression.transform(replaced)


def conjuncts(condition: exp.Expr) -> list[exp.Expr]:
    """The parts of a conjunction, from left to right."""
    inner = condition.unnest()
    if isinstance(inner, exp.And):
        return conjuncts(inner.this) + conjuncts(inner.expression)
    return [inner]


def conjunction(parts: Iterable[exp.Expr]) -> exp.Expr:
    return exp.and_(*parts, copy=True)


def identity(names: Iterable[str]) -> tuple[Output, ...]:
    return tuple(Output(name, column(name)) for name in names)


def shown(expression: exp.Expr) -> str:
    """A resolved expression nearly as the user wrote it."""
    return render(expression.transform(lambda n: exp.Var(this=display(n.name)) if isinstance(n, exp.Column) else n))


def display(attribute: str) -> str:
    """An attribute as the user wrote it, nearly: ``f__ts`` is ``f.ts``."""
    return attribute.replace("__", ".", 1)
