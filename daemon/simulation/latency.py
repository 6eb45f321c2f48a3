"""Round trips between simulated hosts: read from files, cleaned, and enlarged to any number of hosts.

A file holds a matrix (n, n) or a time series (t, n, n) in ms; ``rtt[..., i, j]`` is from site i to site j and NaN is
missing. What is true of a pair is the mean of both directions, the median over slices unless time is being played
(DESIGN: Cost space).

*Hosts beyond sites.* Host i stands at site ``order[i mod n]``, ``order`` being a shuffle drawn from the seed. The
first n hosts are the sites themselves; every further one is a copy behind an access line of its own, whose round trip
is drawn from an exponential distribution of mean ``ACCESS_MEAN_MS`` and is added to each of its paths. Two hosts of one
site are ``SAME_SITE_MS`` apart, plus their access lines.
"""

from __future__ import annotations

import csv
import gzip
import io
import random
import zipfile
from collections.abc import Sequence
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sbon.errors import SbonError

Matrix = NDArray[np.float64]

#: Round trip added by a copied host's access line, on average: a good access network.
ACCESS_MEAN_MS = 2.0
#: Round trip between two hosts of one site.
SAME_SITE_MS = 0.5
#: No round trip is shorter: a datagram has to arrive after it was sent.
LEAST_RTT_MS = 0.02
MAX_FILE_RTT_MS = 10_000.0


def load(files: Sequence[Path]) -> Matrix:
    """Slices (t, n, n) in ms, those of several files in order; the built-in network if there are none.

    Raises SbonError for a file that cannot be used.
    """
    if not files:
        builtin = resources.files("daemon.simulation") / "data" / "gcp44_rtt_ms.npz"
        return _slices(_read_npz(io.BytesIO(builtin.read_bytes())), "the built-in network")
    parts = [_slices(_read(file), str(file)) for file in files]
    for file, part in zip(files, parts, strict=True):
        if part.shape[1:] != parts[0].shape[1:]:
            sizes = f"{part.shape[1]} sites and {files[0]} has {parts[0].shape[1]}"
            raise SbonError(f"{file} has {sizes}: several --rtt are slices of one network in time")
    return np.concatenate(parts)


def _read(file: Path) -> Matrix:
    try:
        if file.suffix == ".npz":
            with file.open("rb") as stream:
                return _read_npz(stream)
        data = file.read_bytes()
        text = (gzip.decompress(data) if file.suffix == ".gz" else data).decode()
        return _read_csv(csv.reader(io.StringIO(text)))
    except (OSError, EOFError) as error:
        reason = getattr(error, "strerror", None) or error
        raise SbonError(f"cannot read {file}: {reason}: give a .npz or .csv file of round trips") from error
    except (ValueError, KeyError, zipfile.BadZipFile) as error:
        reason = str(error).strip("'")
        raise SbonError(f"{file} holds no round trips: {reason}: see docs/simulator.md for the forms") from error


def _read_npz(stream: Any) -> Matrix:
    with np.load(stream, allow_pickle=False) as arrays:
        if "rtt" not in arrays:
            raise KeyError("there is no array `rtt` in it")
        return np.asarray(arrays["rtt"], dtype=np.float64)


def _read_csv(lines: Any) -> Matrix:
    """Numbers, an empty field is missing; a first line and a first column of names are skipped."""
    rows = [row for row in lines if row]
    if rows and any(_number(field) is None for field in rows[0][1:]):
        rows = rows[1:]
    if rows and any(_number(row[0]) is None for row in rows):
        rows = [row[1:] for row in rows]
    if not rows or any(len(row) != len(rows) for row in rows):
        raise ValueError(f"{len(rows)} lines that do not make a square")
    values = [[_number(field) for field in row] for row in rows]
    if any(value is None for row in values for value in row):
        raise ValueError("a field that is not a number")
    return np.array(values, dtype=np.float64)


def _number(field: str) -> float | None:
    try:
        return float(field) if field.strip() else float("nan")
    except ValueError:
        return None


def _slices(rtt_ms: Matrix, origin: str) -> Matrix:
    """Three axes, every value a round trip or NaN, the diagonal NaN. Raises SbonError."""
    slices = rtt_ms[None] if rtt_ms.ndim == 2 else rtt_ms
    if slices.ndim != 3 or slices.shape[1] != slices.shape[2] or slices.shape[1] < 2 or not len(slices):
        raise SbonError(f"{origin} has shape {rtt_ms.shape}: (n, n) or (t, n, n) with n of at least 2 is needed")
    cleaned = slices.copy()
    cleaned[~(np.isfinite(cleaned) & (cleaned > 0.0))] = np.nan
    cleaned[:, np.arange(slices.shape[1]), np.arange(slices.shape[1])] = np.nan
    if np.nanmax(cleaned, initial=0.0) > MAX_FILE_RTT_MS:
        raise SbonError(f"{origin} has a round trip over {MAX_FILE_RTT_MS:g} ms: are these milliseconds?")
    if not np.isfinite(cleaned).any():
        raise SbonError(f"{origin} has no round trip at all: see docs/simulator.md for the forms")
    return cleaned


class Sites:
    """The paths between sites at one time (one slice), or on the whole (the median over slices).

    ``truth_ms[i, j]`` is symmetric and NaN where neither direction was measured; ``one_way_s[i][j]`` is complete, plain
    floats for speed, and its two directions of a pair add up to the truth.
    """

    def __init__(self, slices: Matrix) -> None:
        """``slices`` as from :func:`load`."""
        mirrored = slices.transpose(0, 2, 1)
        there = np.where(np.isnan(slices), mirrored, slices)  # a missing direction is like its mirror
        back = there.transpose(0, 2, 1)
        with np.errstate(invalid="ignore"):
            means = (there + back) / 2.0
            truth = _median(means)
            share = _median(there / (there + back))
        self.truth_ms: Matrix = np.maximum(truth, LEAST_RTT_MS)  # NaN stays
        complete = _filled(self.truth_ms)
        one_way = complete * np.where(np.isnan(share), 0.5, share) / 1000.0
        np.fill_diagonal(one_way, SAME_SITE_MS / 2000.0)
        np.fill_diagonal(self.truth_ms, SAME_SITE_MS)
        self.one_way_s: list[list[float]] = one_way.tolist()

    def __len__(self) -> int:
        return len(self.one_way_s)


def _median(slices: Matrix) -> Matrix:
    nowhere = np.isnan(slices).all(axis=0)
    medians = np.asarray(np.nanmedian(np.where(nowhere, 0.0, slices), axis=0))
    medians[nowhere] = np.nan
    return medians


def _filled(truth_ms: Matrix) -> Matrix:
    """Where nothing was measured: the shortest way over one other site, else the median. No truth: for delays."""
    complete = truth_ms.copy()
    np.fill_diagonal(complete, 0.0)
    known = np.where(np.isnan(complete), np.inf, complete)
    for i, j in zip(*np.nonzero(np.isnan(complete)), strict=True):
        over = float(np.min(known[i] + known[:, j]))
        complete[i, j] = over if np.isfinite(over) else float(np.nanmedian(truth_ms))
    return complete


class Network:
    """Where each host is: ``site[i]``, and ``access_s[i]``, half of the round trip of its access line."""

    def __init__(self, slices: Matrix, seed: int, *, play: bool = False) -> None:
        """``play``: the slices one after the other (:meth:`show`), else their median."""
        self._slices = slices
        self.slices = len(slices) if play else 1
        self.sites = Sites(slices[:1] if play else slices)
        self._order = list(range(len(self.sites)))
        self._rng = random.Random(f"{seed}/network")
        self._rng.shuffle(self._order)
        self.site: list[int] = []
        self.access_s: list[float] = []
        self._added = 0

    def add_host(self) -> int:
        """The next host by the rule above; returns its index."""
        host, self._added = self._added, self._added + 1
        self.site.append(self._order[host % len(self._order)])
        self.access_s.append(0.0 if host < len(self._order) else self._rng.expovariate(1.0) * ACCESS_MEAN_MS / 2000.0)
        return len(self.site) - 1

    def add_host_like(self, host: int) -> int:
        """One more at the very place of ``host``: whoever comes after it."""
        self.site.append(self.site[host])
        self.access_s.append(self.access_s[host])
        return len(self.site) - 1

    def show(self, index: int) -> None:
        """From now on, the paths of slice ``index``."""
        self.sites = Sites(self._slices[index : index + 1])

    def truth_ms(self, i: int, j: int) -> float:
        """The true round trip between two different hosts; NaN if it was never measured."""
        access_ms = (self.access_s[i] + self.access_s[j]) * 2000.0
        return float(self.sites.truth_ms[self.site[i], self.site[j]]) + access_ms
