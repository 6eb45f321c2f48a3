"""The benchmark that searches in tables that stand still, on a small overlay."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from overlay import search
from overlay.identity import NodeId
from overlay.pointers import hub_ms
from tests.benchmarks.frozen_searches import Figures, Frozen, Hosts, main


@pytest.fixture(scope="module")
def tables(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("frozen") / "tables"
    assert main(["freeze", str(path), "--nodes", "30", "--minutes", "1"]) == 0
    return path


def test_searches_in_frozen_tables_of_a_small_overlay_find_all(
    tables: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(search, "PARALLEL", search.PARALLEL)  # put back afterwards
    capsys.readouterr()
    assert main(["search", str(tables), "--searches", "10", "--set", "PARALLEL=2"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(" ", 1)[0] for line in lines] == ["nearest", "usage"]
    for line in lines:
        figures = msgspec.json.decode(line.split(" ", 1)[1], type=Figures)
        assert figures.recall_at_10 >= 0.98
        assert 0 < figures.contacts_mean <= figures.contacts_p99 <= 20
        assert sum(figures.missed.values()) == round(100 * (1.0 - figures.recall_at_10))


def test_everybody_knows_of_those_besides_that_are_asked_for(tables: Path) -> None:
    full = msgspec.msgpack.decode(tables.read_bytes(), type=Frozen)
    empty = Frozen(
        full.dimensions, [msgspec.structs.replace(table, known=table.known[:1], samples=[]) for table in full.tables]
    )

    def known(hosts: Hosts, host: NodeId) -> list[NodeId]:
        return [record.node_id for record, _, _ in hosts.known_to(host)]

    as_is, nearest, hubs = Hosts(empty), Hosts(empty, also_nearest=3), Hosts(empty, also_hubs=3)
    for host, own in as_is.own.items():
        assert len(known(as_is, host)) == 1
        rtt_ms = {other: own.coordinate.rtt_ms(record.coordinate) for other, record in as_is.own.items()}
        del rtt_ms[host]
        by_hub = sorted(rtt_ms, key=lambda other: hub_ms(as_is.own[other], rtt_ms[other]))
        assert set(known(nearest, host)) == {*known(as_is, host), *sorted(rtt_ms, key=lambda one: rtt_ms[one])[:3]}
        assert set(known(hubs, host)) == {*known(as_is, host), *by_hub[:3]}
        assert len(known(nearest, host)) == len(set(known(nearest, host)))


def test_what_was_not_frozen_and_what_cannot_be_set_is_said(tmp_path: Path) -> None:
    (tmp_path / "tables").write_bytes(b"nonsense")
    with pytest.raises(SystemExit, match="freeze"):
        main(["search", str(tmp_path / "tables")])
    with pytest.raises(SystemExit):
        main(["search", str(tmp_path / "tables"), "--set", "NO_SUCH=1"])
