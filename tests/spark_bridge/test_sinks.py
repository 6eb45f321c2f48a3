"""Sinks as far as they need no Spark: what they refuse to write to."""

from __future__ import annotations

from pathlib import Path

import pytest

from sbon.errors import ConfigurationError, SbonError
from sbon.streams import SinkSpec
from spark_bridge.sinks import open_sink


def spec(folder: Path) -> SinkSpec:
    return SinkSpec("out", "parquet", {"path": str(folder)})


def test_a_query_whose_checkpoint_is_lost_does_not_start_over(tmp_path: Path) -> None:
    open_sink(spec(tmp_path), "q1", is_new=True)
    (tmp_path / "q1-batch=00000000.parquet").write_bytes(b"")
    open_sink(spec(tmp_path), "q1", is_new=False)  # it goes on, or says that batch again
    open_sink(spec(tmp_path), "q2", is_new=True)
    with pytest.raises(SbonError, match="whose checkpoint is lost"):
        open_sink(spec(tmp_path), "q1", is_new=True)


def test_a_folder_that_is_none_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigurationError, match="sink out cannot be written"):
        open_sink(spec(tmp_path / "file"), "q1", is_new=True)
    with pytest.raises(ConfigurationError, match="needs options"):
        open_sink(SinkSpec("out", "parquet"), "q1", is_new=True)
