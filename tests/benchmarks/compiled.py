"""A copy of the project whose simulator is compiled, for long runs of large overlays.

    python -m tests.benchmarks.compiled DIR
    cd DIR && python -m daemon simulate overlay --nodes 1000 --minutes 10

DIR gets the packages as they are here, and beside each module of the overlay's protocols a shared object that mypyc
made of it (mypyc comes with mypy; it needs a C compiler and Python's headers). It is the same code with the same
results, bit by bit: ``digest`` tells. Two to three minutes of compiling; a run then takes half of the time.
"""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("sbon", "overlay", "daemon", "spark_bridge", "tests")
#: What a simulated second is spent in.
MODULES = (
    "overlay/*.py",
    "sbon/coordinate_estimator.py",
    "sbon/update_filter.py",
    "sbon/latency_filter.py",
    "sbon/delay.py",
    "daemon/simulation/world.py",
    "daemon/simulation/population.py",
    "daemon/simulation/plain_suite.py",
    "daemon/simulation/latency.py",
    "daemon/simulation/liars.py",
)
#: msgspec makes classes of its own of these: they stay as they are.
STRUCT = re.compile(r"^class \w+\(.*(Struct|frozen=|tag=)", re.MULTILINE)


def compilable(folder: Path) -> list[str]:
    """The modules to compile, relative to ``folder``."""
    found = [path for pattern in MODULES for path in sorted(folder.glob(pattern)) if path.name != "__init__.py"]
    return [str(path.relative_to(folder)) for path in found if not STRUCT.search(path.read_text())]


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.compiled", description=__doc__.splitlines()[0])
    parser.add_argument("dir", type=Path, help="a folder that is not there yet")
    target: Path = parser.parse_args().dir
    if target.exists():
        parser.error(f"{target} is there already: name a folder that is not")
    target.mkdir(parents=True)
    shutil.copy(ROOT / "pyproject.toml", target)
    for package in PACKAGES:
        shutil.copytree(ROOT / package, target / package, ignore=shutil.ignore_patterns("__pycache__", "*.so"))
    modules = compilable(target)
    print(f"compiling {len(modules)} modules into {target}: two to three minutes", file=sys.stderr, flush=True)
    mypyc = Path(sys.executable).with_name("mypyc")
    return subprocess.run([mypyc, *modules], cwd=target, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
