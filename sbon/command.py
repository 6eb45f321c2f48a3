"""The console command ``sbon``: checks whose ``daemon`` package would be imported, and hands over to ours.

``daemon`` is also the import name of python-daemon, and whichever comes first on the path, or was installed last in the
same folder, would be run (DESIGN: Installed names). So the command begins in this package, whose name is our own.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from pathlib import Path


def main() -> int:
    """Run the command line; returns the exit status."""
    problem = foreign_daemon()
    if problem is not None:
        print(f"sbon: error: {problem}", file=sys.stderr)
        return 1
    status: int = importlib.import_module("daemon.cli.main").main()
    return status


def foreign_daemon() -> str | None:
    """One line for the user if ``import daemon`` gives another package than ours, installed beside this."""
    remedy = "install sbon in an environment of its own, and unset PYTHONPATH"
    spec = importlib.util.find_spec("daemon")
    if spec is None or spec.origin is None:
        return f"the package `daemon` of sbon is missing: {remedy}"
    ours = Path(__file__).resolve().parent.parent / "daemon" / "__init__.py"
    if Path(spec.origin).resolve() != ours:
        return f"`import daemon` finds another package, {spec.origin}: {remedy}"
    try:
        found = importlib.import_module("daemon")
    except ImportError:
        found = None
    if getattr(found, "DISTRIBUTION", None) != "sbon":
        return f"another package (python-daemon?) was installed over sbon's, in {ours.parent}: {remedy}"
    return None
