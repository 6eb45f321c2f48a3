"""From the text of a query to its fragments: ``INSERT INTO sink SELECT ...`` in Spark SQL."""

from __future__ import annotations

from collections import defaultdict

from sbon.errors import QueryError
from sbon.sql.build import PlanBuilder
from sbon.sql.catalog import Catalog
from sbon.sql.check import check_insert
from sbon.sql.cut import Cutter
from sbon.sql.dialect import parse, place
from sbon.sql.logical_plan import Output, bare, display, shown
from sbon.sql.pushdown import push_filters
from sbon.sql.query_plan import QueryPlan


def plan_query(text: str, query_id: str, catalog: Catalog) -> QueryPlan:
    """Plan the one ``INSERT INTO sink SELECT ...`` in ``text``.

    The result is a function of the arguments alone: the same query gives the same fragments with the same SQL.
    Raises QueryError, one line with the construct, its place and the remedy, for everything that is not supported.
    """
    try:
        table, query = check_insert(parse(text))
        sink, sink_owner = catalog.sink(".".join(part.name for part in table.parts), place(table))
        builder = PlanBuilder(catalog)
        plan, written = builder.query(query)
        outputs = _named(written)
        cutter = Cutter(query_id)
        cutter.cut(push_filters(plan), outputs, sink, min(builder.slides_us, default=0))
    except QueryError as refusal:
        # Quoted names and literals may hold anything, line breaks too.
        raise QueryError(" ".join(str(refusal).split())) from None
    except RecursionError:
        raise QueryError("the query is nested too deeply; flatten it") from None
    owners = {
        spec.fragment_id: catalog.stream(spec.stream.name)[1] for spec in cutter.fragments if spec.stream is not None
    }
    owners[cutter.fragments[-1].fragment_id] = sink_owner
    links = tuple(
        (producer, spec.fragment_id, cutter.rates[producer])
        for spec in cutter.fragments
        for port in spec.ports
        for producer in port.producers
    )
    return QueryPlan(query_id, text, tuple(cutter.fragments), owners, links)


def _named(outputs: list[Output]) -> list[Output]:
    """Every result column with a name of its own: columns of two streams that are called the same are called after
    their streams, too. Raises QueryError where that does not help."""
    sharing: dict[str, list[Output]] = defaultdict(list)
    for output in outputs:
        sharing[_name(output).lower()].append(output)
    qualified = {
        id(output): _qualified(output)
        for same in sharing.values()
        if len(same) > 1 and all(_qualified(output) for output in same)
        for output in same
    }
    named = [Output(qualified.get(id(output), output.name), output.expression) for output in outputs]
    seen: set[str] = set()
    for output in named:
        name = output.name or ""
        if name.lower() in seen:
            raise QueryError(f"two result columns are called '{name}'; rename one with AS")
        seen.add(name.lower())
    return named


def _name(output: Output) -> str:
    if output.name is None:
        what = f"the result column {shown(output.expression)}{place(output.expression)}"
        raise QueryError(f"{what} has no name; add AS name")
    return output.name


def _qualified(output: Output) -> str:
    """``bg_status`` for the column ``status`` of ``bg``; nothing for what is no such column, or was renamed."""
    alias, _, column_name = display(bare(output.expression) or "").partition(".")
    return f"{alias}_{column_name}" if column_name.lower() == (output.name or "").lower() else ""
