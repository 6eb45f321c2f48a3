"""Paths that Spark writes into a checkpoint, after that has come from another host."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from sbon.errors import SbonError
from spark_bridge.moved_state import own_its_paths
from spark_bridge.soundness import find_damage

SCHEMAS = ("0/_stateSchema/default/0_f86c", "0/_stateSchema/default/11_3e21")


def write(checkpoint: Path, *roots: str) -> Path:
    """As Spark does, with a checksum beside it."""
    file = checkpoint / "state" / "0" / "_metadata" / "v2" / "11"
    file.parent.mkdir(parents=True)
    paths = [f"{root}/state/{schema}" for root, schema in zip(roots, SCHEMAS, strict=True)]
    stores = [{"storeName": "default", "numPartitions": 1, "stateSchemaFilePaths": paths}]
    file.write_text("v2\n" + json.dumps({"operatorInfo": {"operatorId": 0}, "stateStoreInfo": stores}))
    file.with_name(".11.crc").write_bytes(b"crc\0\0\0\2\0????")
    return file


def paths_in(file: Path) -> list[str]:
    header, text = file.read_text().split("\n")
    assert header == "v2"
    metadata = json.loads(text)
    assert metadata["operatorInfo"] == {"operatorId": 0}
    (store,) = metadata["stateStoreInfo"]
    assert (store["storeName"], store["numPartitions"]) == ("default", 1)
    return list(store["stateSchemaFilePaths"])


def test_state_from_another_host_is_said_to_be_here(tmp_path: Path) -> None:
    checkpoint = tmp_path / "a state" / "q-join1" / "checkpoint"
    file = write(checkpoint, "file:/var/lib/sbon/state/fragments/q-join1/checkpoint", "file:/data/sbon/checkpoint")
    own_its_paths(checkpoint)
    assert paths_in(file) == [f"file:{checkpoint}/state/{schema}" for schema in SCHEMAS]
    assert find_damage(checkpoint) is None, "the checksum was of what was there before"


def test_state_that_was_always_here_is_left_alone(tmp_path: Path) -> None:
    file = write(tmp_path, f"file:{tmp_path}", f"file:{tmp_path}")
    before = file.stat().st_mtime_ns
    own_its_paths(tmp_path)
    assert file.stat().st_mtime_ns == before
    assert file.with_name(".11.crc").exists()


@pytest.mark.parametrize("text", ["", "v2\n", "v2\n[]", 'v2\n{"stateStoreInfo": 3}', "v2\n{}", "v2\n\udcff"])
def test_metadata_that_is_none_is_an_error_that_names_the_file(tmp_path: Path, text: str) -> None:
    file = write(tmp_path, f"file:{tmp_path}", f"file:{tmp_path}")
    file.write_bytes(text.encode(errors="surrogateescape"))
    with pytest.raises(SbonError, match=r"_metadata/v2/11 is damaged"):
        own_its_paths(tmp_path)
