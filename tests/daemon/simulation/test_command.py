"""``sbon simulate`` as users have it: small runs in processes of their own."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from typing import Any

import pytest

from daemon.cli.main import main
from daemon.simulation.command import make_parser

SMALL = ("overlay", "--nodes", "12", "--minutes", "1", "--searches", "5", "--seed", "3")


def simulate(*words: str, hash_seed: str = "0", expect: int = 0) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        [sys.executable, "-m", "daemon", "simulate", *words],
        capture_output=True,
        text=True,
        timeout=300,
        env=os.environ | {"PYTHONHASHSEED": hash_seed},
    )
    assert done.returncode == expect, done.stderr
    return done


def report(*words: str, hash_seed: str = "0") -> dict[str, Any]:
    result: dict[str, Any] = json.loads(simulate(*words, "--json", hash_seed=hash_seed).stdout)
    return result


def without_wall_time(figures: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in figures.items() if key not in ("seconds", "node_hours_per_cpu_minute")}


def test_the_same_seed_gives_the_same_bytes_in_any_process() -> None:
    replaced = ("--churn-per-minute", "0.2", "--churn-from", "0.2")
    faults = ("--loss", "0.05", "--jitter-ms", "3", "--crashes", "1", *replaced)
    first = report(*SMALL, *faults, hash_seed="1")
    second = report(*SMALL, *faults, hash_seed="2")
    assert without_wall_time(first) == without_wall_time(second)
    assert first["deliveries"] > 1000
    other = report(*SMALL[:-1], "4", *faults)
    assert other["digest"] != first["digest"]


def test_a_report_has_the_figures() -> None:
    figures = report(*SMALL)
    assert figures["seed"] == 3
    assert 0.0 < figures["relative_error"]["median"] <= figures["relative_error"]["p90"]
    assert figures["minutes_to_converge"] == 1
    assert figures["false_removals"] == 0
    assert figures["bytes_per_node_per_s"]["mean"] > 0.0
    assert figures["messages_per_node_per_s"] > 0.0
    assert figures["peers_per_node_max"] == 11
    assert figures["violations"] == []


def test_nodes_are_replaced_from_a_given_minute_on() -> None:
    words = (*SMALL, "--minutes", "2", "--churn-per-minute", "0.5", "--churn-from")
    early, late = (report(*words, minute)["bytes_per_node_per_s_by_minute"] for minute in ("0", "1.1"))
    calm = report(*SMALL, "--minutes", "2")["bytes_per_node_per_s_by_minute"]
    assert late[0] == calm[0] != early[0]
    assert late[1] != calm[1]


def test_a_mix_of_faults_replays_too() -> None:
    words = ("faults", "--seeds", "1..3", "--nodes", "5..8")
    first = report(*words, "--jobs", "1", hash_seed="1")
    second = report(*words, "--jobs", "2", hash_seed="2")
    assert without_wall_time(first) == without_wall_time(second)
    assert first["failed"] == []


def test_the_seed_comes_first() -> None:
    assert simulate(*SMALL).stdout.splitlines()[0] == "seed 3"
    assert simulate(*SMALL, "--json").stderr.splitlines()[0] == "seed 3"
    assert simulate("ownership", "--seeds", "1..2").stdout.splitlines()[0] == "seeds 1..2"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("overlay", "--rtt", "/nowhere.npz"), "cannot read /nowhere.npz"),
        (("overlay", "--set", "probe_interval_s=0"), "probe_interval_s must be more than 0"),
        (("overlay", "--set", "no_such=1"), "no_such"),
        (("overlay", "--churn-per-minute", "0.1", "--churn-from", "5", "--minutes", "5"), "the run ends before"),
        (("faults", "--nodes", "1..2"), "2 to"),
    ],
)
def test_mistakes_are_told_in_one_line(words: tuple[str, ...], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["simulate", *words]) == 1
    lines = capsys.readouterr().err.splitlines()
    assert lines[-1].startswith("sbon: error: ")
    assert said in lines[-1]


@pytest.mark.parametrize(
    "words",
    [
        ["overlay", "--loss", "2"],
        ["overlay", "--nodes", "1"],
        ["overlay", "--minutes", "nan"],
        ["overlay", "--asymmetric-loss", "0.5"],
        ["faults", "--seeds", "9..1"],
        ["faults", "--jobs", "0"],
    ],
)
def test_arguments_that_cannot_be_are_refused(words: list[str]) -> None:
    with pytest.raises(SystemExit):
        make_parser().parse_args(words)


@pytest.mark.parametrize(
    ("words", "unit"),
    [
        (["overlay", "--minutes", "0"], "minutes"),
        (["overlay", "--churn-from", "-1"], "minute"),
        (["overlay", "--jitter-ms", "-1"], "milliseconds"),
        (["regions", "--period", "0"], "seconds"),
        (["adaptation", "--hours", "0"], "hours"),
    ],
)
def test_what_is_refused_is_named_in_its_own_unit(
    words: list[str], unit: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        make_parser().parse_args(words)
    assert re.search(rf"is not a (number of )?{unit}\b", capsys.readouterr().err)
