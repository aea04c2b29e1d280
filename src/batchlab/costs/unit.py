"""Time counted in iterations."""

from typing import Any, Literal

from batchlab.core.work import Work


class Unit:
    """Every iteration takes 1, whatever it holds.

    idle: `step` takes idle iterations one by one, `jump` goes to the next arrival.
    """

    unit = "iteration"
    details: tuple[str, ...] = ()

    def __init__(self, idle: Literal["step", "jump"] = "step") -> None:
        self.idle: str = idle

    def duration(self, work: Work) -> int:
        """1."""
        return 1

    def describe(self) -> dict[str, Any]:
        """Nothing but the name."""
        return {"model": "unit"}
