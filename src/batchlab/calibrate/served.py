"""A linear cost from the first-token and last-token times of served requests, without the time of a single step.

A request's decode time, and its wait from being queued to its first token, are sums of step times. Which steps, the
scheduler says, once it knows about how long steps are. So: simulate, fit the sums, simulate with the fit, and so on.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from batchlab.calibrate.fit import NAMES, Errors, Floats, errors, fit, held_out
from batchlab.core.work import Work
from batchlab.costs.linear import Linear, pairs
from batchlab.events import Event, Iteration
from batchlab.units import NS_IN_S
from batchlab.validate.recorded import Recorded
from batchlab.validate.replay import Replay, check_served, prepare, replay

START = (2e7, 1e5, 1e4, 50.0, 0.0)
"""What the first simulation takes, ns, by NAMES: an 8B model on a large GPU, roughly."""
ROUNDS = 25
DAMPED_AFTER = 3
"""Rounds after which a fit moves only half the way: under preemptions two schedules can chase each other."""
SETTLED = 5e-4
"""Relative change of the predicted sums, under one schedule, at which it stops."""


class _Recording(Linear):
    """A linear cost that keeps what each step computed; as an observer it hears when each ended."""

    def __init__(self, coefficients: Floats) -> None:
        base, prefill, decode, context, pair = map(float, coefficients)
        super().__init__("ns", base, prefill, decode, context, prefill_pair=pair)
        self.details = ("chunks",)
        self._work: list[tuple[float, ...]] = []
        self._serials: list[int] = []
        self._end: dict[int, int] = {}

    def duration(self, work: Work) -> int:
        self._work.append((1.0, work.prefill_tokens, work.decode_tokens, work.context_tokens, pairs(work.chunks)))
        return super().duration(work)

    def __call__(self, event: Event) -> None:
        if isinstance(event, Iteration):
            if event.scheduled:
                self._serials.append(event.iteration)
            if event.delivers is not None:
                self._end[event.delivers] = event.end

    def steps(self) -> tuple[Floats, Floats]:
        """Features and ends (s) of all steps whose tokens were delivered, in order."""
        known = [
            (work, self._end[serial])
            for work, serial in zip(self._work, self._serials, strict=True)
            if serial in self._end
        ]
        return np.array([work for work, _ in known]), np.array([end / NS_IN_S for _, end in known])


@dataclass(frozen=True)
class Served:
    """A fit. rounds: simulations it took. settled: whether the last one changed little. errors: by latency, over the
    requests held out. steps: features of the simulated steps."""

    coefficients: Floats
    rounds: int
    settled: bool
    errors: dict[str, Errors]
    steps: Floats


def fit_served(
    run: Recorded, settings: Mapping[str, Any], on_round: Callable[[int], object] = lambda rounds: None
) -> Served:
    """Fit a run. settings: of the engine, instead of the recorded ones. on_round: called before each simulation."""
    coefficients = np.array(START)
    measured = _measured_sums(run)
    held = held_out(len(run.requests))
    spread = np.sqrt(measured)  # as of a sum of independent errors, one a step
    seen = np.concatenate([~held, ~held]) & (measured > 0)
    settled = False
    rounds = 0
    while rounds < ROUNDS and not settled:
        rounds += 1
        on_round(rounds)
        features, steps = _sums(run, settings, coefficients)
        used = seen & (features[:, 0] > 0)
        fitted = fit(features[used], measured[used], spread[used])
        moved = fitted if rounds <= DAMPED_AFTER else (coefficients + fitted) / 2
        change = np.abs(features @ (moved - coefficients)).sum()
        settled = bool(change < SETTLED * (features @ moved).sum())
        coefficients = moved
    last = replay(prepare(run, _Recording(coefficients), settings))
    check_served(run, last)
    found = _latencies(last, run)
    wanted = _latencies(run, run)
    held &= np.isfinite(found["e2e"])  # who was dropped in the simulation has no latency there
    several = np.array(run.output) > 1
    picked = {"ttft": held, "tpot": held & several, "e2e": held}
    misses = {name: errors(found[name][of], wanted[name][of]) for name, of in picked.items() if of.any()}
    return Served(coefficients, rounds, settled, misses, steps)


def _sums(run: Recorded, settings: Mapping[str, Any], coefficients: Floats) -> tuple[Floats, Floats]:
    """Of each request, the features of the steps until its first token, then of those of its decode; and all steps."""
    cost = _Recording(coefficients)
    found = replay(prepare(run, cost, settings), [cost])
    check_served(run, found)
    steps, ends = cost.steps()
    totals = np.vstack([np.zeros(len(NAMES)), np.cumsum(steps, axis=0)])
    queued, first, last = (np.searchsorted(ends, np.array(t), "right") for t in (found.queued, found.first, found.last))
    return np.vstack([totals[first] - totals[queued], totals[last] - totals[first]]), steps


def _measured_sums(run: Recorded) -> Floats:
    """What the sums stand for, ns: the wait for the first token of each request, then the decode time of each."""
    queued, first, last = (np.array(times) for times in (run.queued, run.first, run.last))
    return np.concatenate([first - queued, last - first]) * NS_IN_S


def _latencies(times: Recorded | Replay, run: Recorded) -> dict[str, Floats]:
    sent, first, last = np.array(times.sent), np.array(times.first), np.array(times.last)
    gaps = np.maximum(np.array(run.output) - 1, 1)
    spans = {"ttft": first - sent, "tpot": (last - first) / gaps, "e2e": last - sent}
    return {name: np.round(span, 9) for name, span in spans.items()}  # to ns: what is less is rounding of time stamps
