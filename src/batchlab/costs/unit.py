"""Time counted in iterations."""

from typing import Any

from batchlab.core.scheduler import Step


class Unit:
    """Every iteration takes 1, whatever it holds, idle ones included."""

    unit = "iteration"
    idle = "step"

    def duration(self, step: Step) -> int:
        """1."""
        return 1

    def describe(self) -> dict[str, Any]:
        """Nothing but the name."""
        return {"model": "unit"}
