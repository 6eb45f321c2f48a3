"""Reports as people like to read them."""

from __future__ import annotations

from daemon.simulation.figures import FaultsReport, OverlayReport, SearchFigures


def print_overlay(report: OverlayReport) -> None:
    lines = [("network", report.network), ("nodes", f"{report.nodes}, {report.nodes_live} of them live at the end")]
    error = report.relative_error
    if error is not None:
        lines.append(("relative error", f"median {_percent(error.median)}, 90th percentile {_percent(error.p90)}"))
    if report.minutes_to_converge is not None:
        lines.append(("converged", f"in minute {report.minutes_to_converge:g}"))
    for attack, spread in report.attacks.items():
        lines.append((f"attack {attack}", f"median {_percent(spread.median)}, 90th {_percent(spread.p90)}"))
    lines += [("nearest nodes", _search(report.knn))] if report.knn else []
    lines += [("least usage", _search(report.usage_search))] if report.usage_search else []
    if report.detection_s is not None:
        delay = report.detection_s
        lines.append(("deaths seen", f"median {delay.median} s, 99th {delay.p99} s ({delay.crashes} crashes)"))
    lines.append(("false removals", str(report.false_removals)))
    if report.bytes_per_node_per_s is not None:
        bytes_ = report.bytes_per_node_per_s
        lines.append(("traffic", f"mean {bytes_.mean:g} bytes per node and s, 99th {bytes_.p99:g}"))
        lines.append(("messages", f"{report.messages_per_node_per_s:g} per node and s"))
    lines.append(("peers at most", str(report.peers_per_node_max)))
    lines.append(("digest", f"{report.digest} of {report.deliveries} deliveries"))
    lines.append(("took", f"{report.seconds:g} s, {report.node_hours_per_cpu_minute:g} node-hours per CPU-minute"))
    _print(lines)
    for removal in report.removals:
        print(f"REMOVAL {removal}")
    for violation in report.violations:
        print(f"VIOLATION {violation}")


def print_faults(report: FaultsReport) -> None:
    lines = [("seeds", f"{report.seeds}: {report.runs - len(report.failed)} of {report.runs} without a complaint")]
    if report.healed_s is not None:
        lines.append(("healed", f"mean {report.healed_s.mean:g} s after the faults, 99th {report.healed_s.p99:g} s"))
    if report.settled_s is not None:
        lines.append(("settled", f"mean {report.settled_s.mean:g} s after the faults, 99th {report.settled_s.p99:g} s"))
    lines.append(("false removals", str(report.false_removals)))
    lines.append(("digest", f"{report.digest} of {report.deliveries} deliveries"))
    took = f"{report.seconds:g} s, {report.node_hours_per_cpu_minute:g} node-hours per CPU-minute"
    lines.append(("took", f"{took} ({report.node_hours:g} node-hours)"))
    _print(lines)
    for failure in report.failed:
        print(f"\nFAILED: {failure.command}")
        for problem in failure.problems:
            print(f"  {problem}")


def _search(figures: SearchFigures) -> str:
    found = f"recall@10 {figures.recall_at_10:.4f}, recall@1 {figures.recall_at_1:.4f}"
    return f"{found}, {figures.contacts_mean:g} hosts asked (99th {figures.contacts_p99:g})"


def _percent(share: float) -> str:
    return f"{100.0 * share:.1f} %"


def _print(lines: list[tuple[str, str]]) -> None:
    width = max(len(name) for name, _ in lines)
    for name, value in lines:
        print(f"{name:<{width}}  {value}")
