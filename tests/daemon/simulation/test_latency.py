"""Matrices from files, and hosts beyond their sites."""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import pytest

from daemon.simulation.latency import SAME_SITE_MS, Network, Sites, load
from sbon.errors import SbonError

NAN = float("nan")
GCP12 = Path(__file__).parents[2] / "data" / "rtt_gcp12.csv"


def test_the_built_in_network_has_44_sites() -> None:
    slices = load([])
    assert slices.shape == (1, 44, 44)
    assert np.isnan(slices[0].diagonal()).all()


def test_a_csv_with_names_is_read_plain_or_compressed(tmp_path: Path) -> None:
    plain = load([GCP12])
    packed = tmp_path / "rtt.csv.gz"
    packed.write_bytes(gzip.compress(GCP12.read_bytes()))
    assert plain.shape == (1, 12, 12)
    assert plain[0, 0, 1] == 37.0
    np.testing.assert_array_equal(plain, load([packed]))


def test_several_files_are_slices_in_order(tmp_path: Path) -> None:
    for index, rtt in enumerate(([[0, 1], [1, 0]], [[[0, 2], [2, 0]], [[0, 3], [3, 0]]])):
        np.savez(tmp_path / f"{index}.npz", rtt=np.array(rtt, dtype=np.float32))
    assert load([tmp_path / "0.npz", tmp_path / "1.npz"])[:, 0, 1].tolist() == [1.0, 2.0, 3.0]


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("a.csv", "1,2\n3\n", "do not make a square"),
        ("b.csv", "", "do not make a square"),
        ("c.npz", "not a zip", "c.npz"),
        ("d.csv", "0,99999\n1,0\n", "are these milliseconds"),
        ("e.csv", "0,\n,0\n", "no round trip at all"),
    ],
)
def test_what_is_no_matrix_is_refused_in_one_line(tmp_path: Path, name: str, content: str, said: str) -> None:
    file = tmp_path / name
    file.write_text(content)
    with pytest.raises(SbonError, match=said) as error:
        load([file])
    assert "\n" not in str(error.value)


def test_files_of_different_sizes_are_refused(tmp_path: Path) -> None:
    np.savez(tmp_path / "two.npz", rtt=np.ones((2, 2)))
    with pytest.raises(SbonError, match="12 sites"):
        load([tmp_path / "two.npz", GCP12])


def test_truth_is_the_mean_of_both_directions_and_delays_add_up_to_it() -> None:
    sites = Sites(np.array([[[NAN, 10.0], [30.0, NAN]]]))
    assert sites.truth_ms[0, 1] == 20.0
    assert 1000.0 * (sites.one_way_s[0][1] + sites.one_way_s[1][0]) == pytest.approx(20.0)
    assert 1000.0 * sites.one_way_s[0][1] == pytest.approx(5.0)


def test_truth_is_the_median_over_slices_of_what_was_measured() -> None:
    slices = np.full((3, 2, 2), NAN)
    slices[:, 0, 1] = slices[:, 1, 0] = [10.0, 20.0, 90.0]
    assert Sites(slices).truth_ms[0, 1] == 20.0
    slices[2, 1, 0] = NAN  # like its mirror
    assert Sites(slices).truth_ms[0, 1] == 20.0


def test_what_was_never_measured_has_a_delay_but_no_truth() -> None:
    slices = np.array([[[NAN, 10.0, NAN], [10.0, NAN, 20.0], [NAN, 20.0, NAN]]])
    sites = Sites(slices)
    assert np.isnan(sites.truth_ms[0, 2])
    assert 1000.0 * (sites.one_way_s[0][2] + sites.one_way_s[2][0]) == pytest.approx(30.0)


def test_hosts_beyond_the_sites_are_copies_behind_access_lines() -> None:
    network = Network(load([GCP12]), seed=3)
    hosts = [network.add_host() for _ in range(30)]
    assert sorted(network.site[:12]) == list(range(12))
    assert network.access_s[:12] == [0.0] * 12
    assert network.site[12:24] == network.site[:12]
    assert all(access > 0.0 for access in network.access_s[12:])
    access_ms = 2000.0 * network.access_s[12]
    assert network.truth_ms(0, 12) == pytest.approx(SAME_SITE_MS + access_ms)
    assert network.truth_ms(1, 12) == pytest.approx(network.truth_ms(1, 0) + access_ms)
    newcomer = network.add_host_like(hosts[5])
    assert (network.site[newcomer], network.access_s[newcomer]) == (network.site[5], network.access_s[5])


def test_the_same_seed_gives_the_same_network() -> None:
    def made(seed: int) -> tuple[list[int], list[float]]:
        network = Network(load([]), seed)
        for _ in range(60):
            network.add_host()
        return network.site, network.access_s

    assert made(1) == made(1)
    assert made(1) != made(2)


def test_slices_can_be_played() -> None:
    slices = np.array([[[NAN, 10.0], [10.0, NAN]], [[NAN, 50.0], [50.0, NAN]]])
    network = Network(slices, seed=1, play=True)
    a, b = network.add_host(), network.add_host()
    assert network.truth_ms(a, b) == 10.0
    network.show(1)
    assert network.truth_ms(a, b) == 50.0
