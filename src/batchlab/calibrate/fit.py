"""Least squares with coefficients that are not negative, and the errors on what was held out."""

from dataclasses import dataclass
from itertools import combinations

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
NAMES = ("per_iteration", "prefill_token", "decode_token", "context_token", "prefill_pair")
"""Coefficients of the linear model. The features of a sample are 1, prefill tokens, decodes, context tokens and
query-key pairs of prefills (costs/linear.py), each summed over its steps."""
HELD_OUT = 5
"""Every so many samples one is held out."""
TIED = 1e-10
"""Columns of length 1 depend on each other where some sum of them is no longer than this."""


@dataclass(frozen=True)
class Errors:
    """Relative errors, in %: signed mean, mean of the absolute ones, their P50, P95 and largest. None: there are none.

    count: of so many samples. left_out: those beside them that were measured as 0, whose errors are not relative ones.
    total: of the sum of all predictions against that of all measurements. Where long ones are predicted too short it
    is far below 0 with a signed mean near 0: each sample counts there as much as any other, here by its time.
    """

    count: int
    bias: float | None
    mean: float | None
    p50: float | None
    p95: float | None
    worst: float | None
    total: float | None
    left_out: int = 0


def fit(features: Floats, times: Floats, spread: Floats | None = None) -> Floats:
    """The coefficients, none negative, with the least sum of squared errors, each over its expected `spread`.

    Without `spread` the errors are relative ones. Exact: with so few coefficients every choice of those that stay 0 is
    tried.
    """
    expected = times if spread is None else spread
    weighted, target = features / expected[:, None], times / expected
    count = features.shape[1]
    best, least = np.zeros(count), float((target**2).sum())
    for size in range(1, count + 1):
        for kept in combinations(range(count), size):
            part = weighted[:, kept]
            scale = np.linalg.norm(part, axis=0)
            if not scale.all():
                continue
            solution = np.linalg.lstsq(part / scale, target, rcond=None)[0] / scale
            squares = float(((part @ solution - target) ** 2).sum())
            if (solution >= 0).all() and squares < least:
                least = squares
                best = np.zeros(count)
                best[list(kept)] = solution
    return best


def not_told_apart(features: Floats) -> list[str]:
    """The coefficients whose sum the samples fix and not their shares: those of features that depend on each other."""
    sizes = np.linalg.norm(features, axis=0)
    used = sizes > 0
    _, strengths, directions = np.linalg.svd(features[:, used] / sizes[used], full_matrices=False)
    free = np.abs(directions[strengths < TIED * strengths[0]])
    tied = free.max(axis=0, initial=0.0) > TIED**0.5
    return [name for name, one in zip(np.array(NAMES)[used].tolist(), tied, strict=True) if one]


def held_out(count: int) -> npt.NDArray[np.bool_]:
    """Which samples are held out: every fifth, the same ones each time; none of fewer than 10."""
    picked = np.zeros(count, bool)
    if count >= 2 * HELD_OUT:
        picked[HELD_OUT // 2 :: HELD_OUT] = True
    return picked


def errors(predicted: Floats, measured: Floats) -> Errors:
    """How far predictions are off, of what was measured as more than 0; the total is that of all."""
    known = measured > 0
    left_out = int((~known).sum())
    if not known.any():
        return Errors(0, None, None, None, None, None, None, left_out)
    off = 100 * (predicted[known] / measured[known] - 1)
    size = np.abs(off)
    p50, p95 = map(float, np.percentile(size, [50, 95]))
    total = 100 * float(predicted.sum() / measured.sum() - 1)
    return Errors(len(off), float(off.mean()), float(size.mean()), p50, p95, float(size.max()), total, left_out)
