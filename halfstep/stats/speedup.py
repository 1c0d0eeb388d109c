"""Speed-ups from rounds, each with a confidence interval and a p-value.

`profile` decides by them when to stop measuring, and `compare` judges by them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from statistics import fmean
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy import special

from halfstep.errors import ComparisonError
from halfstep.words.outcomes import Side, side_of
from halfstep.words.text import MEASURE_AGAIN, batch_size_of

CONFIDENCE = 0.95
# Repeats after which a measure may end early. Each of these interim looks spends 0.5 % of the 5 % that an interval may
# miss, and the last looks have the rest.
LOOKS = (3, 4, 6, 8)
INTERIM_CONFIDENCE = 0.995
# At least two looks are paid: without looks, intervals of 4 or 5 repeats with stalls cover only 94 %, because the
# mean of so few skewed times is not quite normal.
MIN_LOOKS_PAID = 2
# A last look comes when the time is up. A measure that it leaves undecided may go on, once in the same run or because
# more is asked for later. Two such looks, at half of the times and at all of them, miss together what one would miss
# if each has this share of it (Pocock, Biometrika 64, 1977, table 1: 2.94 % each for 5 %, 0.56 % for 1 %). Any
# further look has much less.
LAST_LOOKS, LAST_LOOK_SHARE = 2, 0.57
# Standard deviation of one arm's time between whole runs: what no repeat of one run can show. It is in what `compare`
# judges by, and not in what `profile` stops and plans by, which more repeats must be able to narrow.
RUN_SD = 0.01
# On a GPU, XLA tries kernels when it compiles, and what loads a program has the same ones: repeats share so many
# compilations of each arm in turn. One arm's times differ by so much between compilations at least, which is a guess
# until it is measured: in the frozen studies, processes that each compiled for themselves differ by 0.4 to 13 %.
COMPILATIONS = 2
TUNER_SD = 0.01
REPEAT_SD = 0.01  # smallest standard deviation of a repeat: few repeats that happen to agree do not show it to be 0
# Cap on the degrees of freedom of the error, as a multiple of those of the repeats (or occasions). Which part of it is
# the rounds' is itself estimated: without this limit, four repeats that differ by 3 % and rounds by 4 % cover 93.7 % in
# simulation.
MOST_DEGREES = 1.5
MIN_ROUNDS_FOR_PAIRS = 8  # of a repeat, for its unit of spread to be two rounds
_ROUND_BITS = 32  # of the number of a turn, below those of its repeat
TRIMMED_SHARE = 0.25  # of the rounds of a repeat, at each end, for the ratio of typical steps

Interval = tuple[float, float]


class Times(NamedTuple):
    """rounds.csv and inference.csv of an arm, and the examples of its training step."""

    rounds: pd.DataFrame
    calls: pd.DataFrame
    batch_size: int = 1


def final_confidence(looks_taken: int, last_looks: int = 0) -> float:
    """Confidence of the intervals at a last look, so that all looks together miss 5 %.

    Args:
        looks_taken: interim looks before it.
        last_looks: last looks before it, after which the measure went on.
    """
    interim = 1 - INTERIM_CONFIDENCE
    if last_looks >= LAST_LOOKS:
        return 1 - interim / 2 ** (last_looks - LAST_LOOKS + 2)
    return 1 - LAST_LOOK_SHARE * (1 - CONFIDENCE - max(looks_taken, MIN_LOOKS_PAID) * interim)


def occasion_confidence(earlier: int) -> float:
    """Confidence of the intervals on an occasion after so many others, of which each was a look.

    The first two spend what two last looks do, the third as much as an interim look, and each further one half of the
    one before.
    """
    if earlier < LAST_LOOKS:
        return final_confidence(0)
    return 1 - (1 - INTERIM_CONFIDENCE) / 2 ** (earlier - LAST_LOOKS)


@dataclass(frozen=True)
class Spread:
    """How much the rounds of a repeat vary, by units of two rounds, an order and its reverse, or of single rounds.

    Attributes:
        units: number of them.
        baseline, candidate: variance of each arm's time, in ms² a round.
        covariance: of both.
    """

    units: int
    baseline: float
    candidate: float
    covariance: float

    def variance_of_difference(self, ratio: float) -> float:
        """Variance of `baseline - ratio x candidate` in ms²."""
        return max(0.0, self.baseline - 2 * ratio * self.covariance + ratio**2 * self.candidate)


@dataclass(frozen=True)
class ProcessTimes:
    """What one repeat measured: a process of each arm.

    Attributes:
        count: number of training steps, or of inference calls, in each arm; the smaller one where the arms were
            measured one at a time and differ. It is the weight of the repeat.
        baseline_ms, candidate_ms: time of so many of them, in milliseconds.
        typical_log_ratio: logarithm of the ratio of a typical round: the interquartile mean over the rounds.
        rounds: number of rounds, of the arm with fewer of them.
        spread: of the rounds; None with fewer than two of them.
        repeat: its number.
    """

    count: float
    baseline_ms: float
    candidate_ms: float
    typical_log_ratio: float
    rounds: int
    spread: Spread | None = None
    repeat: int = 0


@dataclass(frozen=True)
class Error:
    """Standard error of a logarithm, with its degrees of freedom; infinite ones are those of a known error."""

    standard_error: float
    degrees: float

    def with_known(self, variance: float) -> Error:
        """The error of a sum with something of this known variance, by Satterthwaite."""
        own = self.standard_error**2
        if not variance or math.isinf(own):
            return self
        degrees = self.degrees * ((own + variance) / own) ** 2 if own else math.inf
        return Error(math.sqrt(own + variance), degrees)

    def with_seen(self, variance: float) -> Error:
        """The error of a sum with something of this variance, of which two values are known, by Satterthwaite."""
        own = self.standard_error**2
        if not variance or math.isinf(own):
            return self
        return Error(math.sqrt(own + variance), (own + variance) ** 2 / (own**2 / self.degrees + variance**2))

    def quantile(self, confidence: float) -> float:
        """Half the width of the interval of this confidence, on the logarithmic scale."""
        return float(special.stdtrit(self.degrees, (1 + confidence) / 2)) * self.standard_error


@dataclass(frozen=True)
class Occasion:
    """What another measurement of the same two arms found.

    Attributes:
        log_ratio: logarithm of the speed-up.
        error: of it, within that run.
        confidence: of the look that ended it.
    """

    log_ratio: float
    error: Error
    confidence: float = CONFIDENCE


def mean_over_occasions(occasions: Sequence[Occasion], known: float = 0.0) -> Occasion:
    """The mean of the logarithms, with its error.

    The variance of one occasion is the larger of two: that with which the occasions differ, and the mean of `known` and
    what their own errors say. The degrees of freedom are Satterthwaite's: what the errors say has theirs, and what is
    beyond it one fewer than occasions; of both, `MOST_DEGREES` times the latter at most. With errors of 0 and nothing
    known that is Student's t interval of the logarithms.

    Args:
        occasions: at least one; the error of the mean of one is its own.
        known: variance of the logarithm that one occasion has beside its own error.
    """
    count = len(occasions)
    mean = math.fsum(occasion.log_ratio for occasion in occasions) / count
    confidence = max(occasion.confidence for occasion in occasions)
    errors = [occasion.error.with_known(known) for occasion in occasions]
    squares = [(error.standard_error / count) ** 2 for error in errors]
    expected = math.fsum(squares)
    parts = [square**2 / error.degrees for square, error in zip(squares, errors, strict=True) if square]
    error = Error(math.sqrt(expected), expected**2 / sum(parts) if any(parts) else math.inf)
    if count == 1:
        return Occasion(mean, errors[0], confidence)
    if not math.isfinite(expected):
        return Occasion(mean, Error(math.inf, 1), confidence)
    spread = float(np.var([occasion.log_ratio for occasion in occasions], ddof=1)) / count
    if spread > expected:
        part = expected**2 / error.degrees if expected else 0.0
        degrees = spread**2 / ((spread - expected) ** 2 / (count - 1) + part)
        error = Error(math.sqrt(spread), min(degrees, MOST_DEGREES * (count - 1)))
    return Occasion(mean, error, confidence)


@dataclass(frozen=True)
class Speedup:
    """Time of the baseline / time of the candidate, a ratio of throughputs: above 1 the candidate is faster.

    The time is that of all counted rounds, with stalls. The interval is Student's t by the linearisation of the ratio
    of two means (Cochran, Sampling Techniques, 1977, section 6.3) on the logarithmic scale. Its standard error is the
    larger of two: that of the rounds, with as many degrees of freedom as the rounds leave, to which the variance of
    repeats that differ by `REPEAT_SD` is added; and that of the repeats. The variance of the repeats contains that of
    their rounds. That part has the degrees of freedom of the rounds, and the rest has one fewer than repeats; of the
    sum they are Satterthwaite's (Biometrics Bulletin 2, 1946, p. 110), `MOST_DEGREES` times those of the repeats at
    most. `run_sd` adds what whole runs differ by, as a known variance; with `earlier` occasions the ratio is the mean
    of all (`mean_over_occasions`).

    A repeat weighs as much as it has steps. The error of the repeats is that of the weighted mean of their mean times,
    not of their totals: how long a repeat was is not noise. It and its degrees of freedom are those of Bell and
    McCaffrey (Survey Methodology 28, 2002, p. 169) for repeats of one variance; Student's where they are of one length.

    Attributes:
        by_process: the times of each repeat.
        confidence: of the look that ended the measurement, so that the interval has 95 % over all looks.
        interleaved: whether the arms took turns. Else the errors of the two arms are independent, only the repeats
            show them (Welch, Biometrika 34, 1947), and rounds are never paired.
        others: speed-ups of other candidates at this measure. Where there are any, the variance between repeats is
            pooled with the mean of theirs, with the degrees of freedom of one of them: the A/A control takes part in
            few repeats, which do not show how much repeats differ.
        run_sd: standard deviation of the logarithm of one arm's time between runs; 0 for the error within this run.
        earlier: what other occasions found of the same arms. The times are of this run alone.
        tuned: arms of which the repeats share compilations (`COMPILATIONS`). Their mean differs from that of all
            compilations by what `TUNER_SD` gives, or by what both show beyond that and beyond their repeats.
    """

    by_process: tuple[ProcessTimes, ...]
    confidence: float = CONFIDENCE
    interleaved: bool = True
    others: tuple[Speedup, ...] = ()
    run_sd: float = 0.0
    earlier: tuple[Occasion, ...] = ()
    tuned: int = 0

    @property
    def rounds(self) -> int:
        """Number of rounds that both arms have, in each repeat."""
        return sum(process.rounds for process in self.by_process)

    @property
    def processes(self) -> int:
        """Number of repeats, each of which started a process of every arm."""
        return len(self.by_process)

    @property
    def baseline_time_ms(self) -> float:
        """Mean time of a step or call of the baseline. Divided by `candidate_time_ms` it is the ratio of this run."""
        return self._sum("baseline_ms") / self._sum("count")

    @property
    def candidate_time_ms(self) -> float:
        """Mean time of a step or call of the candidate."""
        return self._sum("candidate_ms") / self._sum("count")

    @cached_property
    def run_ratio(self) -> float:
        """The speed-up of this run."""
        return self._sum("baseline_ms") / self._sum("candidate_ms")

    @cached_property
    def _over_occasions(self) -> Occasion:
        return mean_over_occasions([self.occasion, *self.earlier], 2 * self.run_sd**2)

    @property
    def occasion(self) -> Occasion:
        """What this run by itself found."""
        return Occasion(math.log(self.run_ratio), self._error_of_run, self.confidence)

    @property
    def occasions(self) -> int:
        """Number of runs that it is of."""
        return 1 + len(self.earlier)

    def over_occasions(self, earlier: tuple[Occasion, ...]) -> Speedup:
        """The mean with what other occasions found, of which each was a look."""
        confidence = max(self.confidence, occasion_confidence(len(earlier))) if earlier else self.confidence
        return replace(self, earlier=earlier, confidence=confidence)

    @property
    def occasion_spread(self) -> float | None:
        """Standard deviation of the logarithm between occasions; None of one."""
        if not self.earlier:
            return None
        return float(np.std([occasion.log_ratio for occasion in (self.occasion, *self.earlier)], ddof=1))

    @property
    def ratio(self) -> float:
        """The speed-up."""
        return math.exp(self._over_occasions.log_ratio) if self.earlier else self.run_ratio

    @property
    def error(self) -> Error:
        """Standard error of the logarithm of the ratio; infinite where a single round was measured."""
        return self._over_occasions.error

    @property
    def _errors(self) -> tuple[Error, ...]:
        """Those of which the wider one counts.

        Satterthwaite's degrees of freedom grow with what is known, by which a single run would seem to be better known.
        """
        own = self._error_of_run
        return (self.error,) if self.earlier or not own.standard_error else (self.error, own)

    @property
    def within_run(self) -> Speedup:
        """That of this run alone, with the error within it."""
        return replace(self, run_sd=0.0, earlier=(), tuned=0)

    @property
    def _error_of_run(self) -> Error:
        """That of what was compiled, too."""
        error = self._error_within_run
        if not self.tuned:
            return error
        by_compilation = [
            [item for item in self.by_process if item.repeat % COMPILATIONS == number] for number in range(COMPILATIONS)
        ]
        found = [item for item in by_compilation if item]
        known = self.tuned * TUNER_SD**2 / len(found)
        logs = [
            math.log(sum(one.baseline_ms for one in item) / sum(one.candidate_ms for one in item)) for item in found
        ]
        seen = float(np.var(logs, ddof=1)) / len(found) if len(found) > 1 else 0.0
        return error.with_known(known).with_seen(max(0.0, seen - known - error.standard_error**2))

    @cached_property
    def _error_within_run(self) -> Error:
        """Infinite where a single round was measured."""
        repeats, rounds = self._error_of_repeats(), self._error_of_rounds() if self.interleaved else None
        if repeats is None or rounds is None:
            return repeats or rounds or Error(math.inf, 1)
        if repeats.standard_error <= rounds.standard_error:
            return rounds
        square, within = repeats.standard_error**2, self._round_variance[0] / self.rounds
        degrees = square**2 / ((square - within) ** 2 / repeats.degrees + within**2 / rounds.degrees)
        return Error(repeats.standard_error, min(degrees, MOST_DEGREES * repeats.degrees))

    @property
    def standard_error(self) -> float:
        """Standard error of the logarithm of the ratio."""
        return self.error.standard_error

    def _error_of_repeats(self) -> Error | None:
        """That of the repeats of both arms, pooled with that of the others."""
        own = self._own_error_of_repeats
        variances = [
            (error.standard_error**2 * other._equal_repeats, error.degrees)
            for other in self.others
            if (error := other._error_of_repeats()) is not None
        ]
        if own is None or not variances:
            return own
        theirs, degrees = fmean(square for square, _ in variances), min(degrees for _, degrees in variances)
        theirs /= self._equal_repeats
        both = own.degrees + degrees
        return Error(math.sqrt((own.degrees * own.standard_error**2 + degrees * theirs) / both), both)

    @property
    def _own_error_of_repeats(self) -> Error | None:
        if self.processes < 2:
            return None
        before, after = (self._deviations(name) for name in ("baseline_ms", "candidate_ms"))
        weights = self._weights
        residuals = np.eye(self.processes) - weights  # each repeat without the weighted mean
        portions = weights**2 / np.sum(residuals**2, axis=1)
        squares = [float(portions @ arm**2) for arm in ([before - after] if self.interleaved else [before, after])]
        form = np.sqrt(portions)[:, None] * residuals
        degrees = float(weights @ weights) ** 2 / float(np.sum((form @ form.T) ** 2))
        total = sum(squares)
        degrees *= total**2 / sum(square**2 for square in squares) if total else 1.0
        return Error(math.sqrt(total), degrees)

    @property
    def _weights(self) -> NDArray[np.float64]:
        """Each repeat's share of the steps or calls, `(repeats,)`."""
        return np.array([process.count for process in self.by_process]) / self._sum("count")

    @property
    def _equal_repeats(self) -> float:
        """Number of repeats of one length whose mean would be as certain, if only repeats differed."""
        return 1 / float(self._weights @ self._weights)

    def _deviations(self, name: str) -> NDArray[np.float64]:
        """How far each repeat's mean time of a step is from that of all, as a share of the latter, `(repeats,)`."""
        shares = np.array([getattr(process, name) for process in self.by_process]) / self._sum(name)
        return shares / self._weights - 1

    def _error_of_rounds(self) -> Error | None:
        square, degrees = self._round_variance
        if not degrees:
            return None
        return Error(math.sqrt(square / self.rounds + 2 * REPEAT_SD**2 / self._equal_repeats), degrees)

    @cached_property
    def _round_variance(self) -> tuple[float, int]:
        """Variance of the logarithm of the ratio of one round, and its degrees of freedom."""
        spreads = [process.spread for process in self.by_process if process.spread]
        degrees = sum(spread.units - 1 for spread in spreads)
        if not degrees:
            return math.nan, 0
        pooled = sum((item.units - 1) * item.variance_of_difference(self.run_ratio) for item in spreads) / degrees
        return pooled / (self._sum("baseline_ms") / self.rounds) ** 2, degrees

    @property
    def components(self) -> tuple[float, float] | None:
        """Standard deviation of the logarithm of the ratio, of one round and of a repeat; None if it is not known.

        That of repeats is at least what `REPEAT_SD` of both arms gives.
        """
        square, degrees = self._round_variance
        if not degrees or not square:
            return None
        least, repeats = 2 * REPEAT_SD**2, self._error_of_repeats()
        repeat_variance = (
            0.0 if repeats is None else (repeats.standard_error**2 - square / self.rounds) * self._equal_repeats
        )
        return math.sqrt(square), math.sqrt(max(least, repeat_variance))

    def interval(self, confidence: float) -> Interval:
        """Interval of another confidence; the interim looks are not accounted for."""
        half = max(error.quantile(confidence) for error in self._errors)
        return self.ratio * math.exp(-half), self.ratio * math.exp(min(half, 700.0))

    @property
    def low(self) -> float:
        """Lower end of the interval."""
        return self.interval(self.confidence)[0]

    @property
    def high(self) -> float:
        """Upper end of the interval."""
        return self.interval(self.confidence)[1]

    @property
    def half_width(self) -> float:
        """Half the width of the interval, as a ratio."""
        return (self.high - self.low) / 2

    @property
    def noise_floor(self) -> float:
        """Largest deviation from 1 in the interval: the noise floor if both arms run the same code (A/A control)."""
        return max(abs(self.low - 1), abs(self.high - 1))

    def side(self, required: float) -> Side:
        """On which side of a required ratio the interval lies."""
        return side_of(self.low, self.high, required)

    def p_below(self, threshold: float) -> float:
        """One-sided p-value of the hypothesis that the true ratio is `threshold` or less, the interim looks paid.

        The looks leave `1 - confidence` of the 5 % to this one, so p counts that much more.
        """
        distance = math.log(self.ratio / threshold)
        if self.standard_error == 0:
            return 0.0 if distance > 0 else 1.0
        p = max(float(special.stdtr(error.degrees, -distance / error.standard_error)) for error in self._errors)
        return min(1.0, p * (1 - CONFIDENCE) / (1 - self.confidence))

    @property
    def typical_ratio(self) -> float:
        """Ratio of typical rounds: exp of the mean over the repeats of the interquartile mean of their rounds."""
        return math.exp(float(np.mean([process.typical_log_ratio for process in self.by_process])))

    @property
    def stall_interval(self) -> Interval:
        """Interval of `ratio / typical_ratio`, paired by repeat. Below 1 stalls cost the candidate more."""
        own = [math.log(process.baseline_ms / process.candidate_ms) for process in self.by_process]
        low, high = t_interval(np.array(own) - [item.typical_log_ratio for item in self.by_process], self.confidence)
        return math.exp(low), math.exp(high)

    def _sum(self, name: str) -> float:
        return math.fsum(getattr(process, name) for process in self.by_process)


def smallest_above(threshold: float, error: Error, confidence: float) -> float:
    """The smallest ratio whose interval of this confidence, with this error, has its low end at a threshold."""
    return threshold * math.exp(error.quantile(confidence))


def train_speedup(
    baseline: pd.DataFrame,
    candidate: pd.DataFrame,
    confidence: float = CONFIDENCE,
    *,
    batch_sizes: tuple[int, int] = (1, 1),
    interleaved: bool = True,
    fewest: int = 2,
) -> Speedup:
    """Speed-up of training from the counted rounds of rounds.csv tables.

    Of arms that took turns these are the rounds that both have. Of arms that were measured one at a time they are all
    rounds of the repeats that both have: a round of one arm has nothing in common with that of another.

    Args:
        baseline, candidate: tables with the columns of `Round`.
        confidence: confidence level of the interval.
        batch_sizes: examples of a step of each; where they differ, the candidate's times are of as many examples as the
            baseline's, so that the ratio is one of examples per second.
        interleaved: whether the arms took turns.
        fewest: repeats that both must have.

    Raises:
        ComparisonError: two variants differ in a round, a time is not positive, or there are too few repeats.
    """
    turns = _turns_of_training(baseline), _turns_of_training(candidate)
    return _speedup("rounds.csv", turns, confidence, interleaved, fewest, batch_sizes)


def _as_many_examples(before: _Turns, after: _Turns, batch_sizes: tuple[int, int], interleaved: bool) -> _Turns:
    """The turns of the second arm, counted or timed as if they had the examples of the first one's."""
    if not interleaved:
        return after._replace(counts=after.counts * batch_sizes[1] / batch_sizes[0])
    share = (before.counts * batch_sizes[0]) / (after.counts * batch_sizes[1])
    return after._replace(counts=before.counts, times_ms=after.times_ms * share)


def inference_speedup(
    baseline: pd.DataFrame,
    candidate: pd.DataFrame,
    batch_size: int,
    confidence: float = CONFIDENCE,
    *,
    interleaved: bool = True,
    fewest: int = 2,
) -> Speedup:
    """Speed-up of inference at one batch size from the counted calls of inference.csv tables; as `train_speedup`."""

    def turns(table: pd.DataFrame) -> _Turns:
        is_chosen = (table["batch_size"].to_numpy() == batch_size) & table["counted"].to_numpy(bool)
        keys, rounds = np.unique(_keys(table)[is_chosen], return_inverse=True)
        latencies_ms = table["latency_ms"].to_numpy(float)[is_chosen]
        times_ms = np.bincount(rounds, latencies_ms, len(keys)).astype(float)
        return _Turns(keys, np.bincount(rounds, minlength=len(keys)), times_ms)

    what = f"inference.csv at batch size {batch_size}"
    return _speedup(what, (turns(baseline), turns(candidate)), confidence, interleaved, fewest)


def speedup_of(
    measure: str,
    baseline: Times,
    candidate: Times,
    confidence: float = CONFIDENCE,
    *,
    interleaved: bool = True,
    fewest: int = 2,
) -> Speedup:
    """Speed-up at one measure, from the rounds and calls of each arm; as `train_speedup`."""
    size = batch_size_of(measure)
    if size is None:
        sizes = baseline.batch_size, candidate.batch_size
        rounds = baseline.rounds, candidate.rounds
        return train_speedup(*rounds, confidence, batch_sizes=sizes, interleaved=interleaved, fewest=fewest)
    calls = baseline.calls, candidate.calls
    return inference_speedup(*calls, size, confidence, interleaved=interleaved, fewest=fewest)


def shared_repeats(measure: str, baseline: Times, candidate: Times) -> int:
    """Number of repeats in which both arms were measured."""
    size = batch_size_of(measure)
    repeats = []
    for times in (baseline, candidate):
        rows = times.rounds if size is None else times.calls[times.calls["batch_size"] == size]
        repeats.append(set(rows["process"]))
    return len(repeats[0] & repeats[1])


class _Turns(NamedTuple):
    """The turns of an arm: by `_keys`, the steps or calls of each and their time, each `(turns,)`.

    These are plain arrays because `profile` computes speed-ups after each repeat, and tables take ten times as long.
    """

    keys: NDArray[np.int64]
    counts: NDArray[Any]
    times_ms: NDArray[np.float64]

    def at(self, places: NDArray[Any]) -> _Turns:
        """Those at some places."""
        return _Turns(*(of_all[places] for of_all in self))

    @property
    def repeats(self) -> NDArray[np.int64]:
        """The repeat of each turn."""
        return self.keys >> _ROUND_BITS


def _keys(table: pd.DataFrame) -> NDArray[np.int64]:
    """One number for the repeat and the round of each row, in their order."""
    return (table["process"].to_numpy(np.int64) << _ROUND_BITS) + table["round"].to_numpy(np.int64)


def _turns_of_training(table: pd.DataFrame) -> _Turns:
    """The counted rounds of rounds.csv."""
    is_counted = table["counted"].to_numpy(bool)
    columns = _keys(table), table["steps"].to_numpy(), table["round_time_ms"].to_numpy(float)
    return _Turns(*(column[is_counted] for column in columns))


def _shared(before: _Turns, after: _Turns) -> tuple[_Turns, _Turns]:
    """The turns of the rounds that both arms have, in their order."""
    _, *places = np.intersect1d(before.keys, after.keys, assume_unique=True, return_indices=True)
    return before.at(places[0]), after.at(places[1])


def _speedup(
    what: str,
    turns: tuple[_Turns, _Turns],
    confidence: float,
    interleaved: bool,
    fewest: int,
    batch_sizes: tuple[int, int] = (1, 1),
) -> Speedup:
    """The speed-up from the turns of both arms."""
    if any(len(np.unique(arm.keys)) < len(arm.keys) for arm in turns):
        raise ComparisonError(f"{what}: a round occurs twice; run `{MEASURE_AGAIN}`")
    if interleaved:
        turns = _shared(*turns)
    if batch_sizes[0] != batch_sizes[1]:
        turns = turns[0], _as_many_examples(*turns, batch_sizes, interleaved)
    repeats = np.intersect1d(turns[0].repeats, turns[1].repeats)
    if not len(repeats):
        raise ComparisonError(
            f"{what}: two variants have no round in common, so they were not measured together; run `{MEASURE_AGAIN}`"
        )
    if interleaved and not np.array_equal(turns[0].counts, turns[1].counts):
        raise ComparisonError(f"{what}: two variants differ in the length of a round; run `{MEASURE_AGAIN}`")
    by_repeat = [[arm.at(arm.repeats == repeat) for arm in turns] for repeat in repeats]
    if not all(np.all(np.isfinite(arm.times_ms) & (arm.times_ms > 0)) for arms in by_repeat for arm in arms):
        raise ComparisonError(f"{what}: a time is not a positive number; run `{MEASURE_AGAIN}`")
    measured = _times_in_turns if interleaved else _times_alone
    by_process = tuple(
        replace(measured(*arms), repeat=int(repeat)) for repeat, arms in zip(repeats, by_repeat, strict=True)
    )
    if len(by_process) < fewest:
        raise ComparisonError(
            f"{what}: an interval needs at least {fewest} repeats and {len(by_process)} was measured; raise "
            f"profile.processes in params.yaml and run `dvc repro`"
        )
    return Speedup(by_process, confidence, interleaved)


def _times_in_turns(before: _Turns, after: _Turns) -> ProcessTimes:
    rounds = before.keys & ((1 << _ROUND_BITS) - 1)
    return times_of_rounds(rounds, np.stack([before.times_ms, after.times_ms], axis=1), int(before.counts.sum()))


def _times_alone(before: _Turns, after: _Turns) -> ProcessTimes:
    arms = (np.stack([arm.counts, arm.times_ms], axis=1).astype(float) for arm in (before, after))
    return times_alone(*arms)


def times_of_rounds(numbers: NDArray[np.int64], times_ms: NDArray[np.float64], count: int) -> ProcessTimes:
    """The times of one repeat in which the arms took turns.

    Args:
        numbers: of the rounds, ascending, `(rounds,)`.
        times_ms: time of the baseline's turn and of the candidate's, `(rounds, 2)`.
        count: number of steps or calls of each arm.
    """
    logs = np.log(times_ms)
    return ProcessTimes(
        count=count,
        baseline_ms=float(times_ms[:, 0].sum()),
        candidate_ms=float(times_ms[:, 1].sum()),
        typical_log_ratio=interquartile_mean(logs[:, 0] - logs[:, 1]),
        rounds=len(times_ms),
        spread=_spread(numbers, times_ms),
    )


def times_alone(baseline: NDArray[np.float64], candidate: NDArray[np.float64]) -> ProcessTimes:
    """The times of one repeat in which each arm was measured by itself; they may have different numbers of rounds.

    Args:
        baseline, candidate: steps or calls of each round, and its time in milliseconds, `(rounds, 2)`.
    """
    arms = baseline, candidate
    count, rounds = min(float(arm[:, 0].sum()) for arm in arms), min(map(len, arms))
    totals_ms = [float(arm[:, 1].sum()) * (count / float(arm[:, 0].sum())) for arm in arms]
    steps_ms = [arm[:, 1] / arm[:, 0] for arm in arms]
    typical = [interquartile_mean(np.log(of_arm)) for of_arm in steps_ms]
    spread = None
    if rounds > 1:
        variances = [float(np.var(of_arm, ddof=1)) * (count / rounds) ** 2 for of_arm in steps_ms]
        spread = Spread(rounds, variances[0], variances[1], covariance=0.0)
    return ProcessTimes(
        count=count,
        baseline_ms=totals_ms[0],
        candidate_ms=totals_ms[1],
        typical_log_ratio=typical[0] - typical[1],
        rounds=rounds,
        spread=spread,
    )


def _spread(numbers: NDArray[np.int64], times_ms: NDArray[np.float64]) -> Spread | None:
    """By pairs of rounds if there are enough: what drifts from one round to the next cancels in a pair."""
    first = np.flatnonzero((numbers[:-1] % 2 == 0) & (numbers[1:] == numbers[:-1] + 1))
    in_pairs = 2 * len(first) >= MIN_ROUNDS_FOR_PAIRS
    units = times_ms[first] + times_ms[first + 1] if in_pairs else times_ms
    if len(units) < 2:
        return None
    moments = np.cov(units, rowvar=False) / (2 if in_pairs else 1)
    return Spread(len(units), float(moments[0, 0]), float(moments[1, 1]), float(moments[0, 1]))


def interquartile_mean(values: NDArray[np.float64]) -> float:
    """Mean without the lowest and the highest quarter of the values; the median of fewer than four values."""
    cut = int(TRIMMED_SHARE * len(values))
    return float(np.mean(np.sort(values)[cut : len(values) - cut]) if cut else np.median(values))


def t_interval(values: NDArray[np.float64], confidence: float = CONFIDENCE) -> Interval:
    """Student's t interval for the mean of two or more independent values."""
    half = special.stdtrit(len(values) - 1, (1 + confidence) / 2) * np.std(values, ddof=1) / np.sqrt(len(values))
    mean = float(np.mean(values))
    return mean - float(half), mean + float(half)
