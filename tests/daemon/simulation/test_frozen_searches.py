"""The benchmark that searches in tables that stand still, on a small overlay."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from overlay import search
from tests.benchmarks.frozen_searches import Figures, main


def test_searches_in_frozen_tables_of_a_small_overlay_find_all(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(search, "PARALLEL", search.PARALLEL)  # put back afterwards
    tables = str(tmp_path / "tables")
    assert main(["freeze", tables, "--nodes", "30", "--minutes", "1"]) == 0
    capsys.readouterr()
    assert main(["search", tables, "--searches", "10", "--set", "PARALLEL=2"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(" ", 1)[0] for line in lines] == ["nearest", "usage"]
    for line in lines:
        figures = msgspec.json.decode(line.split(" ", 1)[1], type=Figures)
        assert figures.recall_at_10 >= 0.98
        assert 0 < figures.contacts_mean <= figures.contacts_p99 <= 20
        assert sum(figures.missed.values()) == round(100 * (1.0 - figures.recall_at_10))


def test_what_was_not_frozen_and_what_cannot_be_set_is_said(tmp_path: Path) -> None:
    (tmp_path / "tables").write_bytes(b"nonsense")
    with pytest.raises(SystemExit, match="freeze"):
        main(["search", str(tmp_path / "tables")])
    with pytest.raises(SystemExit):
        main(["search", str(tmp_path / "tables"), "--set", "NO_SUCH=1"])
