"""Objectives on a run's figures, read as targets of its single requests: how many are within them.

An objective such as `ttft:p99<=500ms` is about one figure of a run. Its bound also parts the requests: the share within
it says how near a run is that misses the objective, and how much room is left in one that meets it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from batchlab.core.tally import Tally
from batchlab.metrics.objectives import ATTAINMENT, Integers, Objective, Targets, good, parse_targets


def targets_of(objectives: Iterable[Objective], goodput: Sequence[str], unit: str) -> Targets:
    """What every request is held to: the `goodput` targets given, else the bounds of the objectives.

    Of several bounds for one metric the loosest counts. A bound on ITL holds for a request's mean ITL, its TPOT, as in
    vLLM's goodput. Raises InputError.
    """
    if goodput:
        return parse_targets(goodput, unit)
    targets: Targets = {}
    for one in objectives:
        if one.metric != ATTAINMENT:
            metric = "tpot" if one.metric == "itl" else one.metric
            targets[metric] = max(one.bound, targets.get(metric, one.bound))
    return targets


def shares(objectives: Iterable[Objective], tally: Tally, arrival: Integers) -> dict[str, float | None]:
    """The figure of each objective -> the share of ALL requests that were completed within its bound.

    ITL belongs to tokens: there it is the share of the gaps. None where there is no request, or no gap.
    """
    found: dict[str, float | None] = {}
    for one in objectives:
        if one.metric == "itl":
            within = sum(times for gap, times in tally.gaps.items() if gap <= one.bound)
            found[one.figure] = within / tally.gaps.count if tally.gaps.count else None
        elif one.metric != ATTAINMENT:
            met = int(np.count_nonzero(good(tally, arrival, {one.metric: one.bound})))
            found[one.figure] = met / tally.count if tally.count else None
    return found
