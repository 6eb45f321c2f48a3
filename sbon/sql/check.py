"""Refusals of what the statement *is*, before names are looked up: one line with the construct, its place, the remedy.

The lists are of what is supported; anything else that the parser may learn to read one day is refused, not ignored.
"""

from __future__ import annotations

from sqlglot import exp

from sbon.errors import QueryError
from sbon.sql.dialect import place, render
from sbon.sql.functions import check_function, is_aggregate

_SHAPE = "write INSERT INTO sink SELECT ..."
_WINDOW_FIRST = "aggregate per window of event time first, with GROUP BY window(ts, '1 hour')"

#: Parts of a SELECT or of a set operation, by sqlglot's name for them: what to call them, what to do instead.
_CLAUSES = {
    "distinct": ("DISTINCT", "group by the columns and a window of event time, with GROUP BY window(ts, '1 hour')"),
    "order": ("ORDER BY", "remove it: a stream has no end; sort the result where it is read"),
    "sort": ("SORT BY", "remove it; sort the result where it is read"),
    "limit": ("LIMIT", "remove it: a stream has no end"),
    "offset": ("OFFSET", "remove it: a stream has no end"),
    "cluster": ("CLUSTER BY", "remove it: placement is decided by the overlay"),
    "distribute": ("DISTRIBUTE BY", "remove it: placement is decided by the overlay"),
    "hint": ("a hint (/*+ ... */)", "remove it: placement is decided by the overlay"),
    "laterals": ("LATERAL VIEW", "unnest before the stream enters, at its source"),
    "pivots": ("PIVOT", "use max(CASE WHEN ... END) per column"),
    "qualify": ("QUALIFY", _WINDOW_FIRST),
    "windows": ("a named window", _WINDOW_FIRST),
    "sample": ("TABLESAMPLE", "use a condition on a hash of a key, as pmod(hash(id), 10) = 0"),
    "version": ("time travel (AS OF)", "remove it: a stream has no versions"),
    "by_name": ("BY NAME", "list the columns in order"),
    "kind": ("SELECT AS", "list the columns"),
    "source": ("TABLE as a query", "write SELECT * FROM it"),
    "exclude": ("EXCEPT in a select list", "list the columns that you want"),
}
_SELECT_PARTS = {"expressions", "from_", "joins", "where", "group", "having", "with_"}
_UNION_PARTS = {"this", "expression", "distinct", "with_"}
_TABLE_PARTS = {"this", "db", "catalog", "alias"}
_SUBQUERY_PARTS = {"this", "alias", "with_"}
_JOIN_PARTS = {"this", "on", "kind", "side", "method", "using"}
_GROUP_PARTS = {"expressions"}


def check_inserts(statements: list[exp.Expr]) -> list[tuple[exp.Table, exp.Query]]:
    """The sink and the query of each INSERT in ``statements``."""
    if not statements:
        raise QueryError(f"the query is empty; {_SHAPE}")
    for statement in statements:
        if not isinstance(statement, exp.Insert):
            what = "CREATE, SET and the like are" if isinstance(statement, exp.Command) else _statement_name(statement)
            raise QueryError(f"{what} not an INSERT{place(statement)}; {_SHAPE}")
    return [_check_insert(statement) for statement in statements if isinstance(statement, exp.Insert)]


def _check_insert(insert: exp.Insert) -> tuple[exp.Table, exp.Query]:
    if insert.args.get("overwrite"):
        raise QueryError(f"INSERT OVERWRITE{place(insert)} is not supported: a stream only appends; {_SHAPE}")
    if isinstance(insert.this, exp.Schema):
        raise QueryError(f"a column list after the sink{place(insert.this)} is not supported; name columns with AS")
    _only(insert, {"this", "expression", "with_", "hint"}, "INSERT")
    if not isinstance(insert.this, exp.Table):
        raise QueryError(f"INSERT{place(insert)} needs the name of a sink; {_SHAPE}")
    _only(insert.this, {"this", "db", "catalog"}, "the sink")
    if isinstance(insert.expression, exp.Values):
        raise QueryError(f"VALUES{place(insert.expression)} is not supported; {_SHAPE}")
    if not isinstance(insert.expression, exp.Query):
        raise QueryError(f"INSERT{place(insert)} needs a SELECT; {_SHAPE}")
    return insert.this, insert.expression


def check_select(select: exp.Select) -> None:
    _only(select, _SELECT_PARTS, "SELECT")
    if select.args.get("from_") is None:
        raise QueryError(f"SELECT without FROM{place(select)}; read a stream: SELECT ... FROM stream")
    group = select.args.get("group")
    if group is not None:
        parts = [key for key in group.expressions if isinstance(key, (exp.Cube, exp.Rollup, exp.GroupingSets))]
        words = [part for part in ("cube", "rollup", "grouping_sets", "all", "totals") if group.args.get(part)]
        if parts or words:
            what = (words[0] if words else parts[0].key.replace("groupings", "grouping_s")).replace("_", " ").upper()
            raise QueryError(
                f"GROUP BY {what}{place(group) or place(select)} is not supported; use plain keys and a window"
            )
        _only(group, _GROUP_PARTS, "GROUP BY")


def check_union(union: exp.Query) -> None:
    if isinstance(union, (exp.Intersect, exp.Except)):
        what = "INTERSECT" if isinstance(union, exp.Intersect) else "EXCEPT"
        raise QueryError(f"{what}{place(union)} is not supported; use a join with a time bound, or a condition")
    if not isinstance(union, exp.Union):
        raise QueryError(f"{_statement_name(union)} not a SELECT{place(union)}; {_SHAPE}")
    if union.args.get("distinct"):
        raise QueryError(f"UNION{place(union.expression)} without ALL is not supported; use UNION ALL")
    _only(union, _UNION_PARTS, "UNION ALL")


def check_source(source: exp.Expr) -> None:
    """A FROM item: a stream, a CTE or a subquery."""
    if isinstance(source, exp.Values):
        raise QueryError(f"VALUES{place(source)} is not supported in FROM; read a stream")
    if isinstance(source, (exp.Lateral, exp.Unnest)):
        raise QueryError(f"LATERAL{place(source)} is not supported; unnest before the stream enters, at its source")
    if isinstance(source, exp.Subquery):
        if isinstance(source.this, exp.Table):
            raise QueryError(
                f"a join in parentheses{place(source)} is not supported; write FROM a JOIN b ON ... JOIN c ON ..."
            )
        _only(source, _SUBQUERY_PARTS, "a subquery")
    elif isinstance(source, exp.Table):
        if not isinstance(source.this, exp.Identifier):
            raise QueryError(f"{render(source.this)}{place(source)} is not supported in FROM; read a stream")
        if source.args.get("joins"):
            raise QueryError(
                f"a join in parentheses{place(source)} is not supported; write FROM a JOIN b ON ... JOIN c ON ..."
            )
        _only(source, _TABLE_PARTS, "a stream")
    else:
        raise QueryError(f"{render(source)}{place(source)} is not supported in FROM; read a stream")
    alias = source.args.get("alias")
    if alias is not None and alias.args.get("columns"):
        raise QueryError(
            f"column names after an alias{place(alias)} are not supported; name columns with AS in the SELECT"
        )


def check_join(join: exp.Join) -> None:
    words = " ".join(str(join.args.get(part) or "") for part in ("method", "side", "kind")).split()
    kind = " ".join(words).upper()
    remedy = "use JOIN ... ON keys are equal AND event times are close"
    if kind not in ("", "INNER", "CROSS"):
        raise QueryError(f"{kind} JOIN{place(join.this)} is not supported; {remedy}")
    if join.args.get("using"):
        raise QueryError(f"JOIN ... USING{place(join.this)} is not supported; {remedy}")
    _only(join, _JOIN_PARTS, "JOIN")


def check_expression(expression: exp.Expr, *, clause: str, aggregates: bool = False) -> None:
    """Refuse what an expression may not contain. ``aggregates``: whether ``clause`` may have aggregate functions."""
    query = expression.find(exp.Query)
    if query is not None:
        raise QueryError(f"a subquery in {clause}{place(query)} is not supported; use a join with a time bound")
    for node in expression.walk():
        match node:
            case exp.Window():
                raise QueryError(f"OVER (...){place(node)} is not supported on streams; {_WINDOW_FIRST}")
            case exp.Distinct():
                inside = node.parent.sql_name().lower() if isinstance(node.parent, exp.Func) else "an aggregate"
                remedy = "use approx_count_distinct(...)" if inside == "count" else "remove DISTINCT"
                raise QueryError(f"DISTINCT in {inside}{place(node)} is not supported on streams; {remedy}")
            case exp.Placeholder() | exp.Parameter() | exp.SessionParameter():
                where = place(node.parent or node)
                raise QueryError(f"the parameter {render(node)}{where} has no value; give it with --param, or write it")
            case exp.Lambda():
                raise QueryError(
                    f"a lambda{place(node)} is not supported; compute it before the stream enters, at its source"
                )
            case exp.WithinGroup() | exp.Order() | exp.IgnoreNulls() | exp.RespectNulls():
                raise QueryError(
                    f"{render(node)}{place(node)} depends on the order of rows, which streams lack; remove it"
                )
        check_function(node)
        if is_aggregate(node):
            if not aggregates:
                raise QueryError(
                    f"the aggregate {render(node)}{place(node)} cannot stand in {clause}; use HAVING or a subquery"
                )
            inner = next((part for part in node.walk() if part is not node and _nested_aggregate(node, part)), None)
            if inner is not None:
                raise QueryError(f"{render(inner)}{place(inner)} is inside another aggregate; compute it in a subquery")


def _nested_aggregate(outer: exp.Expr, part: exp.Expr) -> bool:
    return is_aggregate(part) and not (isinstance(outer, exp.Filter) and part is outer.this)


def _only(node: exp.Expr, supported: set[str], what: str) -> None:
    for part, value in node.args.items():
        if value and part not in supported:
            name, remedy = _CLAUSES.get(part, (part.strip("_").upper(), "remove it"))
            first = value[0] if isinstance(value, list) else value
            where = (place(first) if isinstance(first, exp.Expr) else "") or place(node)
            raise QueryError(f"{name}{where} is not supported in {what}; {remedy}")


def _statement_name(statement: exp.Expr) -> str:
    return f"{statement.key.upper()} is"
