"""[workload.transform]: changes to the requests of a workload, each on purpose and repeated in every report."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field, model_validator

from batchlab.errors import InputError
from batchlab.settings import Count, Table, Time

if TYPE_CHECKING:
    from batchlab.clients.columns import Columns

OF_TIME = ("from_time", "to_time", "sample", "rate_scale")


class TransformTable(Table):
    """What is done, in this order; times in the clock's unit.

    from_time, to_time: only requests that arrive from the one on and before the other, counted from from_time. sample:
    each stays with this probability, under `seed`. rate_scale: arrivals are divided by it, so that 2 is twice the rate.
    max_model_len: what becomes of requests whose prompt and output are longer together: `drop`, or `clip` the output,
    and a prompt that leaves no room for any. max_tokens: the limit of each request; outputs above it are cut to it.
    """

    from_time: Time | None = None
    to_time: Time | None = None
    sample: Annotated[float, Field(gt=0, lt=1)] | None = None
    seed: Annotated[int, Field(ge=0, lt=2**63)] | None = None
    rate_scale: Annotated[float, Field(ge=1e-6, le=1e6, allow_inf_nan=False)] | None = None
    max_model_len: Annotated[int, Field(ge=2, le=2**40)] | None = None
    too_long: Literal["clip", "drop"] | None = None
    max_tokens: Count | None = None

    @model_validator(mode="after")
    def _complete(self) -> TransformTable:
        if (self.sample is None) != (self.seed is None):
            raise ValueError("sample and seed go together: which requests stay is drawn under the seed")
        if (self.max_model_len is None) != (self.too_long is None):
            raise ValueError("max_model_len and too_long go together: too_long = 'clip' or 'drop'")
        if self.from_time is not None and self.to_time is not None and self.from_time >= self.to_time:
            raise ValueError(f"from_time = {self.from_time} must be before to_time = {self.to_time}")
        return self

    def apply(self, columns: Columns) -> Columns:
        """The changed requests; their origin says what was done. Raises InputError where nothing is left."""
        from batchlab.clients import changes  # only here, since numpy takes time to import

        if columns.origin is not None and columns.origin.file is None:
            self._refuse_for_generated()
        if self.from_time is not None or self.to_time is not None:
            columns = changes.between(columns, self.from_time or 0, self.to_time)
        if self.sample is not None and self.seed is not None:
            columns = changes.sampled(columns, self.sample, self.seed)
        if self.rate_scale is not None:
            columns = changes.faster(columns, self.rate_scale)
        if self.max_model_len is not None:
            columns = (changes.dropped if self.too_long == "drop" else changes.clipped)(columns, self.max_model_len)
        if self.max_tokens is not None:
            columns = changes.limited(columns, self.max_tokens)
        return columns

    def _refuse_for_generated(self) -> None:
        for key in OF_TIME:
            if getattr(self, key) is not None:
                instead = "request_rate" if key == "rate_scale" else "num_prompts"
                raise InputError(
                    None, f"workload.transform.{key}", None, f"only for a file; in [workload.generate] set {instead}"
                )
