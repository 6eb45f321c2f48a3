from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pyspark
import pytest

from spark_bridge.class_archive import archive_file, reading_options, writing_options
from spark_bridge.java_runtime import Java, find_java


@pytest.fixture
def prefix(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An environment of its own, without an archive."""
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    return tmp_path


@pytest.mark.parametrize(
    ("version", "reads", "writes"),
    [(17, "SharedArchiveFile", "ArchiveClassesAtExit"), (25, "AOTCache", "AOTCacheOutput")],
)
def test_each_java_is_told_in_its_own_words(prefix: Path, version: int, reads: str, writes: str) -> None:
    java = Java(Path("/java"), version, bundled=False)
    archive = archive_file(java)
    assert archive == prefix / "var" / "sbon" / f"classes-spark-{pyspark.__version__}-java-{version}"
    assert writing_options(java, archive)[0] == f"-XX:{writes}={archive}"
    assert reading_options(java) == ()
    archive.parent.mkdir(parents=True)
    archive.touch()
    assert reading_options(java)[0] == f"-XX:{reads}={archive}"


@pytest.mark.spark
def test_an_engine_starts_from_the_archive(tmp_path: Path) -> None:
    """What `bootstrap.py` has prepared with the environment; if it has not, this takes a minute."""
    subprocess.run([sys.executable, "-m", "daemon", "prepare"], check=True)
    code = (
        "import sys; from pathlib import Path; from spark_bridge.session import start_session;"
        "spark = start_session('archived', Path(sys.argv[1]));"
        "print(Path(f'/proc/{spark.sparkContext._gateway.proc.pid}/maps').read_text())"
    )
    command = [sys.executable, "-c", code, str(tmp_path)]
    mapped = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
    # Java maps an archive only if it fits its own build, the options of an engine and the jars.
    assert str(archive_file(find_java())) in mapped
