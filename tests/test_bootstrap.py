"""What `bootstrap.py` takes for installed; nothing is."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

FILE = Path(__file__).parents[1] / "bootstrap.py"
EVERYTHING = ["venv", "install", "install", "install"]


@pytest.fixture
def bootstrap(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """In a folder of its own, with lock files that name nothing."""
    spec = importlib.util.spec_from_file_location("bootstrap", FILE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    paths = {"BUILD_LOCK": "requirements-build.lock", "LOCK": "requirements.lock", "ROOT": ".", "VENV": ".venv"}
    for name, path in paths.items():
        monkeypatch.setattr(module, name, tmp_path / path)
    for name in ("requirements-build.lock", "requirements.lock", "pyproject.toml"):
        (tmp_path / name).touch()
    return module


@pytest.fixture
def ran(bootstrap: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What was run of an environment's making and of installations."""
    done: list[str] = []

    def run(*command: str | Path) -> int:
        if "venv" in command:
            put_python(tmp_path, "echo cpython-311")
        done.extend(word for word in ("venv", "install") if word in command)
        return 0

    monkeypatch.setattr(bootstrap, "run", run)
    return done


def put_python(folder: Path, does: str) -> None:
    python = folder / ".venv" / "bin" / "python"
    python.parent.mkdir(parents=True, exist_ok=True)
    python.unlink(missing_ok=True)
    python.write_text(f"#!/bin/sh\n{does}\n")
    python.chmod(0o755)


def test_all_is_installed_once_until_a_lock_file_changes(bootstrap: ModuleType, ran: list[str]) -> None:
    bootstrap.set_up()
    bootstrap.set_up()
    assert ran == EVERYTHING
    bootstrap.LOCK.write_text("more")
    bootstrap.set_up()
    assert ran == [*EVERYTHING, *EVERYTHING[1:]]


def test_where_python_has_gone_all_is_made_anew(bootstrap: ModuleType, ran: list[str]) -> None:
    bootstrap.set_up()
    python = bootstrap.VENV / "bin" / "python"
    python.unlink()
    python.symlink_to("/removed/python3.11")
    bootstrap.set_up()
    assert ran == 2 * EVERYTHING


def test_where_python_was_upgraded_all_is_made_anew(bootstrap: ModuleType, ran: list[str], tmp_path: Path) -> None:
    """The link is the same, and what it leads to looks for packages, pip among them, in another folder."""
    bootstrap.set_up()
    put_python(tmp_path, '[ "$1" = -c ] && echo cpython-312')
    bootstrap.set_up()
    assert ran == 2 * EVERYTHING
