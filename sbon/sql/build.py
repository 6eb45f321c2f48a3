"""From the syntax tree of a query to a logical plan over attributes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from sqlglot import exp

from sbon.errors import QueryError
from sbon.sql.catalog import Catalog
from sbon.sql.check import check_expression, check_join, check_select, check_source, check_union
from sbon.sql.dialect import column, parse_columns, place, render
from sbon.sql.grouping import aggregates, group_by_window
from sbon.sql.joined_windows import Windowed, grouped_by_window, joined_in_time, windowed
from sbon.sql.logical_plan import Compute, Filter, Join, Output, Plan, Scan, Union, bare, conjuncts
from sbon.sql.names import Namer, Scope, is_star, output_name, struct_fields


@dataclass(frozen=True, slots=True)
class _Common:
    """A WITH query and the ones it can see itself. Each use of it is planned anew."""

    query: exp.Query
    visible: Mapping[str, _Common]


class PlanBuilder:
    """Builds the plans of one query text; attributes are unique within one builder."""

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog
        self._namer = Namer()
        self._unnamed = 0
        #: How often results are wanted, in microseconds, by each window that says so.
        self.slides_us: list[int] = []

    def query(self, query: exp.Query, visible: Mapping[str, _Common] | None = None) -> tuple[Plan, list[Output]]:
        """The plan of a SELECT or UNION ALL and its named columns in order. Raises QueryError."""
        visible = self._with(query, visible or {})
        if isinstance(query, exp.Subquery):
            check_source(query)
            return self.query(query.this, visible)
        if isinstance(query, exp.Select):
            return self._select(query, visible)
        return self._union(query, visible)

    def _with(self, query: exp.Query, visible: Mapping[str, _Common]) -> Mapping[str, _Common]:
        clause = query.args.get("with_")
        if clause is None:
            return visible
        if clause.args.get("recursive"):
            raise QueryError(f"WITH RECURSIVE{place(clause)} is not supported; use plain WITH")
        for common in clause.expressions:
            if common.args["alias"].args.get("columns"):
                raise QueryError(
                    f"column names after WITH{place(common)} are not supported; name them with AS in its SELECT"
                )
            if not isinstance(common.this, exp.Query):
                raise QueryError(f"WITH {common.alias}{place(common)} needs a SELECT; write WITH name AS (SELECT ...)")
            visible = {**visible, common.alias.lower(): _Common(common.this, visible)}
        return visible

    def _union(self, union: exp.Query, visible: Mapping[str, _Common]) -> tuple[Plan, list[Output]]:
        branches: list[tuple[Plan, list[Output]]] = []
        pending: list[exp.Expr] = [union]
        while pending:
            part = pending.pop()
            if isinstance(part, exp.SetOperation) and (part is union or part.args.get("with_") is None):
                check_union(part)
                pending += [part.args["expression"], part.this]
            else:
                assert isinstance(part, exp.Query)
                branches.append(self.query(part, visible))
        first = branches[0][1]
        for _, outputs in branches[1:]:
            if len(outputs) != len(first):
                counts = " and ".join(str(len(outputs)) for _, outputs in branches)
                raise QueryError(f"UNION ALL{place(union)} of {counts} columns; select the same number in each part")
        columns = tuple(self._namer.attribute("union", o.name or f"c{i}") for i, o in enumerate(first, start=1))
        plan = Union(
            inputs=tuple(branch for branch, _ in branches),
            columns=columns,
            expressions=tuple(tuple(output.expression for output in outputs) for _, outputs in branches),
        )
        return plan, [Output(o.name, column(attribute)) for o, attribute in zip(first, columns, strict=True)]

    def _select(self, select: exp.Select, visible: Mapping[str, _Common]) -> tuple[Plan, list[Output]]:
        check_select(select)
        plan, scope, sources = self._from(select, visible)
        where = select.args.get("where")
        if where is not None:
            check_expression(where.this, clause="WHERE")
            plan = Filter(plan, scope.resolve(where.this))
        for item in select.expressions:
            if not isinstance(item, exp.Star):
                check_expression(item, clause="SELECT", aggregates=True)
        having, group = select.args.get("having"), select.args.get("group")
        if having is not None:
            check_expression(having.this, clause="HAVING", aggregates=True)
        if group is not None or having is not None or any(aggregates(item) for item in select.expressions):
            if len(sources) == 1:
                return group_by_window(grouped_by_window(select, sources[0]), plan, scope, self._namer)
            return group_by_window(select, plan, scope, self._namer)
        self.slides_us += [source.window.slide_us for source in sources if source.window and source.window.slide_us]
        return plan, self._outputs(select, scope)

    def _from(self, select: exp.Select, visible: Mapping[str, _Common]) -> tuple[Plan, Scope, list[Windowed]]:
        first = select.args["from_"].this
        alias, plan, outputs = self._relation(first, visible)
        relations = {alias: outputs}
        sources = [windowed(first, alias, plan, outputs)]
        for join in select.args.get("joins") or ():
            check_join(join)
            alias, right, outputs = self._relation(join.this, visible)
            if alias.lower() in (known.lower() for known in relations):
                raise QueryError(f"'{alias}'{place(join.this)} is twice in FROM; give one an alias: {alias} AS other")
            relations[alias] = outputs
            on = join.args.get("on")
            condition: tuple[exp.Expr, ...] = ()
            if on is not None and not (isinstance(on, exp.Boolean) and on.this):
                check_expression(on, clause="ON")
                condition = tuple(conjuncts(Scope(relations, {}).resolve(on)))
            source = windowed(join.this, alias, right, outputs)
            in_time = joined_in_time(sources, source)
            sources.append(source)
            plan = Join(plan, right, (*condition, *in_time), place(join.this))
        return plan, Scope(relations, {}), sources

    def _relation(self, source: exp.Expr, visible: Mapping[str, _Common]) -> tuple[str, Plan, list[Output]]:
        """A FROM item: its alias, plan and columns."""
        check_source(source)
        if isinstance(source, exp.Table):
            name = ".".join(part.name for part in source.parts)
            alias = source.alias or source.name
            common = visible.get(name.lower())
            if common is None:
                plan, outputs = self._scan(name, alias, place(source))
                return alias, plan, outputs
            plan, outputs = self.query(common.query, common.visible)
        else:
            assert isinstance(source, exp.Subquery)
            self._unnamed += 1
            alias = source.alias or f"subquery{self._unnamed}"
            plan, outputs = self.query(source.this, self._with(source, visible))
        return alias, *self.name_columns(plan, outputs, alias)

    def name_columns(self, plan: Plan, outputs: list[Output], alias: str) -> tuple[Plan, list[Output]]:
        """Give a subquery's computed columns attributes of their own: they are computed where they are written."""
        computed: list[tuple[str, exp.Expr]] = []
        named: list[Output] = []
        for output in outputs:
            if bare(output.expression) is not None or struct_fields(output.expression) is not None:
                named.append(output)
                continue
            attribute = self._namer.attribute(alias, output.name or "unnamed")
            computed.append((attribute, output.expression))
            named.append(Output(output.name, column(attribute)))
        return (Compute(plan, tuple(computed)) if computed else plan), named

    def _scan(self, name: str, alias: str, where: str) -> tuple[Plan, list[Output]]:
        stream, _ = self._catalog.stream(name, where)
        columns = tuple(
            (self._namer.attribute(alias, column_name), column_name, kind)
            for column_name, kind in parse_columns(stream.schema).items()
        )
        if stream.event_time not in (column_name for _, column_name, _ in columns):
            raise QueryError(
                f"stream '{stream.name}': its event_time '{stream.event_time}' is not in its schema; correct it"
            )
        return Scan(stream, columns), [Output(column_name, column(attribute)) for attribute, column_name, _ in columns]

    def _outputs(self, select: exp.Select, scope: Scope) -> list[Output]:
        outputs: list[Output] = []
        for item in select.expressions:
            if is_star(item):
                if item.args.get("except_") or item.args.get("replace") or item.args.get("rename"):
                    raise QueryError(
                        f"EXCEPT in a select list{place(item)} is not supported; list the columns that you want"
                    )
                star = item.this if isinstance(item, exp.Column) else item
                if any(star.args.values()):
                    raise QueryError(f"{render(item)}{place(item)} is not supported; list the columns that you want")
                outputs += scope.outputs(item)
            else:
                inner = item.this if isinstance(item, exp.Alias) else item
                outputs.append(Output(output_name(item), scope.resolve(inner)))
        return outputs
