"""From the text of a query to its fragments: ``INSERT INTO sink SELECT ...`` in Spark SQL, once or several times.

Several statements make one plan with several sinks: what one of them has already, a later one reads.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace

from sqlglot import exp

from sbon.errors import QueryError
from sbon.fragment import Start
from sbon.sql.build import PlanBuilder
from sbon.sql.catalog import Catalog
from sbon.sql.check import check_inserts
from sbon.sql.check_types import check_types
from sbon.sql.common_parts import Begin, computed_once
from sbon.sql.cut import Cutter
from sbon.sql.dialect import parse, place
from sbon.sql.late_start import begin
from sbon.sql.logical_plan import Output, Plan, bare, display, shown
from sbon.sql.pushdown import push_filters
from sbon.sql.query_plan import QueryPlan
from sbon.sql.reorder import Choose, as_written, reorder
from sbon.sql.reuse import Offers, View, reads, views, with_views
from sbon.streams import SinkSpec


@dataclass(frozen=True)
class Prepared:
    """A query that has been read, before its joins are put into an order and it is cut."""

    text: str
    plan: Plan
    outputs: tuple[Output, ...]
    sink: SinkSpec
    owners: Mapping[str, str]
    sink_owner: str
    interval_us: int
    #: Event times before this one, in ms since the epoch, are left out.
    from_ms: int | None = None
    #: The statements after this one, in the same text.
    further: tuple[Prepared, ...] = ()
    #: Fragments of the same query that run, and are not to be made anew; what is made is called after ``name``.
    own: Offers = field(default_factory=dict)
    name: str = ""

    @property
    def statements(self) -> tuple[Prepared, ...]:
        return (self, *self.further)

    @property
    def reads(self) -> tuple[str, ...]:
        """The fragments that run and that it reads whatever the order of its joins."""
        return tuple(dict.fromkeys((*self.own, *reads(self.plan))))

    def beside(self, own: Offers, name: str) -> Prepared:
        """The same query once more, beside the one that runs, over those of its sources (fragments by id) that do."""
        further = tuple(replace(each, own=own) for each in self.further)
        return replace(self, own=own, name=name, further=further)

    def cut(self, query_id: str, choose: Choose = as_written, starts: Mapping[str, Start] | None = None) -> QueryPlan:
        """Its fragments, joins as ``choose`` says. Raises QueryError if it cannot run on streams.

        ``starts``: where it begins to read the fragments of other queries, by id; from their beginnings unless said.
        """
        cutter, sinks = Cutter(query_id, self.name or query_id), dict[str, str]()
        with _one_line():
            for each in self.statements:

                def begun(plan: Plan, cutter: Cutter, from_ms: int | None = each.from_ms) -> Plan:
                    return begin(plan, starts or {}, from_ms, cutter.whole_from_ms)

                plan = self._first(choose) if each is self else each._after(cutter, begun)
                plan, cutter = computed_once(plan, each.outputs, cutter, begun)
                cutter.cut(begun(plan, cutter), each.outputs, each.sink, each.interval_us)
                sinks[cutter.fragments[-1].fragment_id] = each.sink_owner
        sources = {spec.fragment_id: self.owners[spec.stream.name] for spec in cutter.fragments if spec.stream}
        rates: defaultdict[tuple[str, str], float] = defaultdict(float)
        for spec in cutter.fragments:
            for port in spec.ports:
                for producer in port.producers:
                    rates[producer, spec.fragment_id] += cutter.rates[producer]
        links = tuple((producer, consumer, rate) for (producer, consumer), rate in rates.items())
        return QueryPlan(query_id, self.text, tuple(cutter.fragments), {**sources, **sinks}, links)

    def _first(self, choose: Choose) -> Plan:
        plan = reorder(self.plan, choose)
        return with_views(plan, views(plan, self.outputs, self.own, streams=True))

    def _after(self, cutter: Cutter, begun: Begin) -> Plan:
        """The plan that takes from fragments of the same query what it can."""
        chosen: list[View] = []
        for view in views(self.plan, self.outputs, {**cutter.offers, **self.own}, streams=True):
            tried = with_views(self.plan, [*chosen, view])
            with suppress(QueryError):  # windows of which it cannot be told whether they are whole
                begun(tried, cutter)
                chosen += [view] if len(reads(tried)) > len(chosen) else []
        return reorder(with_views(self.plan, chosen), as_written)


def prepare_query(text: str, catalog: Catalog, from_ms: int | None = None) -> Prepared:
    """Read each ``INSERT INTO sink SELECT ...`` in ``text``, and push its filters down.

    Streams begin with the event time ``from_ms`` (ms since the epoch), and windows that are whole from then on.
    Raises QueryError, one line with the construct, its place and the remedy, for what is not supported.
    """
    with _one_line():
        inserts = check_inserts(parse(text))
        first, *others = (_prepare(text, table, query, catalog, from_ms) for table, query in inserts)
        names = [each.sink.name for each in (first, *others)]
        twice = next((name for name in names if names.count(name) > 1), None)
        if twice is not None:
            raise QueryError(f"two INSERT statements write to '{twice}'; use UNION ALL, or a sink for each")
    return replace(first, further=tuple(others))


def plan_query(text: str, query_id: str, catalog: Catalog) -> QueryPlan:
    """Plan each ``INSERT INTO sink SELECT ...`` in ``text``, joins as they are written wherever that can be run.

    The result is a function of the arguments alone: the same query gives the same fragments with the same SQL.
    Raises QueryError, one line with the construct, its place and the remedy, for everything that is not supported.
    """
    return prepare_query(text, catalog).cut(query_id)


def _prepare(text: str, table: exp.Table, query: exp.Query, catalog: Catalog, from_ms: int | None) -> Prepared:
    sink, sink_owner = catalog.sink(".".join(part.name for part in table.parts), place(table))
    builder = PlanBuilder(catalog)
    plan, written = builder.query(query)
    check_types(plan, written)
    plan, named = builder.name_columns(plan, _named(written), "result")
    owners = {stream.name: owner for stream, owner in catalog.streams.values()}
    interval_us = min(builder.slides_us, default=0)
    return Prepared(text, push_filters(plan), tuple(named), sink, owners, sink_owner, interval_us, from_ms)


@contextmanager
def _one_line() -> Iterator[None]:
    try:
        yield
    except QueryError as refusal:
        # Quoted names and literals may hold anything, line breaks too.
        raise QueryError(" ".join(str(refusal).split())) from None
    except RecursionError:
        raise QueryError("the query is nested too deeply; flatten it") from None


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
