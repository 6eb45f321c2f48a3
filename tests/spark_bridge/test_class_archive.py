from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pyspark
import pytest

from spark_bridge.class_archive import archive_file, reading_options, writing_options
from spark_bridge.java_runtime import Java


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
def test_an_archive_is_made_and_read(tmp_path: Path) -> None:
    """In processes of their own, each with a Java of its own."""
    made = python(tmp_path, "from spark_bridge.class_training import main; sys.argv = ['training']; print(main())")
    assert made.splitlines()[-1] == "0", made
    (archive,) = (tmp_path / "var" / "sbon").iterdir()
    assert archive.stat().st_size > 50e6
    mapped = python(
        tmp_path,
        "from pathlib import Path; from spark_bridge.session import start_session;"
        "spark = start_session('archived', Path(sys.prefix) / 'scratch');"
        "print(Path(f'/proc/{spark.sparkContext._gateway.proc.pid}/maps').read_text())",
    )
    # Java maps an archive only if it fits the options and the jars of an engine.
    assert str(archive) in mapped


def python(prefix: Path, code: str) -> str:
    """What ``code`` prints in an environment whose prefix is that."""
    code = f"import sys; sys.prefix = {str(prefix)!r}; {code}"
    return subprocess.run([sys.executable, "-c", code], check=True, stdout=subprocess.PIPE, text=True).stdout
