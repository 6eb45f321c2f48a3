"""Where we are: a Kalman filter that finds a node's own coordinate from round trips to others.

Vivaldi moves a node by a share of each sample's error along the line to the other node. It neither knows which
directions it is sure of, nor how sure. This estimator keeps, beside the place, the covariance of its error, as an
extended Kalman filter: a sample moves the node most in the directions about which least is known, early samples much
and later ones little, without a schedule. Four things make it fit for an overlay:

- *Forgetting.* Others move, too, and most while all are new. So the covariance is inflated with every sample: by more
  while our predictions are bad, so that a node whose surroundings have changed follows (K60, "fading memory").
- *Robustness.* What matters is the relative error, so a sample's noise is in proportion to its round trip. A sample
  that contradicts our place by more than a seventh counts less (Huber's weights), one that contradicts it by far more
  than is usual for us counts next to nothing (a redescending weight, as in Hampel's work), and the less beyond 50 ms,
  so that a liar cannot hide behind a long path. What is usual is a
  *quantile* of the latest samples, seen from where we are now: a minority of liars, however loud, cannot widen it,
  and as soon as the honest agree the liars are out. (A running estimate follows too slowly: while it was wide, liars
  kept it so.) Where more than two fifths would be outliers, it is rather us who are wrong: so many never are,
  unless they are off by more than their whole round trips.
- *Near nodes are off together.* They confirm each other's places, to each other, within a fraction of a millisecond,
  which tells none of them where all of them are. What they may be off by together stays in doubt: else far samples
  would no longer move them (correlated errors, J97).
- *No word is trusted.* Another's claimed error can lower the weight of its sample, never raise it above what we allow
  ourselves. (With claimed errors taken at their word, 20 % of liars broke a new overlay by most attacks.)

Cost: some 20 microseconds per sample in pure Python, 36 numbers of covariance. Sources:

- K60: R. Kalman, "A New Approach to Linear Filtering and Prediction Problems", 1960; fading memory: H. Sorenson,
  J. Sacks, "Recursive Fading Memory Filtering", Information Sciences 3, 1971. Kalman filters for coordinates, as a
  check on Vivaldi's steps: M. Kaafar et al., "Securing Internet Coordinate Embedding Systems", SIGCOMM 2007.
- H64: P. Huber, "Robust Estimation of a Location Parameter", Annals of Mathematical Statistics 35, 1964; F. Hampel et
  al., "Robust Statistics: The Approach Based on Influence Functions", 1986, section 2.6 (redescending weights).
- J97: S. Julier, J. Uhlmann, "A Non-divergent Estimation Algorithm in the Presence of Unknown Correlations", ACC 1997.
- V04: F. Dabek et al., "Vivaldi", SIGCOMM 2004. N12: J. Seibert et al., "Newton", ICDCS 2012 (bounds on forces).
"""

from __future__ import annotations

import math
import random
from collections import deque
from typing import Final

from sbon.coordinate import (
    DEFAULT_DIMENSIONS,
    FACTORS,
    MAX_DIMENSIONS,
    MAX_ERROR,
    MAX_FACTOR,
    MIN_HEIGHT_MS,
    NO_FACTORS,
    Coordinate,
    check_sample,
    origin,
)
from sbon.errors import RemoteProtocolError

#: What may be expected before anything was measured, as standard deviations: each further dimension is less important.
VECTOR_SPREAD_MS: Final = 50.0
SPREAD_RATIO: Final = 0.85
HEIGHT_SPREAD_MS: Final = 30.0
FACTOR_SPREAD: Final = 4.0
#: The first place is drawn near the origin, with these standard deviations: nodes in one place would find no direction.
START_VECTOR_MS: Final = 10.0
START_FACTOR: Final = 2.0
START_HEIGHT_MS: Final = 1.0
#: The pull to what was expected, as a share of a sample's weight: it matters where little is known.
PRIOR_PULL: Final = 0.03
#: The pull to the origin, as a share of the place, that does not vanish as a node becomes sure. All places together can
#: drift, and distances grow while factors make up for them: no sample tells. In half a day that doubled the error. The
#: more it is, the nearer all are taken for: groups of near nodes follow their far samples slowly.
GRAVITY: Final = 5e-5

#: Relative noise of a sample between two nodes that know their places, and the share of their errors that adds to it.
SAMPLE_NOISE: Final = 0.05
ERROR_NOISE: Final = 0.5
#: Two nodes that are nearer to each other than this are off together, by their relative error times what the round trip
#: is short of it. A sample leaves so much in doubt of where they are.
COMMON_WITHIN_MS: Final = 30.0
#: Round trips below this are not worth a relative error: half a millisecond is what a busy host takes to answer.
MIN_SCALE_MS: Final = 0.5
#: Huber's bound: residuals up to this relative error, and up to this share of our own uncertainty, count in full.
HUBER_RELATIVE: Final = 0.15
HUBER_UNCERTAINTY: Final = 0.1
#: Residuals beyond so many times what is usual (and beyond the least bound), and beyond our own uncertainty
#: so many times, are discounted by this power.
OUTLIER_FACTOR: Final = 3.5
MIN_OUTLIER: Final = 0.1
OUTLIER_UNCERTAINTY: Final = 1.0
OUTLIER_POWER: Final = 2.0
#: One that is off by more than this besides is discounted by this power of it, too: on a long path a liar who moves
#: away slowly is no more of an outlier than many who are honest, for minutes.
FAR_OFF_MS: Final = 50.0
FAR_OFF_POWER: Final = 4.0
#: What is usual: this quantile of the relative residuals of so many latest samples, seen from where we are now. It is
#: the median of the honest if a fifth are liars. It is looked at with each probe of a new node, then every few.
USUAL_QUANTILE: Final = 0.4
#: So many of them are no outliers, unless they are off by more than MAX_ERROR: by chance more than a third may be lies.
NOT_OUTLYING: Final = 0.6
RECENT_SAMPLES: Final = 64
LEAST_SAMPLES: Final = 6
USUAL_EVERY: Final = 8
#: After each so many probes the place is looked for anew, in so many rounds over the latest samples, and the new one
#: taken if what is left over by those that agree is less than this share.
LOOK_EVERY: Final = 32
LOOKS: Final = 3
MUCH_BETTER: Final = 0.7

#: Inflation of the covariance with each sample: in the long run, more for a bad place, more for a young one; at most.
FORGETTING: Final = 0.01
FORGETTING_BY_ERROR: Final = 0.1
FORGETTING_YOUNG: Final = 2.0
YOUNG_SAMPLES: Final = 20
MAX_FORGETTING: Final = 0.03

#: The running median of relative errors moves by this factor with each sample.
ERROR_STEP: Final = 1.05
MIN_ERROR: Final = 0.02
#: A place that was found is one, however bad: MAX_ERROR is for nodes that have none.
WORST_ERROR: Final = 0.95
#: One sample moves the place by no more than its own round trip, and one probe, with all that is taken again with it,
#: changes predictions by no more than this (N12).
MAX_STEP_MS: Final = 100.0
#: Nobody is further from the origin, in one dimension.
MAX_PLACE_MS: Final = 1000.0
#: So many probes after its start a node is settled, and probes alone tell enough.
SETTLED_PROBES: Final = 200
#: Until then it takes so many of its latest samples again with each probe, out of so many.
REPLAYED: Final = 3
REPLAYED_OF: Final = 16

#: A coordinate from before a restart is a hint: so many samples decide, each of which agrees or does not; from nodes
#: that are sure of their places, or of all, if after so many there are not enough of them.
HINT_SAMPLES: Final = 8
MAX_HINT_SAMPLES: Final = 24
HINT_AGREEMENT: Final = 0.25
#: A hint that has been agreed with is worth this share of the spread before anything was measured.
HINT_SPREAD: Final = 0.3


class CoordinateEstimator:
    """The moving coordinate of one node. ``coordinate`` is a value; only samples change which one.

    Call :meth:`update` with every probe's (filtered) round trip, and :meth:`hear` when a peer whose path has been
    measured tells a new coordinate. While a node is new, samples are worth more than one step: it is at another place
    when it takes them again, and so finds its place in half the time.
    """

    def __init__(
        self, dimensions: int = DEFAULT_DIMENSIONS, *, use_height: bool = True, hint: Coordinate | None = None
    ) -> None:
        """Start at the origin. ``use_height=False`` is the plain space of the papers, without heights and factors.

        ``hint`` is the coordinate from before a restart, say. It is tried, not trusted: until samples agree with it the
        error is claimed as 1, and if most of the first ones contradict it, the node begins anew. One that cannot be
        (of other dimensions, say) is left aside.
        Raises ValueError for a number of dimensions that cannot be advertised.
        """
        if not 1 <= dimensions <= MAX_DIMENSIONS:
            raise ValueError(f"{dimensions} dimensions: 1 to {MAX_DIMENSIONS} are possible")
        self._dimensions = dimensions
        self._factors = FACTORS if use_height else 0
        height, factor = (HEIGHT_SPREAD_MS**2, FACTOR_SPREAD**2) if use_height else (0.0, 0.0)
        #: Variances before anything was measured, in the order of the state: vector, height, factors.
        self._prior = [(VECTOR_SPREAD_MS * SPREAD_RATIO**k) ** 2 for k in range(dimensions)]
        self._prior += [height] + [factor] * self._factors
        least_ms = MIN_HEIGHT_MS if use_height else 0.0
        self._least = [-MAX_PLACE_MS] * dimensions + [least_ms] + [-MAX_FACTOR] * self._factors
        self._most = [MAX_PLACE_MS] * dimensions + [MAX_PLACE_MS] + [MAX_FACTOR] * self._factors
        start = origin(dimensions)
        self._place = [*start.vector_ms, start.height_ms if use_height else 0.0] + [0.0] * self._factors
        self._error = MAX_ERROR
        #: Of the error of the place. It is symmetric: of each row all up to the diagonal.
        self._covariance: list[list[float]] = []
        self._trial: _Trial | None = None
        self._samples = 0
        self._recent: deque[_Sample] = deque(maxlen=RECENT_SAMPLES)
        #: Relative residuals beyond this are outliers.
        self._outlying = MAX_ERROR
        #: Probes taken, not counting what was heard.
        self.updates = 0
        self.coordinate = self._advertised()
        if hint is not None:
            self._try(hint)

    @property
    def is_settling(self) -> bool:
        """Whether the node is new, so that :meth:`hear` still makes a difference."""
        return self.updates < SETTLED_PROBES

    # --- samples

    def update(self, sample_rtt_ms: float, other: Coordinate, rng: random.Random) -> Coordinate:
        """Take one (filtered) sample to a node at ``other``; ``rng`` picks a way out of coincidence.

        Raises RemoteProtocolError, and changes nothing, for a sample or a coordinate that cannot be.
        """
        check_sample(sample_rtt_ms)
        other.check(self._dimensions)
        self.updates += 1
        recent, before, is_tried = self._recent, self._place, self._trial is not None
        if self.is_settling or self.updates % USUAL_EVERY == 0:
            self._outlying = self._find_outlying()
        if self._trial is not None:
            self._judge(sample_rtt_ms, other, rng)
        sample = _Sample(sample_rtt_ms, other)
        self._take(sample, rng)
        recent.append(sample)
        if self.is_settling:
            for _ in range(REPLAYED):
                self._take(recent[-1 - rng.randrange(min(REPLAYED_OF, len(recent)))], rng)
        if is_tried is (self._trial is not None):  # a hint that has failed is left at once
            self._limit_step(before)
        self.coordinate = self._advertised()
        if self.updates % LOOK_EVERY == 0 and self._trial is None:
            self._look_again(rng)
        return self.coordinate

    def _look_again(self, rng: random.Random) -> None:
        """Find a place anew from the latest samples alone, and keep the one that most of them agree with by far better:
        a node that took the wrong side in the beginning holds the honest for liars and never gets away, and one that
        liars have led astray, slowly, finds back only in many small steps after they were found out."""
        before = self._lack_of_consensus()
        if before < MIN_ERROR:  # as good as errors are told: nothing is by far better
            return
        kept = (self._place, self._covariance, self._error, self._samples, self._outlying, self.coordinate)
        self._start(rng)
        self._outlying = MAX_ERROR
        order = list(self._recent)
        for _ in range(LOOKS):
            rng.shuffle(order)
            for sample in order:
                self._take(sample, rng)
            self.coordinate = self._advertised()
            self._outlying = self._find_outlying()
        if self._lack_of_consensus() > MUCH_BETTER * before:
            self._place, self._covariance, self._error, self._samples, self._outlying, self.coordinate = kept

    def _lack_of_consensus(self) -> float:
        """Mean relative residual of those samples that agree most (least trimmed squares, in the first power)."""
        residuals = self._residuals()
        agreeing = residuals[: 1 + int(NOT_OUTLYING * len(residuals))]
        return sum(agreeing) / len(agreeing)

    def _residuals(self) -> list[float]:
        """Of the latest samples, relative to their round trips, seen from here, the least first."""
        here, dist = self.coordinate, math.dist
        vector_ms, height_ms, (a, b, c) = here.vector_ms, here.height_ms, here.factors or NO_FACTORS
        residuals: list[float] = []
        for sample in self._recent:
            # Coordinate.raw_rtt_ms, of which our part stays the same.
            rtt_ms = dist(vector_ms, sample.vector_ms) + height_ms + sample.height_ms
            rtt_ms = rtt_ms + a * sample.a - b * sample.b + c * sample.c
            residuals.append(abs(sample.rtt_ms - rtt_ms) / sample.scale_ms)
        residuals.sort()
        return residuals

    def _find_outlying(self) -> float:
        """From which relative residual on a sample is an outlier, whatever a minority says."""
        if len(self._recent) < LEAST_SAMPLES:
            return MAX_ERROR
        residuals = self._residuals()
        usual, most = residuals[int(USUAL_QUANTILE * len(residuals))], residuals[int(NOT_OUTLYING * len(residuals))]
        return max(MIN_OUTLIER, OUTLIER_FACTOR * usual, min(MAX_ERROR, most))

    def _limit_step(self, before: list[float]) -> None:
        """One probe, with all that was taken again, changes no prediction by more than the largest step. A place that
        is then found anew (:meth:`_look_again`) may be anywhere."""
        place, moved_ms = self._place, self.coordinate.unlike_ms(self._advertised())
        if moved_ms > MAX_STEP_MS:
            ratio = MAX_STEP_MS / moved_ms
            self._place = [x + ratio * (y - x) for x, y in zip(before, place, strict=True)]

    def hear(self, measured_rtt_ms: float, other: Coordinate, rng: random.Random) -> Coordinate:
        """A peer whose path was measured before says that it is at ``other`` now. Of no effect on a settled node.

        Raises RemoteProtocolError, and changes nothing, like :meth:`update`.
        """
        check_sample(measured_rtt_ms)
        other.check(self._dimensions)
        if self.is_settling:
            self._take(_Sample(measured_rtt_ms, other), rng)
            self.coordinate = self._advertised()
        return self.coordinate

    def _take(self, sample: _Sample, rng: random.Random) -> None:
        if not self._covariance:
            self._start(rng)
        place, scale_ms = self._place, sample.scale_ms
        predicted_ms, slope = self._predict(sample, rng)
        residual_ms = sample.rtt_ms - predicted_ms
        gains = _product(self._covariance, slope)
        own_variance = max(_inner_product(gains, slope), 1e-9)
        variance = own_variance + self._noise(residual_ms, scale_ms, own_variance, sample.error)
        step = residual_ms / variance
        moved_ms = abs(step) * math.hypot(*gains[: self._dimensions + 1])
        limit_ms = min(MAX_STEP_MS, scale_ms)
        if moved_ms > limit_ms:
            step *= limit_ms / moved_ms
        self._learn(gains, variance + self._common_variance(scale_ms, sample.error))
        pulls = _product(self._covariance, [x / p if p else 0.0 for x, p in zip(place, self._prior, strict=True)])
        self._place = self._bounded(
            [x + step * gains[i] - PRIOR_PULL * pulls[i] - GRAVITY * x for i, x in enumerate(place)]
        )
        relative_error = min(MAX_ERROR, abs(residual_ms) / scale_ms)
        if relative_error > self._error:
            self._error = min(WORST_ERROR, self._error * ERROR_STEP)
        else:
            self._error = max(MIN_ERROR, self._error / ERROR_STEP)

    def _predict(self, sample: _Sample, rng: random.Random) -> tuple[float, list[float]]:
        """The round trip that our place predicts, and how it changes with each number of our place."""
        place, dimensions = self._place, self._dimensions
        apart = [place[i] - y for i, y in enumerate(sample.vector_ms)]
        apart_ms = math.hypot(*apart)
        # Two nodes in one place get away from each other in a random direction (V04 section 2.3).
        slope = [x / apart_ms for x in apart] if apart_ms > 1e-6 else _random_direction(dimensions, rng)
        predicted_ms = apart_ms + place[dimensions] + sample.height_ms
        slope.append(1.0)
        if self._factors:
            slope += [sample.a, -sample.b, sample.c]
            predicted_ms += _inner_product(slope[dimensions + 1 :], place[dimensions + 1 :])
        return predicted_ms, slope

    def _noise(self, residual_ms: float, scale_ms: float, own_variance: float, claimed_error: float) -> float:
        """Variance of a sample, in ms^2: in proportion to its round trip, and large for one that contradicts us."""
        error = self._error
        doubt = ERROR_NOISE * max(claimed_error, error)  # a peer is never surer than we are
        off_ms = abs(residual_ms)
        uncertainty_ms = math.sqrt(own_variance)
        discount = max(1.0, off_ms / (HUBER_RELATIVE * scale_ms + HUBER_UNCERTAINTY * uncertainty_ms))
        outlying_ms = scale_ms * self._outlying
        excess = off_ms / (outlying_ms + OUTLIER_UNCERTAINTY * uncertainty_ms)
        if excess > 1.0:
            discount *= excess**OUTLIER_POWER * max(1.0, off_ms / FAR_OFF_MS) ** FAR_OFF_POWER
        return scale_ms * scale_ms * (SAMPLE_NOISE * SAMPLE_NOISE + doubt * doubt) * discount

    def _common_variance(self, scale_ms: float, claimed_error: float) -> float:
        """In ms^2, of what the other end and we are off by together. It makes no difference to where the sample puts us
        beside the other, only to how sure we are of our place (J97)."""
        common_ms = max(0.0, COMMON_WITHIN_MS - scale_ms) * max(claimed_error, self._error)
        return common_ms * common_ms

    def _learn(self, gains: list[float], variance: float) -> None:
        """The covariance after a sample: less by what it told, inflated by what is forgotten, never above the start."""
        self._samples += 1
        young = FORGETTING_YOUNG / (self._samples + YOUNG_SAMPLES)
        growth = 1.0 + min(MAX_FORGETTING, FORGETTING + FORGETTING_BY_ERROR * self._error + young)
        # The square root keeps the matrix symmetric to the last bit; what is not grows with every inflation.
        root = math.sqrt(variance)
        told = [gain / root for gain in gains]
        for i, row in enumerate(self._covariance):
            t = told[i]
            for j in range(i + 1):
                row[j] = growth * (row[j] - t * told[j])
        for i, limit in enumerate(self._prior):
            most = self._covariance[i][i]
            if most > limit:
                self._shrink(i, math.sqrt(limit / most))

    def _shrink(self, i: int, ratio: float) -> None:
        """Let one number of the place be surer: its row and its column, and so its variance twice."""
        row = self._covariance[i]
        for j in range(i + 1):
            row[j] *= ratio
        for other in self._covariance[i:]:
            other[i] *= ratio

    def _bounded(self, place: list[float]) -> list[float]:
        return [max(self._least[i], min(self._most[i], x)) for i, x in enumerate(place)]

    # --- beginnings

    def _start(self, rng: random.Random) -> None:
        """Somewhere near the origin, and sure of nothing."""
        self._covariance = _diagonal(self._prior)
        self._error, self._samples = MAX_ERROR, 0
        vector = [rng.gauss(0.0, START_VECTOR_MS * SPREAD_RATIO**k) for k in range(self._dimensions)]
        height_ms = START_HEIGHT_MS if self._factors else 0.0
        self._place = [*vector, height_ms, *(rng.gauss(0.0, START_FACTOR) for _ in range(self._factors))]

    def _try(self, hint: Coordinate) -> None:
        """Begin at a coordinate that may be out of date. One that cannot be is left aside."""
        try:
            hint.check(self._dimensions)
        except RemoteProtocolError:
            return
        factors = (hint.factors or NO_FACTORS) if self._factors else ()
        self._place = self._bounded([*hint.vector_ms, hint.height_ms if self._factors else 0.0, *factors])
        self._covariance = _diagonal([HINT_SPREAD**2 * p for p in self._prior])
        self._error = HINT_AGREEMENT
        self._trial = _Trial()
        self.coordinate = self._advertised()

    def _judge(self, rtt_ms: float, other: Coordinate, rng: random.Random) -> None:
        """One more sample speaks for the hint or against it. Who knows no more than we is asked only if nobody else is
        there, as after a restart of all."""
        trial = self._trial
        if trial is None:
            return
        off_ms = abs(rtt_ms - self.coordinate.raw_rtt_ms(other))
        trial.votes.append((other.error <= HINT_AGREEMENT, off_ms <= HINT_AGREEMENT * max(rtt_ms, MIN_SCALE_MS)))
        sure = [agrees for is_sure, agrees in trial.votes if is_sure]
        if len(sure) < HINT_SAMPLES and len(trial.votes) < MAX_HINT_SAMPLES:
            return
        asked = sure if len(sure) >= HINT_SAMPLES else [agrees for _, agrees in trial.votes]
        self._trial = None
        if 2 * sum(asked) <= len(asked):
            self._start(rng)

    def _advertised(self) -> Coordinate:
        place, dimensions = self._place, self._dimensions
        error = MAX_ERROR if self._trial is not None else self._error
        return Coordinate(tuple(place[:dimensions]), place[dimensions], error, tuple(place[dimensions + 1 :]))


class _Sample:
    """A round trip to another's place, its numbers laid out: it is taken and looked at many times."""

    __slots__ = ("a", "b", "c", "error", "height_ms", "rtt_ms", "scale_ms", "vector_ms")

    def __init__(self, rtt_ms: float, other: Coordinate) -> None:
        self.rtt_ms = rtt_ms
        self.scale_ms = max(rtt_ms, MIN_SCALE_MS)
        self.vector_ms = other.vector_ms
        self.height_ms = other.height_ms
        #: The factors.
        self.a, self.b, self.c = other.factors or NO_FACTORS
        self.error = other.error


class _Trial:
    """How a hint does: for each sample, whether the other end was sure of its place, and whether it agreed."""

    __slots__ = ("votes",)

    def __init__(self) -> None:
        self.votes: list[tuple[bool, bool]] = []


def _diagonal(values: list[float]) -> list[list[float]]:
    return [[0.0] * i + [value] for i, value in enumerate(values)]


def _product(matrix: list[list[float]], vector: list[float]) -> list[float]:
    """Of a symmetric matrix, of each row all up to the diagonal. Plain loops: nothing is faster when compiled."""
    product: list[float] = []
    size = len(vector)
    for i, row in enumerate(matrix):
        total = 0.0
        for j in range(i):
            total += row[j] * vector[j]
        for j in range(i, size):
            total += matrix[j][i] * vector[j]
        product.append(total)
    return product


def _inner_product(a: list[float], b: list[float]) -> float:
    total = 0.0
    for i, x in enumerate(a):
        total += x * b[i]
    return total


def _random_direction(dimensions: int, rng: random.Random) -> list[float]:
    while True:
        vector = [rng.gauss(0.0, 1.0) for _ in range(dimensions)]
        length = math.hypot(*vector)
        if length > 1e-9:
            return [x / length for x in vector]
