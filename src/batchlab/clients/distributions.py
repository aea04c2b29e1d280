"""What a scenario may say about numbers that are drawn: lengths, turns, gaps between turns. docs/workloads.md."""

import math
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from batchlab.settings import LATEST, MOST_TOKENS, Table, Time

Positive = Annotated[float, Field(gt=0, le=LATEST, allow_inf_nan=False)]
Z90 = 1.2815515655446004
"""The standard normal deviate below which 90 % lie."""
BOUNDS = {"min", "max", "outside"}
TAKES: dict[str, tuple[tuple[str, ...], ...]] = {
    "fixed": (("value",),),
    "uniform": (("min", "max"),),
    "lognormal": (("median", "sigma"), ("mean", "sigma"), ("p50", "p90")),
    "exponential": (("mean",),),
}
"""The settings of each distribution; of several sets one has to be given."""


class Distribution(Table):
    """A distribution of whole numbers.

    fixed: always `value`. uniform: every number from `min` to `max`, both included. lognormal: of the given `median`
    (or `mean`) and `sigma` of the logarithm, or of the given `p50` and `p90`. exponential: of the given `mean`.
    The last two are rounded to the nearest whole number; `outside` says what becomes of those below `min` or above
    `max`: `clip` puts them on the bound, `reject` draws again, which gives another mean.
    """

    distribution: Literal["fixed", "uniform", "lognormal", "exponential"]
    value: Time | None = None
    min: Time | None = None
    max: Time | None = None
    outside: Literal["clip", "reject"] | None = None
    mean: Positive | None = None
    median: Positive | None = None
    sigma: Annotated[float, Field(ge=0, le=20, allow_inf_nan=False)] | None = None
    p50: Positive | None = None
    p90: Positive | None = None

    @model_validator(mode="after")
    def _complete(self) -> "Distribution":
        name = self.distribution
        given = {key for key in type(self).model_fields if getattr(self, key) is not None} - {"distribution"}
        bounds = BOUNDS if name in ("lognormal", "exponential") else set()
        own = given - bounds
        if own not in [set(keys) for keys in TAKES[name]]:
            sets = " or ".join(" and ".join(keys) for keys in TAKES[name])
            raise ValueError(f"{name} takes {sets}{', and bounds' if bounds else ''}, but has {_listed(own)}")
        if bounds and bool(given & {"min", "max"}) != (self.outside is not None):
            raise ValueError("min and max go with outside = 'clip' or 'reject': what becomes of values beyond them")
        if self.min is not None and self.max is not None and self.min > self.max:
            raise ValueError(f"min = {self.min} must not be above max = {self.max}")
        if self.p50 is not None and self.p90 is not None and self.p50 > self.p90:
            raise ValueError(f"p50 = {self.p50:g} must not be above p90 = {self.p90:g}")
        return self

    @property
    def least(self) -> int:
        """The least value that it can be said to give."""
        return self.value if self.value is not None else self.min if self.min is not None else 1

    def parameters(self) -> tuple[float, float]:
        """Mean and standard deviation of the logarithm of a lognormal."""
        if self.p50 is not None and self.p90 is not None:
            return math.log(self.p50), math.log(self.p90 / self.p50) / Z90
        assert self.sigma is not None
        if self.median is not None:
            return math.log(self.median), self.sigma
        assert self.mean is not None
        return math.log(self.mean) - self.sigma * self.sigma / 2, self.sigma

    def __str__(self) -> str:
        if self.distribution == "fixed":
            return str(self.value)
        keys = (key for key in type(self).model_fields if key != "distribution")
        said = ", ".join(f"{key} {value}" for key in keys if (value := getattr(self, key)) is not None)
        return f"{self.distribution} ({said})"


def _fixed(value: Any) -> Any:
    """A bare number is that number always."""
    return {"distribution": "fixed", "value": value} if type(value) is int else value


def _of_tokens(value: Distribution | None) -> Distribution | None:
    if value is None:
        return None
    if value.least < 1:
        raise ValueError("must be at least 1 in every draw")
    for key in ("value", "min", "max", "mean", "median", "p50", "p90"):
        if (getattr(value, key) or 0) > MOST_TOKENS:
            raise ValueError(f"{key} must be at most 2^40")
    return value


Drawn = Annotated[Distribution | None, BeforeValidator(_fixed)]
Tokens = Annotated[Distribution | None, BeforeValidator(_fixed), AfterValidator(_of_tokens)]
"""As `Drawn`, of numbers from 1 to 2^40."""


def _listed(keys: set[str]) -> str:
    return " and ".join(sorted(keys)) or "none of them"
