"""What a published result must say before it may be quoted."""

from typing import Annotated, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator


def _said(value: object) -> object:
    """A condition is a text with something in it."""
    if isinstance(value, str) and value.strip().lower() in ("", "-", "?", "n/a", "none", "unknown", "tbd"):
        raise ValueError("must say something: a result without its conditions is not quoted")
    return value


Said = Annotated[str, BeforeValidator(_said)]


class _Frozen(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class Value(_Frozen):
    """One published number. to: the end of a range. said: how the source hedges it, such as `up to` or `about`."""

    what: Said
    value: Annotated[float, Field(allow_inf_nan=False)]
    unit: str = ""
    to: Annotated[float | None, Field(allow_inf_nan=False)] = None
    said: str = ""
    derived: bool = False
    """Our own arithmetic on printed figures."""

    @property
    def text(self) -> str:
        """The number as people read it."""
        spaced = f" {self.unit}" if self.unit not in ("", "x") else self.unit
        number = _number(self.value) if self.to is None else f"{_number(self.value)} to {_number(self.to)}"
        return f"{self.said + ' ' if self.said else ''}{number}{spaced}{' (derived)' if self.derived else ''}"


def _number(value: float) -> str:
    return f"{value:,.0f}" if value == int(value) else f"{value:,}"


class Supposition(_Frozen):
    """What somebody holds to be the cause, without having measured it apart."""

    who: Said
    what: Said


class Record(_Frozen):
    """A published result with all its conditions; one that lacks any of them cannot be made.

    claim: the result in one line. denominator: what the metric is divided by, for a ratio the other side's figure.
    reproduction: `module:function` in batchlab.published.reproductions, or else not_reproduced says why there is none.
    """

    name: Annotated[str, Field(pattern=r"^[a-z0-9]+(-[a-z0-9]+)*$")]
    claim: Said
    system: Said
    model: Said
    precision: Said
    hardware: Said
    baseline: Said
    metric: Said
    denominator: Said
    workload: Said
    values: Annotated[tuple[Value, ...], Field(min_length=1)]
    source: Said
    not_shown: Said
    supposed: tuple[Supposition, ...] = ()
    notes: tuple[Said, ...] = ()
    reproduction: Annotated[str | None, Field(pattern=r"^[a-z_]+:[a-z_]+$")] = None
    not_reproduced: Said | None = None

    @model_validator(mode="after")
    def _is_whole(self) -> Self:
        if (self.reproduction is None) == (self.not_reproduced is None):
            raise ValueError("either reproduction, or not_reproduced with the reason why there is none")
        if "pagedattention" in self.claim.lower():
            raise ValueError("claim: a lead belongs to the whole system; what one technique gives is a supposition")
        if len({value.what for value in self.values}) < len(self.values):
            raise ValueError("values: two have the same name")
        return self

    def value(self, what: str) -> float:
        """The published number of this name. Raises KeyError."""
        return {value.what: value.value for value in self.values}[what]
