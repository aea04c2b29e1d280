"""What a reproduction must say beside its numbers."""

from collections.abc import Callable
from dataclasses import dataclass

Tell = Callable[[str], None]
"""Is told what is being simulated."""


@dataclass(frozen=True)
class Constant:
    """A number that the simulation needs. fit: chosen after seeing the target, so what it gives is no prediction."""

    name: str
    value: str
    origin: str
    fit: bool = False


@dataclass(frozen=True)
class Compared:
    """One simulated value beside the published one, if there is one."""

    what: str
    published: float | None
    simulated: float
    unit: str

    @property
    def error(self) -> float | None:
        """Simulated over published, less 1."""
        return None if self.published is None else self.simulated / self.published - 1


@dataclass(frozen=True)
class Varied:
    """Sensitivity: what the compared values become, in their order, when one thing is changed."""

    change: str
    simulated: tuple[float, ...]


@dataclass(frozen=True)
class Reproduction:
    """A published result simulated: values beside values, with everything that went into them."""

    compared: tuple[Compared, ...]
    assumed: tuple[str, ...]
    constants: tuple[Constant, ...]
    sensitivity: tuple[Varied, ...]
    not_shown: str

    def __post_init__(self) -> None:
        if not (self.compared and self.assumed and self.constants and self.sensitivity and self.not_shown):
            raise ValueError(
                "a reproduction says what it assumes, what it takes, what moves it and what it does not show"
            )
        for varied in self.sensitivity:
            if len(varied.simulated) != len(self.compared):
                raise ValueError(f"sensitivity {varied.change!r}: one value for each that is compared")
