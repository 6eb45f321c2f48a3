"""The processes of an engine: Python, the Java machine that it has started, and whatever that starts."""

from __future__ import annotations

from collections import defaultdict
from contextlib import suppress
from pathlib import Path


def tree_of(pid: int) -> dict[int, list[str]]:
    """The process ``pid`` and its descendants, each with what the system says of it, from the state on (man 5 proc)."""
    children: defaultdict[int, list[int]] = defaultdict(list)
    said: dict[int, list[str]] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):  # it has just ended
            # The name, in parentheses, may hold anything; state and parent follow it.
            fields = stat.read_text().rpartition(")")[2].split()
            child = int(stat.parent.name)
            children[int(fields[1])].append(child)
            said[child] = fields
    tree = [pid]
    for parent in tree:
        tree += children[parent]
    return {each: said[each] for each in tree if each in said}


def threads_of_tree(pid: int) -> set[int]:
    """Of all those processes."""
    threads: set[int] = set()
    for each in tree_of(pid):
        with suppress(OSError):
            threads |= {int(task.name) for task in Path(f"/proc/{each}/task").iterdir()}
    return threads
