"""What a daemon loads at its start, which every host pays for whether or not a query ever comes."""

from __future__ import annotations

import subprocess
import sys

#: Tens of megabytes, and of no use before the first query, in a terminal, or outside the engine.
LARGE = {"numpy", "pandas", "py4j", "pyarrow", "pyspark", "rich", "scipy", "sqlglot"}


def test_a_daemon_starts_without_what_only_queries_need() -> None:
    program = "import sys, daemon.cli.main, daemon.process; print(*sys.modules)"
    finished = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    loaded = {name.partition(".")[0] for name in finished.stdout.split()}
    assert "trio" in loaded
    assert not loaded & LARGE
