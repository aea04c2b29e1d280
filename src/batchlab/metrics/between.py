"""The time that an engine with work spends between its steps."""

TOLD = 0.05
"""From this share of the busy time on, latencies that a cost of steps predicts are visibly too short."""


class Between:
    """Adds it up over a recording's steps, in their order. It is in no step's time, so no cost of steps has it."""

    def __init__(self) -> None:
        self.gaps = self.steps = 0
        self._end: int | None = None
        self._works = False

    def add(self, start: int, end: int, works: bool) -> None:
        """One more step, which may overlap the one before. works: whether anybody runs or waits after it."""
        if self._end is None:
            self._end = start
        if self._works:
            self.gaps += max(0, start - self._end)
        self.steps += max(0, end - max(start, self._end))
        self._end, self._works = max(end, self._end), works

    def notes(self) -> list[str]:
        """What to say of it, if it is much."""
        busy = self.gaps + self.steps
        if self.gaps <= TOLD * busy:
            return []
        share = f"{100 * self.gaps / busy:.0f} % of the time in which the engine had work passed between its steps"
        return [f"{share}: that is in no cost of steps, so latencies are predicted too short by at least as much"]
