"""Name resolution: which attribute a name in the text means, without case, as Spark does it."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from sqlglot import exp

from sbon.errors import QueryError
from sbon.sql.dialect import column, place
from sbon.sql.logical_plan import Output
from sbon.sql.spelling import nearest

_WINDOW_STRUCT = "named_struct"


class Namer:
    """Makes attribute names that are unique in one plan, differ in more than case, and need no quotes in Spark."""

    def __init__(self) -> None:
        self._taken: set[str] = set()

    def attribute(self, alias: str, name: str) -> str:
        """``f__origin`` for the column ``origin`` of ``f``; with a number at its end if that is taken."""
        stem = re.sub(r"[^A-Za-z0-9_]", "_", f"{alias}__{name}")
        stem = stem if stem[0].isalpha() else f"t{stem}"
        unique, number = stem, 1
        while unique.lower() in self._taken:
            number += 1
            unique = f"{stem}_{number}"
        self._taken.add(unique.lower())
        return unique


@dataclass(frozen=True, slots=True)
class Scope:
    """What the FROM clause offers: per alias its columns, in order.

    ``extra`` are further names; they come before the columns if ``extra_first`` (so HAVING sees aliases), else after.
    """

    relations: Mapping[str, Sequence[Output]]
    extra: Mapping[str, exp.Expr]
    extra_first: bool = False

    def outputs(self, star: exp.Expr) -> list[Output]:
        """What ``*`` or ``f.*`` stands for."""
        table = star.args.get("table")
        if table is None:
            return [output for outputs in self.relations.values() for output in outputs]
        alias = self._alias(table.name)
        if alias is None:
            raise self._unknown_relation(table.name, star)
        return list(self.relations[alias])

    def resolve(self, expression: exp.Expr) -> exp.Expr:
        """``expression`` over attributes. Raises QueryError for names that are unknown or ambiguous."""
        resolved = expression.transform(lambda node: self._placed(node) if isinstance(node, exp.Column) else node)
        return simplify_structs(resolved)

    def has_column(self, name: str) -> bool:
        return any(_same(output.name, name) for outputs in self.relations.values() for output in outputs)

    def _placed(self, node: exp.Column) -> exp.Expr:
        """What the column means, with the place of the name, for errors that come later."""
        found = self._column(node)
        found.meta.update(node.parts[0].meta)
        return found

    def _column(self, node: exp.Column) -> exp.Expr:
        if isinstance(node.this, exp.Star):
            raise QueryError(f"'*'{place(node)} can only stand alone in a SELECT or in count(*); list the columns")
        parts = [part.name for part in node.parts]
        name, fields = parts[0], parts[1:]
        if self.extra_first and name.lower() in self.extra:
            return _fields(self.extra[name.lower()], fields)
        alias = self._alias(name) if fields else None
        if alias is not None:
            found = [output.expression for output in self.relations[alias] if _same(output.name, fields[0])]
            if not found:
                known = [output.name for output in self.relations[alias] if output.name is not None]
                raise self._unknown(f"{name}.{fields[0]}", fields[0], known, node)
            name, fields = f"{name}.{fields[0]}", fields[1:]
        else:
            every = [output for outputs in self.relations.values() for output in outputs]
            found = [output.expression for output in every if _same(output.name, name)]
            if not found and name.lower() in self.extra:
                found = [self.extra[name.lower()]]
            if not found and fields and name.lower() != "window":
                raise self._unknown_relation(name, node)
            if not found:
                raise self._unknown(name, name, [output.name for output in every if output.name is not None], node)
        if len(found) > 1:
            owners = [
                f"{owner}.{name}" for owner, outputs in self.relations.items() for o in outputs if _same(o.name, name)
            ]
            remedy = f"write {' or '.join(owners)}" if len(set(owners)) > 1 else "rename one with AS"
            raise QueryError(f"column '{name}'{place(node)} is ambiguous; {remedy}")
        return _fields(found[0], fields)

    def _alias(self, name: str) -> str | None:
        return next((alias for alias in self.relations if _same(alias, name)), None)

    def _unknown_relation(self, name: str, node: exp.Expr) -> QueryError:
        return QueryError(f"unknown relation '{name}'{place(node)}; FROM has {', '.join(self.relations)}")

    def _unknown(self, written: str, name: str, known: list[str], node: exp.Expr) -> QueryError:
        if name.lower() == "window":
            return QueryError(f"'{written}'{place(node)} needs GROUP BY window(...) in the same SELECT; add it")
        there = ", ".join(dict.fromkeys(known)) or "none has a name, give it one with AS"
        return QueryError(f"unknown column '{written}'{place(node)}{nearest(name, known)}; known columns: {there}")


def window_struct(start: str, end: str) -> exp.Expr:
    """The value of Spark's column ``window``, a struct of its bounds."""
    parts = [exp.Literal.string("start"), column(start), exp.Literal.string("end"), column(end)]
    return exp.Anonymous(this=_WINDOW_STRUCT, expressions=parts)


def struct_fields(node: exp.Expr) -> dict[str, exp.Expr] | None:
    """The parts of a struct that is built in place, None if it is not one."""
    if not (isinstance(node, exp.Anonymous) and str(node.this).lower() == _WINDOW_STRUCT):
        return None
    names, values = node.expressions[::2], node.expressions[1::2]
    return {name.name.lower(): value for name, value in zip(names, values, strict=False)}


def _fields(value: exp.Expr, names: Sequence[str]) -> exp.Expr:
    value = value.copy()
    for name in names:
        value = exp.Dot(this=value, expression=exp.to_identifier(name, quoted=True))
    return value


def is_star(item: exp.Expr) -> bool:
    """Whether an item of a SELECT list is ``*`` or ``f.*``."""
    return isinstance(item, exp.Star) or (isinstance(item, exp.Column) and isinstance(item.this, exp.Star))


def output_name(item: exp.Expr) -> str | None:
    """The name that Spark gives to an item of a SELECT list; None where Spark would make one up."""
    if isinstance(item, exp.Alias):
        return str(item.alias)
    if isinstance(item, exp.Column):
        return str(item.name)
    return str(item.expression.name) if isinstance(item, exp.Dot) else None


def simplify_structs(expression: exp.Expr) -> exp.Expr:
    """Field access on a struct built in place is the field; equality of two such structs that of their fields.

    So a window that passes through a subquery stays two columns of event time.
    """
    return expression.transform(_simplified)


def _simplified(node: exp.Expr) -> exp.Expr:
    if isinstance(node, exp.Dot):
        inner = _simplified(node.this)
        fields = struct_fields(inner)
        if fields is not None:
            if node.expression.name.lower() not in fields:
                raise QueryError(f"'{node.expression.name}'{place(node)} is no part of it; it has {', '.join(fields)}")
            return fields[node.expression.name.lower()].copy()
    if isinstance(node, exp.EQ):
        left, right = struct_fields(node.this.unnest()), struct_fields(node.expression.unnest())
        if left and right and left.keys() == right.keys():
            return exp.and_(*(exp.EQ(this=left[name].copy(), expression=right[name].copy()) for name in left))
    return node


def _same(one: str | None, other: str) -> bool:
    return one is not None and one.lower() == other.lower()
