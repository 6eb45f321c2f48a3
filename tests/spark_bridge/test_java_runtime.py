from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from sbon.errors import UnavailableError
from spark_bridge import java_runtime
from spark_bridge.java_runtime import find_java, java_version, prepare_java


def fake_java(folder: Path, version: str) -> Path:
    executable = folder / "bin" / "java"
    executable.parent.mkdir(parents=True)
    executable.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\"' >&2\n")
    executable.chmod(0o755)
    return executable


@pytest.mark.parametrize(("version", "major"), [("17.0.15", 17), ("1.8.0_292", 8), ("25", 25), ("21-ea", 21)])
def test_versions_are_read(tmp_path: Path, version: str, major: int) -> None:
    assert java_version(fake_java(tmp_path, version)) == major


def test_what_is_not_a_java_has_no_version(tmp_path: Path) -> None:
    assert java_version(Path("/bin/true")) is None
    assert java_version(tmp_path / "nothing") is None


def test_a_java_that_is_too_old_is_passed_over(tmp_path: Path) -> None:
    old, new = fake_java(tmp_path / "old", "11.0.2"), fake_java(tmp_path / "new", "21.0.1")
    found = find_java({"JAVA_HOME": str(old.parent.parent), "PATH": str(new.parent)})
    assert (found.home, found.major_version, found.bundled) == (new.parent.parent, 21, False)


def test_without_any_java_the_bundled_one_is_found_and_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "gone"))
    monkeypatch.setenv("PATH", "/nowhere")
    assert prepare_java(tmp_path).bundled
    launcher = tmp_path / "java_home" / "bin" / "java"
    asked = subprocess.run(
        [launcher, "--add-modules=jdk.incubator.vector", "-Dx=a b", "-version"],
        capture_output=True,
        text=True,
        check=True,
        env={"PATH": "/bin:/usr/bin"},
    )
    assert "version" in asked.stderr


def test_an_old_java_alone_is_named_with_the_remedy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(java_runtime, "_bundled_home", lambda: None)
    old = fake_java(tmp_path, "11.0.2")
    with pytest.raises(UnavailableError, match=r"Java 17 or newer; found only .*Java 11.*JAVA_HOME"):
        find_java({"PATH": str(old.parent)})
