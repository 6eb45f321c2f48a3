from __future__ import annotations

import random

import msgspec
import numpy as np
import pytest

from sbon.coordinate import Coordinate
from sbon.placement.path_model import End, Field, PathModel, Places, fit
from sbon.placement.questions import KnownPath


def place(rng: random.Random, spread_ms: float = 80.0) -> Coordinate:
    vector = tuple(rng.gauss(0.0, spread_ms) for _ in range(4))
    return Coordinate(vector, rng.uniform(0.0, 10.0), 0.1, tuple(rng.gauss(0.0, 2.0) for _ in range(3)))


def test_predictions_are_those_of_coordinates() -> None:
    rng = random.Random(1)
    here, there = [place(rng) for _ in range(6)], [place(rng) for _ in range(4)]
    expected = [[a.rtt_ms(b) for b in there] for a in here]
    np.testing.assert_allclose(Places(here).rtt_ms(Places(there)), expected, atol=1e-6)


def test_without_measurements_a_path_costs_what_is_predicted() -> None:
    rng = random.Random(2)
    end, hosts = place(rng), [place(rng) for _ in range(5)]
    mean_ms, deviation_ms = PathModel(End(end, ()), Field()).estimate([str(i) for i in range(5)], Places(hosts))
    np.testing.assert_allclose(mean_ms, [host.rtt_ms(end) for host in hosts])
    assert (deviation_ms > 0.0).all()


def test_a_measured_path_is_certain_and_its_neighbours_follow_it() -> None:
    end = Coordinate((100.0, 0.0, 0.0, 0.0), 0.0, 0.1)
    known, near, far = (Coordinate((x, 0.0, 0.0, 0.0), 0.0, 0.1) for x in (0.0, 2.0, -400.0))
    model = PathModel(End(end, (KnownPath("known", known, 110.0),)), Field())
    mean_ms, deviation_ms = model.estimate(["known", "near", "far"], Places([known, near, far]))
    assert (mean_ms[0], deviation_ms[0]) == (110.0, 0.0)
    assert 101.0 < mean_ms[1] < 110.0
    assert abs(mean_ms[2] - 500.0) < abs(mean_ms[1] - 98.0)
    assert 0.0 < deviation_ms[1] / (98.0 + 60.0) < deviation_ms[2] / (500.0 + 60.0)


def test_hosts_of_one_site_are_alike_however_high_they_are() -> None:
    end = Coordinate((100.0, 0.0, 0.0, 0.0), 0.0, 0.06)
    known, sibling = (Coordinate((x, 0.0, 0.0, 0.0), 30.0, 0.06) for x in (0.0, 1.0))
    stranger = Coordinate((0.0, 0.0, 0.0, 0.0), 0.0, 0.06)  # its round trip to the known one would be shorter
    model = PathModel(End(end, (KnownPath("known", known, 100.0),)), Field())
    mean_ms, deviation_ms = model.estimate(["sibling", "stranger"], Places([sibling, stranger]))
    assert mean_ms[0] < 129.0 - 0.5 * 30.0
    assert mean_ms[1] > 100.0 - 0.1 * 30.0
    assert deviation_ms[0] < deviation_ms[1]


def test_one_detour_does_not_spoil_its_neighbours() -> None:
    end, host, near = (Coordinate((x, 0.0, 0.0, 0.0), 0.0, 0.06) for x in (100.0, 0.0, 1.0))
    mean_ms, _ = PathModel(End(end, (KnownPath("h", host, 3000.0),)), Field()).estimate(["n"], Places([near]))
    assert mean_ms[0] < 130.0


@pytest.mark.parametrize(
    "truth", [Field(0.05, 0.1, 1.0, 0.85, 100.0), Field(0.2, 0.1, 1.0, 0.85, 250.0), Field(0.1, 0.1, 1.0, 0.3, 15.0)]
)
def test_the_field_is_learned_from_what_is_known(truth: Field) -> None:
    rng, draws = random.Random(4), np.random.default_rng(4)
    ends = []
    for _ in range(6):
        end, hosts = place(rng), [place(rng) for _ in range(40)]
        places = Places(hosts)
        predicted_ms = places.rtt_ms(Places([end]))
        covariance = truth.covariance(places.apart_ms(places))
        spread_ms = truth.spread_ms(predicted_ms, places, Places([end]))[:, 0]
        residuals = np.linalg.cholesky(covariance) @ draws.standard_normal(40) * spread_ms
        measured_ms = np.maximum(1.0, predicted_ms[:, 0] + residuals)
        paths = [
            KnownPath(str(i), host, float(ms)) for i, (host, ms) in enumerate(zip(hosts, measured_ms, strict=True))
        ]
        ends.append(End(end, paths))
    found = fit(ends)
    assert found.spread == pytest.approx(truth.spread, rel=0.3)
    if truth.near > 0.5:
        assert found.near >= 0.6
        assert found.near_ms >= 40.0


@pytest.mark.parametrize("power", [1.0, 0.0])
def test_whether_claimed_errors_tell_anything_is_learned(power: float) -> None:
    rng, draws = random.Random(5), np.random.default_rng(5)
    truth = Field(0.08, 0.1, power)
    ends = []
    for _ in range(6):
        end = place(rng)
        hosts = [msgspec.structs.replace(place(rng), error=rng.choice((0.06, 0.1, 0.3))) for _ in range(40)]
        places = Places(hosts)
        predicted_ms = places.rtt_ms(Places([end]))
        spread_ms = truth.spread_ms(predicted_ms, places, Places([end]))[:, 0]
        measured_ms = np.maximum(1.0, predicted_ms[:, 0] + draws.standard_normal(40) * spread_ms)
        paths = [
            KnownPath(str(i), host, float(ms)) for i, (host, ms) in enumerate(zip(hosts, measured_ms, strict=True))
        ]
        ends.append(End(end, paths))
    assert fit(ends).doubt_power == power


def test_a_handful_of_paths_teaches_nothing() -> None:
    rng = random.Random(3)
    assert fit([End(place(rng), [KnownPath(str(i), place(rng), 50.0) for i in range(5)])]) == Field()


def test_correlations_are_correlations() -> None:
    """Whatever coordinates are advertised, the model can be solved."""
    rng = random.Random(6)
    for _ in range(20):
        places = Places([place(rng, spread_ms=rng.choice((0.0, 1.0, 100.0))) for _ in range(60)])
        for near, near_ms in ((0.65, 6.0), (0.9, 250.0)):
            np.linalg.cholesky(Field(near=near, near_ms=near_ms).covariance(places.apart_ms(places)))
