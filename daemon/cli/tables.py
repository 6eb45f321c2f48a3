"""Replies as people like to read them."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import msgspec

from daemon.control.messages import (
    Event,
    Explanation,
    LatencyReply,
    LinkInfo,
    LinksReply,
    NearestReply,
    NodesReply,
    OperatorExplanation,
    OperatorInfo,
    OperatorsReply,
    QueriesReply,
    RegionsReply,
    StatusReply,
    StreamInfo,
    StreamsReply,
)
from sbon.coordinate import Coordinate

if TYPE_CHECKING:  # rich is slow to import, and no use to a daemon or where JSON is printed
    from rich.console import Console
    from rich.table import Table

#: Where nobody looks at it, a table is as wide as it needs to be.
PIPED_WIDTH = 400


def console() -> Console:
    from rich.console import Console

    return Console(highlight=False, markup=False, width=None if sys.stdout.isatty() else PIPED_WIDTH)


def _table(columns: Iterable[str], rows: Iterable[Iterable[str]], *, right: Iterable[str] = ()) -> Table:
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="bold")
    right = set(right)
    for column in columns:
        table.add_column(column, justify="right" if column in right else "left", overflow="fold")
    for row in rows:
        table.add_row(*row)
    return table


def show_status(reply: StatusReply) -> None:
    from rich.table import Table
    from rich.text import Text

    rows = [
        ("name", reply.name),
        ("address", reply.address),
        ("id", reply.node_id),
        ("coordinate", _coordinate(reply.coordinate)),
        ("load", f"{reply.load:.2f}"),
        ("peers", f"{len(reply.peers)}: {', '.join(reply.peers)}" if reply.peers else "none: see `sbon join --help`"),
        ("operators", _operators(reply)),
        ("engine", reply.engine),
        ("trust", _trust(reply)),
        ("up for", _duration(reply.uptime_s)),
        ("version", reply.version),
    ]
    table = Table(box=None, pad_edge=False, show_header=False)
    for name, value in rows:
        table.add_row(Text(name, style="bold"), value)
    console().print(table)


def _operators(reply: StatusReply) -> str:
    if not reply.operators:
        return "none"
    return f"{', '.join(reply.operators)}: {reply.operators_cpu_cores:.2f} cores"


def _trust(reply: StatusReply) -> str:
    if reply.certificate_expires_s is None:
        return "open: believes anybody" if reply.trust == "open" else "no certificate: see `sbon join --help`"
    until = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(reply.certificate_expires_s))
    return f"{reply.trust} of cluster {reply.cluster}, certificate until {until}"


def show_nodes(reply: NodesReply | NearestReply) -> None:
    columns = ("NODE", "ADDRESS", "STATUS", "MEASURED", "PREDICTED", "ERROR", "LOAD", "OPERATORS")
    rows = (
        (
            node.name,
            node.address,
            node.status,
            _ms(node.measured_rtt_ms),
            _ms(node.predicted_rtt_ms),
            f"{node.coordinate.error:.0%}",
            f"{node.load:.2f}",
            "accepts" if node.accepts_operators else "refuses",
        )
        for node in reply.nodes
    )
    console().print(_table(columns, rows, right=("MEASURED", "PREDICTED", "ERROR", "LOAD")))


def show_nearest(reply: NearestReply) -> None:
    show_nodes(reply)
    console().print(f"hosts asked: {reply.contacts}")


def show_latency(reply: LatencyReply) -> None:
    measured = (
        "never measured"
        if reply.measured_rtt_ms is None
        else f"measured {_ms(reply.measured_rtt_ms)} ({reply.samples} samples)"
    )
    predicted = f"predicted {_ms(reply.predicted_rtt_ms)} (error {reply.error:.0%})"
    console().print(f"round trip {reply.a} - {reply.b}: {measured}, {predicted}")


def show_streams(reply: StreamsReply) -> None:
    if not reply.streams:
        console().print("no streams: declare some in the [[stream]] tables of a node's configuration")
    else:
        columns = ("NAME", "KIND", "NODE", "RATE", "EVENT TIME", "SCHEMA", "COMPUTES")
        rows = (
            (
                stream.name,
                stream.kind,
                stream.node,
                _rate(stream),
                stream.event_time or "",
                _shortened(stream.schema),
                _shortened(stream.computes or "", 200),
            )
            for stream in reply.streams
        )
        console().print(_table(columns, rows, right=("RATE",)))
    if reply.silent:
        console().print(f"no answer from {', '.join(reply.silent)}")


def _rate(stream: StreamInfo) -> str:
    if stream.rate_bytes_per_s is None:
        return ""
    return f"{_bytes(stream.rate_bytes_per_s)}/s {'measured' if stream.rate_is_measured else 'declared'}"


def show_regions(reply: RegionsReply) -> None:
    columns = ("LEVEL", "COORDINATOR", "STANDBY", "MEMBERS", "HOSTS", "TAKE OPERATORS", "STREAMS AND SINKS")
    rows = (
        (
            str(region.level),
            region.coordinator,
            region.standby or "",
            _shortened(", ".join(f"{each.name} ({each.hosts})" for each in region.members), 100),
            str(region.hosts),
            str(region.takers),
            _shortened(", ".join(region.names)),
        )
        for region in reply.regions
    )
    console().print(_table(columns, rows, right=("LEVEL", "HOSTS", "TAKE OPERATORS")))


def show_queries(reply: QueriesReply) -> None:
    if not reply.queries:
        console().print("no queries: see `sbon submit --help`")
        return
    columns = ("QUERY", "STATE", "KEEPER", "FRAGMENTS", "AGE", "USAGE", "AT CONSUMER", "SQL")
    rows = (
        (
            query.query_id,
            query.state if query.error is None else f"{query.state}: {query.error}",
            query.keeper,
            str(query.fragments),
            _duration(time.time() - query.submitted_s),
            _bytes(query.network_usage),
            _bytes(query.network_usage_at_consumer),
            _shortened(query.sql),
        )
        for query in reply.queries
    )
    console().print(_table(columns, rows, right=("FRAGMENTS", "AGE", "USAGE", "AT CONSUMER")))


def show_operators(reply: OperatorsReply) -> None:
    if not reply.operators:
        console().print("no operators: see `sbon submit --help`")
        return
    columns = (
        "FRAGMENT",
        "KIND",
        "NODE",
        "GEN",
        "STATE",
        "IN/S",
        "ROWS IN/S",
        "OUT/S",
        "ROWS OUT",
        "LATE",
        "OUT/IN",
        "CORES",
        "STATE SIZE",
    )
    rows = (
        (
            operator.fragment_id,
            operator.kind,
            operator.node,
            str(operator.generation),
            operator.state if operator.error is None else f"{operator.state}: {operator.error}",
            _bytes(operator.input_rate_bytes_per_s),
            f"{operator.input_rate_rows_per_s:.0f}",
            _bytes(operator.output_rate_bytes_per_s),
            str(operator.output_rows),
            str(operator.late_rows),
            _selectivity(operator),
            "-" if operator.cpu_cores is None else f"{operator.cpu_cores:.2f}",
            _bytes(operator.state_bytes),
        )
        for operator in reply.operators
    )
    console().print(_table(columns, rows, right=("GEN", *columns[5:])))


def _selectivity(operator: OperatorInfo) -> str:
    """Bytes out per byte in; as estimated, in parentheses, until it is measured."""
    if operator.selectivity is not None:
        return f"{operator.selectivity:.2f}"
    return "-" if operator.estimated_selectivity is None else f"({operator.estimated_selectivity:.2f})"


def show_links(reply: LinksReply) -> None:
    if not reply.links:
        console().print("nothing flows: see `sbon submit --help`")
        return
    console().print(_links_table(reply.links))


def _links_table(links: Iterable[LinkInfo]) -> Table:
    columns = ("FROM", "AT", "TO", "AT", "ESTIMATED", "MEASURED", "ROWS/S", "ROUND TRIP", "IN TRANSIT", "PLACED BY")
    rows = (
        (
            link.source,
            link.source_node,
            link.target,
            link.target_node,
            f"{_bytes(link.estimated_bytes_per_s)}/s",
            "-" if link.bytes_per_s is None else f"{_bytes(link.bytes_per_s)}/s",
            "-" if link.rows_per_s is None else f"{link.rows_per_s:.1f}",
            _ms(link.rtt_ms),
            _bytes(link.in_transit_bytes),
            "measured" if link.is_measured else "estimated",
        )
        for link in links
    )
    return _table(columns, rows, right=columns[4:9])


def show_explanation(reply: Explanation) -> None:
    out = console()
    out.print(f"{reply.query_id}: {_shortened(reply.sql, 300)}")
    if reply.network_usage is not None:
        out.print(
            f"network usage {_bytes(reply.network_usage)} in transit; "
            f"with everything at the consumer {_bytes(reply.network_usage_at_consumer)}"
        )
    for reused in reply.reused:
        since = "all its rows" if reused.from_ms is None else f"from {_moment(reused.from_ms)} on"
        where = reused.node if reused.through is None else f"{reused.node} through {reused.through}"
        out.print(f"reads {reused.fragment_id} of {reused.query_id} at {where}, {since}: {reused.computes}")
    for reader in reply.readers:
        where = "" if reader.node is None else f" at {reader.node}"
        out.print(f"{reader.fragment_id} is read by {reader.query_id}{where}, too")
    for operator in reply.operators:
        out.print()
        _show_operator(out, operator)
    if reply.links:
        out.print()
        out.print(_links_table(reply.links))


def _show_operator(out: Console, operator: OperatorExplanation) -> None:
    out.print(f"{operator.fragment_id} ({operator.kind}) at {operator.node}: {operator.reason}")
    out.print(f"  {_shortened(operator.sql, 300)}")
    if operator.virtual_point_ms is not None:
        point = ", ".join(f"{x:.1f}" for x in operator.virtual_point_ms)
        out.print(f"  virtual point ({point}) ms")
    if operator.runner_up is not None:
        out.print(
            f"  cost {_bytes(operator.cost)}; the runner-up, {operator.runner_up}: {_bytes(operator.runner_up_cost)}"
        )
    if operator.candidates:
        columns = ("  CANDIDATE", "PREDICTED COST", "MEASURED COST", "LOAD", "")
        rows = (
            (
                f"  {candidate.node}",
                _bytes(candidate.predicted_cost),
                _bytes(candidate.measured_cost),
                f"{candidate.load:.2f}",
                "" if candidate.measured else "in part predicted",
            )
            for candidate in operator.candidates
        )
        out.print(_table(columns, rows, right=columns[1:4]))


def _moment(at_ms: int) -> str:
    """An event time, in UTC."""
    return f"{time.strftime('%Y-%m-%d %H:%M:%S', time.gmtime(at_ms // 1000))}.{at_ms % 1000:03}"


def event_line(event: Event) -> str:
    moment = time.strftime("%H:%M:%S", time.localtime(event.time_s))
    fields = " ".join(f"{key}={_field(value)}" for key, value in event.fields.items())
    return f"{moment}.{int(event.time_s % 1 * 1000):03d} {event.node} {event.kind} {fields}".rstrip()


def _field(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, str):
        return f'"{value}"' if " " in value else value
    return msgspec.json.encode(value).decode()


def _coordinate(coordinate: Coordinate) -> str:
    vector = ", ".join(f"{x:.1f}" for x in coordinate.vector_ms)
    return f"({vector}) + {coordinate.height_ms:.1f} ms, error {coordinate.error:.0%}"


def _ms(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f} ms"


def _bytes(value: float | None) -> str:
    if value is None:
        return "-"
    for unit in ("B", "kB", "MB"):
        if abs(value) < 1000:
            return f"{value:.{0 if unit == 'B' and value == round(value) else 1}f} {unit}"
        value /= 1000
    return f"{value:.1f} GB"


def _duration(seconds: float) -> str:
    minutes, rest = divmod(int(max(0.0, seconds)), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}h{minutes:02d}m" if hours else f"{minutes}m{rest:02d}s" if minutes else f"{rest}s"


def _shortened(sql: str, length: int = 60) -> str:
    line = " ".join(sql.split())
    return line if len(line) <= length else f"{line[: length - 1]}…"
