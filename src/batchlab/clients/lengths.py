"""Whole numbers from distributions. Each is one share of 1, turned into the value below which that share lies.

So one number is drawn for each value whatever the distribution, and a longer mean makes every single value longer.
"""

import math

import numpy as np

from batchlab.clients.columns import Integers
from batchlab.clients.distributions import Distribution
from batchlab.clients.draws import Floats, exp, log, normal
from batchlab.settings import LATEST


def values(distribution: Distribution, shares: Floats) -> Integers:
    """The distribution's values at these shares, each within (0, 1)."""
    if distribution.distribution == "fixed":
        assert distribution.value is not None
        return np.full(len(shares), distribution.value, np.int64)
    if distribution.distribution == "uniform":
        assert distribution.min is not None and distribution.max is not None
        width = distribution.max - distribution.min + 1
        steps = np.floor(shares * width).astype(np.int64)
        return np.minimum(steps, width - 1) + distribution.min
    low = 0.0 if distribution.outside != "reject" or distribution.min is None else distribution.min - 0.5
    high = math.inf if distribution.outside != "reject" or distribution.max is None else distribution.max + 0.5
    if distribution.distribution == "exponential":
        assert distribution.mean is not None
        found = _exponential(distribution.mean, shares, low, high)
    else:
        found = _lognormal(distribution, shares, low, high)
    least = 1 if distribution.min is None else distribution.min
    most = LATEST if distribution.max is None else distribution.max
    return np.clip(np.rint(found), least, most).astype(np.int64)


def _exponential(mean: float, shares: Floats, low: float, high: float) -> Floats:
    """Exponential within [low, high]: the law of drawing until a value falls there."""
    reach = -math.expm1((low - high) / mean)  # the part of what lies above low
    return low - mean * log(1.0 - shares * reach)


def _lognormal(distribution: Distribution, shares: Floats, low: float, high: float) -> Floats:
    mu, sigma = distribution.parameters()
    if sigma == 0.0:
        return np.full(len(shares), math.exp(mu))
    below, above = (_below(bound, mu, sigma) for bound in (low, high))
    inside = below + shares * (above - below)
    return exp(mu + sigma * normal(np.clip(inside, 2.0**-53, 1.0 - 2.0**-53)))


def _below(bound: float, mu: float, sigma: float) -> float:
    """The share of a lognormal below a bound."""
    if bound <= 0.0:
        return 0.0
    return 1.0 if bound == math.inf else 0.5 * math.erfc((mu - math.log(bound)) / (sigma * math.sqrt(2.0)))
