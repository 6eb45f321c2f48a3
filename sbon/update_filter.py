"""What of a moving coordinate is advertised, and when: others need not hear of every sample (DESIGN: Cost space).

A place that follows every sample trembles, and news of it would be most of what nodes send. Two filters are between
the raw place and the advertised one. Once a node has found its place, that is *smoothed*, by a moving average over
minutes: that takes the trembling out of the predictions, too. A node that has really moved is noticed by samples that
its smoothed place predicts far worse than its raw one does; then the average begins anew. Until a place was found its
error is said to be the largest: whoever looks for the nearest does not want a guess. And it is news only when
*predictions* change, for most of the others, by more than a share: what matters in a change is what it is relative to.
That is in the spirit of RELATIVE in L07, which compares with the nearest neighbour and so makes a node beside another
one advertise all the time. Figures are in docs/decisions/coordinates.md. Source:

- L07: J. Ledlie, P. Gardner, M. Seltzer, "Network Coordinates in the Wild", NSDI 2007, section 5 (update filters).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import msgspec

from sbon.coordinate import MAX_ERROR, Coordinate
from sbon.coordinate_estimator import MIN_SCALE_MS, SETTLED_PROBES

#: Weight of the newest place in the moving average in the long run, and of a node that has moved, at first.
SMOOTHING: Final = 0.003
MOVED: Final = 0.1
#: Until the weight has come down to SMOOTHING, the average is over this share, the latest, of the time since the place
#: was found, or since the node has moved: all places move while an overlay is new, and an average over more would be
#: late. Once it is over so many samples, most that a place moves is trembling: it is over this share of what follows.
LATEST: Final = 1 / 6
STEADY_SAMPLES: Final = LATEST * SETTLED_PROBES
LATEST_STEADY: Final = 1 / 2
#: A node has moved when its smoothed place errs by so many times as much as its raw one, in running means with this
#: weight of the newest sample.
MOVED_RATIO: Final = 1.8
ERROR_WEIGHT: Final = 0.03
#: A place is found that errs by less than this: what others hear of it, and tell on, stays true for a while.
FOUND_ERROR: Final = 0.1
#: After so many probes also one that errs by less than this; one that errs by more is lost again: it seems to be near
#: to nodes to which it is not. (While a fifth of the nodes was replaced every minute, such had 2 % of 10,000 nodes',
#: and 5 % of 2,500 nodes', places among the ten nearest of others that those younger than a minute had.)
LOST_PROBES: Final = 30
LOST_ERROR: Final = 0.3
#: Share of the ratio that makes news of a new node that errs by more than this: it comes nearer by small steps, too. If
#: others told each step, what is heard of them from third ones would never be true.
SETTLING_SHARE: Final = 0.4
LOOKING_ERROR: Final = 0.15
#: After so many any place is found: that of a node that no coordinate fits, too.
UNFIT_PROBES: Final = 60


class UpdateFilter:
    """Follows the raw place of one node."""

    def __init__(self, ratio: float, least_ms: float) -> None:
        """Predictions have changed when they have by this ratio on average; one by ``least_ms`` at least."""
        self._ratio = ratio
        self._least_ms = least_ms
        self._smoothed: Coordinate | None = None
        self._weight = 1.0
        #: Mean relative errors of the smoothed place and of the raw one, at samples that neither had taken.
        self._smoothed_error = self._raw_error = MAX_ERROR
        self._is_settling = True
        #: Whether the place was found, and not lost again.
        self.has_found = False

    def compare(self, sample_rtt_ms: float, other: Coordinate, raw: Coordinate) -> None:
        """A sample to a node at ``other`` that ``raw``, the place now, has not taken yet: does it fit that much better
        than the smoothed one that the node has moved?"""
        smoothed = self._smoothed
        if smoothed is None:
            return
        self._smoothed_error += ERROR_WEIGHT * (_error(smoothed, sample_rtt_ms, other) - self._smoothed_error)
        self._raw_error += ERROR_WEIGHT * (_error(raw, sample_rtt_ms, other) - self._raw_error)
        if self._smoothed_error > MOVED_RATIO * self._raw_error:
            self._weight = max(self._weight, MOVED)

    def take(self, raw: Coordinate, probes: int) -> Coordinate:
        """The raw place is ``raw``, after so many probes; what is best said of it."""
        self._is_settling = probes < SETTLED_PROBES
        bound = LOST_ERROR if self.has_found or probes >= LOST_PROBES else FOUND_ERROR
        self.has_found = raw.error <= bound or probes >= UNFIT_PROBES
        if not self.has_found:
            return msgspec.structs.replace(raw, error=MAX_ERROR)
        if self._smoothed is None or (self._is_settling and raw.error > LOOKING_ERROR):
            self._weight = 1.0
            self._smoothed = raw
        else:
            longer_samples = LATEST if self._weight * STEADY_SAMPLES > 1.0 else LATEST_STEADY
            self._weight = max(SMOOTHING, self._weight / (1.0 + longer_samples * self._weight))
            self._smoothed = _between(self._smoothed, raw, self._weight)
        return self._smoothed

    def is_news(self, place: Coordinate, predictions: Iterable[tuple[Coordinate, float]]) -> bool:
        """Whether to advertise ``place``: ``predictions`` are other nodes' places and the round trips to them that
        follow from what is advertised now. Nobody to tell: no news.
        """
        is_looking = self._is_settling and place.error > LOOKING_ERROR
        ratio = self._ratio * SETTLING_SHARE if is_looking else self._ratio
        changes = [
            abs(place.rtt_ms(other) - predicted_ms) / max(ratio * predicted_ms, self._least_ms)
            for other, predicted_ms in predictions
        ]
        return bool(changes) and sum(changes) >= len(changes)


def _error(place: Coordinate, sample_rtt_ms: float, other: Coordinate) -> float:
    """Relative, at most 1: a liar's sample tells nothing of how far one has moved."""
    return min(MAX_ERROR, abs(place.rtt_ms(other) - sample_rtt_ms) / max(sample_rtt_ms, MIN_SCALE_MS))


def _between(old: Coordinate, new: Coordinate, weight: float) -> Coordinate:
    # A weighted sum of two equal numbers can be larger than they are, by rounding, and they may be at a bound.
    vector_ms = tuple([x + weight * (y - x) for x, y in zip(old.vector_ms, new.vector_ms, strict=True)])
    factors = tuple([x + weight * (y - x) for x, y in zip(old.factors, new.factors, strict=True)])
    return Coordinate(vector_ms, old.height_ms + weight * (new.height_ms - old.height_ms), new.error, factors)
