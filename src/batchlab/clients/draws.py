"""Random numbers that are the same on every machine: a seed's draws are part of what a scenario says.

The bits come from PCG64, whose stream numpy keeps stable. Logarithm and exponential are worked out here from +, -, *, /
and powers of two, which IEEE 754 fixes to the last bit; those of a C library or of a processor's vector unit differ
in theirs, and so do numpy's own distributions from one version to another.
"""

import math

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]

STREAMS = ("gaps", "class", "turns", "prompt", "output", "turn_gap", "rows", "sample", "think_time")
"""One stream for each thing that is drawn, so that changing one leaves the draws of all others as they are."""

LN2 = math.log(2.0)
LN2_HIGH = float.fromhex("0x1.62e42fee00000p-1")
LN2_LOW = float.fromhex("0x1.a39ef35793c76p-33")
SMALLEST_EXPONENT = -700.0
BLOCK = 1 << 15
"""Values worked on at a time, so that what lies between two steps stays in the processor's cache."""

# fmt: off
# Wichura (1988), algorithm AS 241, PPND16: numerator and denominator of each of its three ranges.
CENTRE = (
    (3.3871328727963666080e0, 1.3314166789178437745e2, 1.9715909503065514427e3, 1.3731693765509461125e4,
     4.5921953931549871457e4, 6.7265770927008700853e4, 3.3430575583588128105e4, 2.5090809287301226727e3),
    (1.0, 4.2313330701600911252e1, 6.8718700749205790830e2, 5.3941960214247511077e3,
     2.1213794301586595867e4, 3.9307895800092710610e4, 2.8729085735721942674e4, 5.2264952788528545610e3),
)
SHOULDER = (
    (1.42343711074968357734e0, 4.63033784615654529590e0, 5.76949722146069140550e0, 3.64784832476320460504e0,
     1.27045825245236838258e0, 2.41780725177450611770e-1, 2.27238449892691845833e-2, 7.74545014278341407640e-4),
    (1.0, 2.05319162663775882187e0, 1.67638483018380384940e0, 6.89767334985100004550e-1,
     1.48103976427480074590e-1, 1.51986665636164571966e-2, 5.47593808499534494600e-4, 1.05075007164441684324e-9),
)
TAIL = (
    (6.65790464350110377720e0, 5.46378491116411436990e0, 1.78482653991729133580e0, 2.96560571828504891230e-1,
     2.65321895265761230930e-2, 1.24266094738807843860e-3, 2.71155556874348757815e-5, 2.01033439929228813265e-7),
    (1.0, 5.99832206555887937690e-1, 1.36929880922735805310e-1, 1.48753612908506148525e-2,
     7.86869131145613259100e-4, 1.84631831751005468180e-5, 1.42151175831644588870e-7, 2.04426310338993978564e-15),
)
# fmt: on


class Stream:
    """The draws of one thing under one seed."""

    def __init__(self, seed: int, name: str) -> None:
        self._bits = np.random.PCG64(np.random.SeedSequence([seed, STREAMS.index(name)]))

    def uniform(self, count: int) -> Floats:
        """Numbers within (0, 1), never 0 or 1 themselves: the middles of 2^52 equal parts."""
        parts: npt.NDArray[np.uint64] = np.asarray(self._bits.random_raw(count)) >> np.uint64(12)
        return (parts.astype(np.float64) + 0.5) * 2.0**-52

    def gamma(self, shape: float, count: int) -> Floats:
        """Gamma variates of mean 1 and coefficient of variation 1 / sqrt(shape).

        Marsaglia and Tsang (2000): what a round rejects is drawn anew in the next. Below shape 1 by their boost.
        """
        boosted = shape + 1.0 if shape < 1.0 else shape
        d = boosted - 1.0 / 3.0
        c = 1.0 / math.sqrt(9.0 * d)
        found = np.empty(count)
        left = np.arange(count)
        while len(left):
            x = normal(self.uniform(len(left)))
            u = self.uniform(len(left))
            v = 1.0 + c * x
            v = v * v * v
            fits = np.flatnonzero(v > 0.0)
            x, u, v = x[fits], u[fits], v[fits]
            accepted = log(u) < 0.5 * x * x + d - d * v + d * log(v)
            found[left[fits[accepted]]] = d * v[accepted]
            rejected = np.ones(len(left), bool)
            rejected[fits[accepted]] = False
            left = left[rejected]
        if shape < 1.0:
            found *= exp(log(self.uniform(count)) / shape)
        return found / shape


def log(x: Floats) -> Floats:
    """Natural logarithm of positive numbers, to about 2e-16."""
    found = np.empty(len(x))
    for start in range(0, len(x), BLOCK):
        mantissa, exponent = np.frexp(x[start : start + BLOCK])
        low = mantissa < math.sqrt(0.5)
        mantissa = np.where(low, mantissa * 2.0, mantissa)
        s = (mantissa - 1.0) / (mantissa + 1.0)
        z = s * s
        series = np.full(len(s), 1.0 / 23.0)
        for k in range(21, 0, -2):
            series = series * z + 1.0 / k
        found[start : start + BLOCK] = (exponent - low) * LN2 + 2.0 * s * series
    return found


def exp(x: Floats) -> Floats:
    """Exponential function, to about 2e-16 relative; what would be below 1e-304 is near enough."""
    found = np.empty(len(x))
    for start in range(0, len(x), BLOCK):
        part = np.maximum(x[start : start + BLOCK], SMALLEST_EXPONENT)
        k = np.rint(part / LN2)
        r = (part - k * LN2_HIGH) - k * LN2_LOW
        series = np.ones(len(r))
        for n in range(14, 0, -1):
            series = series * r / n + 1.0
        found[start : start + BLOCK] = np.ldexp(series, k.astype(np.int32))
    return found


def normal(u: Floats) -> Floats:
    """The standard normal deviate below which the share u lies, to about 1e-15."""
    q = u - 0.5
    found = np.empty(len(u))
    inner = np.abs(q) <= 0.425
    near = q[inner]
    found[inner] = near * _ratio(CENTRE, 0.180625 - near * near)
    outer = np.flatnonzero(~inner)
    distance = np.sqrt(-log(np.minimum(u[outer], 1.0 - u[outer])))
    far = distance > 5.0
    sizes = np.empty(len(outer))
    sizes[~far] = _ratio(SHOULDER, distance[~far] - 1.6)
    sizes[far] = _ratio(TAIL, distance[far] - 5.0)
    found[outer] = np.where(q[outer] < 0.0, -sizes, sizes)
    return found


def _ratio(coefficients: tuple[tuple[float, ...], tuple[float, ...]], x: Floats) -> Floats:
    above, below = np.zeros(len(x)), np.zeros(len(x))
    for a, b in zip(reversed(coefficients[0]), reversed(coefficients[1]), strict=True):
        above = above * x + a
        below = below * x + b
    return above / below
