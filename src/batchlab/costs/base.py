"""What a cost model is."""

import math
from typing import Any, Protocol

from batchlab.core.work import Work

LONGEST = 1 << 62
"""No step takes longer; the run ends with an error before the clock gets there."""


class CostModel(Protocol):
    """How long a step takes, as an integer of at least 1 in `unit`.

    One that may be asked about steps it was not measured for also has `remarks() -> list[str]`: what a user must be
    told after a run. One with settings that are paths names them: `files`, a mapping from setting to how a path ends
    there, so that a name of the catalog is told from one. `inputs` are the files that one built from settings was read
    from: no output may overwrite them.
    """

    unit: str
    """`iteration`, `cost unit` or `ns`."""

    idle: str
    """`step`: time passes only by iterating, so idle iterations are taken one by one. `jump`: to the next event."""

    details: tuple[str, ...]
    """Which lists of single requests it looks at, `chunks` and `contexts`: only they are filled in. Contexts are dear:
    for them every decoding sequence has to be looked at in every step."""

    def duration(self, work: Work) -> int:
        """Duration of a step that does this work, which is not nothing."""

    def describe(self) -> dict[str, Any]:
        """Name and coefficients, as the trace's header states them."""


class StepTime:
    """What the loop asks for a step's duration: the compiled part of a cost model, or of any other one a wrapper."""

    def duration(self, work: Work) -> int:
        """Duration of a step that does this work, which is not nothing."""
        raise NotImplementedError


class OtherTime(StepTime):
    """Asks a cost model that has no compiled part."""

    def __init__(self, cost: CostModel) -> None:
        self._cost = cost

    def duration(self, work: Work) -> int:
        """What the cost model says."""
        return min(self._cost.duration(work), LONGEST)


def timer(cost: CostModel) -> StepTime:
    """How the loop asks a cost model."""
    return cost if isinstance(cost, StepTime) else OtherTime(cost)


def remarks_of(cost: CostModel) -> list[str]:
    """What a user must be told after a run, such as steps outside the range that the cost was measured in."""
    remarks = getattr(cost, "remarks", None)
    return [] if remarks is None else list(remarks())


def whole(time: float) -> int:
    """A time in whole units, rounded half up, at least 1: what a step takes on the clock."""
    return max(1, math.floor(time + 0.5)) if time < LONGEST else LONGEST  # also what is infinite or no number
