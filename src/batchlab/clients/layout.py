"""What a file's rows hold, and where."""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Layout:
    """What a file's rows hold, and where.

    names: the file's own name for each of our fields; without "arrival" all come at 0. unit: of arrivals; "stamp" for
    absolute times. kind: "column" or "key". sort: whether rows may come in any order. limit: only so many rows are
    read. round_times: whether times finer than a nanosecond are rounded, half to even, instead of refused. drop_empty:
    whether rows with a length of 0 are left out instead of refused. prompts: whether those of a session's turns are
    `whole`, with all turns before them, or hold only what is `new`. think_time: from the end of a turn to the sending
    of the next one; None where turns come at the file's times.
    """

    names: Mapping[str, str]
    unit: str
    kind: str = "column"
    sort: bool = False
    limit: int | None = None
    round_times: bool = False
    drop_empty: bool = False
    prompts: str = "whole"
    think_time: int | None = None

    def asked(self, name: str) -> str:
        """Which field a name of the file was given for, to end a sentence with; nothing where it is the same."""
        return "" if self.names[name] == name else f"; asked for as {name!r}"

    @property
    def from_zero(self) -> bool:
        """Whether arrivals count from the first one: real times do, the units of an abstract clock do not."""
        return self.unit != "unit"

    @property
    def timed(self) -> bool:
        """Whether rows have arrivals."""
        return "arrival" in self.names

    @property
    def least(self) -> int:
        """The least length that is let through; one of 0 then drops its row."""
        return 0 if self.drop_empty else 1
