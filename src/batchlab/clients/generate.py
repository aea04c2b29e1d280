"""[workload.generate]: requests drawn from distributions, under a seed. docs/workloads.md says what each key means."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import BeforeValidator, Field, field_validator, model_validator

from batchlab.clients.distributions import Drawn, Tokens
from batchlab.clients.lengths_file import LengthsTable
from batchlab.settings import LATEST, Count, CountOrZero, Table

if TYPE_CHECKING:
    from batchlab.clients.columns import Columns

MOST_RATE = 10**9
MOST_PROMPTS = 10**8
MOST_CLASSES = 1000
Span = Annotated[int, Field(ge=1, le=LATEST)]
Rate = Annotated[float, Field(gt=0, le=MOST_RATE, allow_inf_nan=False)]
PROCESSES: dict[str, tuple[str, ...]] = {
    "constant": ("request_rate",),
    "poisson": ("request_rate",),
    "gamma": ("request_rate", "burstiness"),
    "on-off": ("request_rate", "on_time", "off_time"),
    "diurnal": ("request_rate", "period", "amplitude"),
    "ramp": ("start_rate", "request_rate", "ramp_time"),
    "all-at-once": (),
}
"""The settings of each arrival process; all of them have to be given, and no others."""
ALL_AT_ONCE = "must be finite; arrivals = 'all-at-once' sends everything at time 0"


def _targets(value: Any) -> Any:
    if not isinstance(value, str):
        raise ValueError("must be a text, such as 'ttft:100 tpot:20'")
    return value


class ClassTable(Table):
    """What requests of one kind are like. Times in the clock's unit, lengths in tokens."""

    prompt: Tokens = None
    output: Tokens = None
    lengths: LengthsTable | None = None
    max_tokens: Count | None = None
    priority: Annotated[int, Field(ge=-(2**31), le=2**31)] = 1
    deadline: Span | None = None
    goodput: Annotated[str, Field(min_length=1), BeforeValidator(_targets)] | None = None
    shared_prefix: CountOrZero = 0
    turns: Tokens = None
    next_prompt: Tokens = None
    turn_gap: Drawn = None
    think_time: Drawn = None

    @model_validator(mode="after")
    def _consistent(self) -> ClassTable:
        if self.lengths is not None and (self.prompt is not None or self.output is not None):
            raise ValueError("lengths gives prompt and output together: leave those out, or it")
        for key in ("next_prompt", "turn_gap", "think_time"):
            if getattr(self, key) is not None and self.turns is None:
                raise ValueError(f"{key} needs turns: it says how a session goes on")
        if self.turns is not None and (self.turn_gap is None) == (self.think_time is None):
            raise ValueError(
                "turns need one of think_time, from the end of one turn to the sending of the next, "
                "and turn_gap, from sending to sending"
            )
        if self.turns is not None and self.lengths is not None:
            raise ValueError("turns need prompt and output: lengths are of requests that stand alone")
        return self


class NamedClass(ClassTable):
    """One of several kinds of requests. weight: its share of the arrivals, relative to the other classes'."""

    name: str = Field(min_length=1)
    weight: Annotated[float, Field(gt=0, le=10**6, allow_inf_nan=False)] = 1.0

    @field_validator("name")
    @classmethod
    def _encodable(cls, value: str) -> str:
        value.encode()
        return value

    @model_validator(mode="after")
    def _has_lengths(self) -> NamedClass:
        _refuse_missing(self)
        return self


class GenerateTable(ClassTable):
    """How many requests, when they come, and what they are like: of one kind, or of several `classes`."""

    num_prompts: Annotated[int, Field(ge=1, le=MOST_PROMPTS)]
    seed: Annotated[int, Field(ge=0, lt=2**63)]
    arrivals: Literal["constant", "poisson", "gamma", "on-off", "diurnal", "ramp", "all-at-once"]
    request_rate: Rate | None = None
    burstiness: Annotated[float, Field(ge=0.01, le=10_000, allow_inf_nan=False)] | None = None
    on_time: Span | None = None
    off_time: Span | None = None
    period: Span | None = None
    amplitude: Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)] | None = None
    start_rate: Annotated[float, Field(ge=0, le=MOST_RATE, allow_inf_nan=False)] | None = None
    ramp_time: Span | None = None
    classes: Annotated[list[NamedClass], Field(min_length=1, max_length=MOST_CLASSES)] | None = None

    @field_validator("request_rate", mode="before")
    @classmethod
    def _finite(cls, value: Any) -> Any:
        if value == float("inf"):
            raise ValueError(ALL_AT_ONCE)
        return value

    @model_validator(mode="after")
    def _fits(self) -> GenerateTable:
        wanted = PROCESSES[self.arrivals]
        for key in dict.fromkeys(key for keys in PROCESSES.values() for key in keys):
            given = getattr(self, key) is not None
            if given and key not in wanted:
                takes = f"takes {', '.join(wanted)}" if wanted else "takes no rate"
                raise ValueError(f"{key} does not go with arrivals = '{self.arrivals}', which {takes}")
            if key in wanted and not given:
                raise ValueError(f"arrivals = '{self.arrivals}' needs {key}")
        if self.classes is None:
            _refuse_missing(self)
            return self
        if own := sorted(self.model_fields_set & set(ClassTable.model_fields)):
            raise ValueError(f"{own[0]} belongs into each of the classes where there are any")
        names = [kind.name for kind in self.classes]
        if twice := next((name for name in names if names.count(name) > 1), None):
            raise ValueError(f"the class {twice!r} stands twice")
        return self

    @property
    def kinds(self) -> list[ClassTable]:
        """Its classes, or itself where it has none."""
        return [self] if self.classes is None else list(self.classes)

    @property
    def in_sessions(self) -> bool:
        """Whether any requests are turns of sessions."""
        return any(kind.turns is not None for kind in self.kinds)

    def build(self, folder: Path, clock_unit: str) -> Columns:
        """The requests, by arrival. A lengths file's path counts from `folder`. Raises InputError."""
        from batchlab.clients.synthesis import build  # only here, since numpy takes time to import

        return build(self, folder, clock_unit)


def _refuse_missing(kind: ClassTable) -> None:
    if kind.lengths is None and (kind.prompt is None or kind.output is None):
        raise ValueError("needs prompt and output, or lengths = { file = ... } for both")
