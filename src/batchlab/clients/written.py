"""A scenario's [workload]: requests written out, or a file."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field, field_validator, model_validator

from batchlab.clients.generate import GenerateTable
from batchlab.clients.request import Request, TokenIdentity
from batchlab.clients.retry import Backoff
from batchlab.clients.transform import TransformTable
from batchlab.clients.workload import FileTable
from batchlab.errors import InputError
from batchlab.settings import LATEST, Count, CountOrZero, Table, Time

if TYPE_CHECKING:
    from batchlab.clients.columns import Columns

PRIORITY_NAMES = {"high": 0, "normal": 1}
MOST_ATTEMPTS = 1000


class RequestTable(Table):
    """One request, written out."""

    id: str = Field(min_length=1)
    arrival: Time
    prompt: Count
    output: Count
    max_tokens: Count | None = None
    priority: int | Literal["high", "normal"] = "normal"
    deadline: Count | None = None
    cancel_at: Time | None = None
    prefix: list[tuple[str, Count]] = Field(default_factory=list)

    @field_validator("prefix", mode="before")
    @classmethod
    def _pairs(cls, value: Any) -> Any:
        return [tuple(pair) if isinstance(pair, list) else pair for pair in value] if isinstance(value, list) else value

    @field_validator("id")
    @classmethod
    def _encodable(cls, value: str) -> str:
        value.encode()
        return value

    @field_validator("priority")
    @classmethod
    def _bounded(cls, value: int | str) -> int | str:
        if isinstance(value, int) and abs(value) > 2**31:
            raise ValueError("must lie between -2^31 and 2^31")
        return value

    @model_validator(mode="after")
    def _limit_covers_output(self) -> RequestTable:
        if self.max_tokens is not None and self.max_tokens < self.output:
            raise ValueError(f"max_tokens = {self.max_tokens} must be at least output = {self.output}")
        shared = sum(length for _, length in self.prefix)
        if shared > self.prompt:
            raise ValueError(f"prefix has {shared} tokens, but prompt only {self.prompt}")
        return self

    def request(self, position: int, segments: dict[str, int]) -> Request:
        """The request; without a max_tokens of its own it gets its true output length, an oracle.

        segments numbers the names of shared prefixes; what is not shared has a segment of its own.
        """
        priority = PRIORITY_NAMES.get(self.priority, 1) if isinstance(self.priority, str) else self.priority
        limit = self.output if self.max_tokens is None else self.max_tokens
        tokens = None
        if self.prefix:
            runs = [(segments.setdefault(name, len(segments)), 0, length) for name, length in self.prefix]
            runs.append((-2 * position - 1, 0, self.prompt - sum(length for _, length in self.prefix)))
            tokens = TokenIdentity(tuple(runs), -2 * position - 2)
        return Request(
            self.id,
            self.arrival,
            self.prompt,
            self.output,
            limit,
            priority,
            self.deadline,
            self.cancel_at,
            None,
            tokens,
        )


class RetryTable(Table):
    """Whether and when a rejected client comes again."""

    limit: Annotated[int, Field(ge=1, le=MOST_ATTEMPTS)]
    wait: Count
    factor: Count = 2

    @model_validator(mode="after")
    def _ends_in_time(self) -> RetryTable:
        if self.wait * self.factor ** (self.limit - 1) * self.limit > LATEST:
            raise ValueError("the last attempt would come after 2^62: lower limit, wait or factor")
        return self

    def backoff(self) -> Backoff:
        """The same, as the client takes it."""
        return Backoff(self.limit, self.wait, self.factor)


class WorkloadTable(FileTable):
    """[workload]: who asks. Requests written out, a file, or requests to generate."""

    requests: list[RequestTable] = Field(default_factory=list)
    generate: GenerateTable | None = None
    transform: TransformTable | None = None
    retry: RetryTable | None = None
    clients: Count | None = None
    think_time: CountOrZero = 0
    max_concurrency: Count | None = None

    @property
    def reacts(self) -> bool:
        """Whether clients wait for results before they send, whatever the requests are."""
        return self.clients is not None or self.max_concurrency is not None

    @property
    def written_out(self) -> bool:
        """Whether the requests stand in the scenario. Raises InputError where that is not clear."""
        given = self.model_fields_set - {"retry", "clients", "think_time", "max_concurrency"}
        for key, form in (("requests", "requests = [...]"), ("generate", "[workload.generate]")):
            if key in given:
                for other in sorted(given - {key, "transform" if key == "generate" else key}):
                    raise InputError(None, f"workload.{other}", None, f"cannot stand beside {form}: give one")
                return key == "requests"
        if self.file is None and given:
            raise InputError(None, "workload.file", None, "is missing: name the file here, or run with --workload PATH")
        if self.file is None:
            message = "needs requests = [...], file = '...' with its format, or [workload.generate]"
            raise InputError(None, "workload", None, message)
        return False

    @property
    def thinks(self) -> bool:
        """Whether there is anybody whose think_time it could be."""
        return self.clients is not None or (self.columns is not None and self.columns.session is not None)

    def columns_of(self, folder: Path, clock_unit: str) -> Columns:
        """The requests of a file or those to generate, with all changes made. Raises InputError."""
        if self.generate is None:
            think = self.think_time if "think_time" in self.model_fields_set and self.clients is None else None
            columns = self.read(folder, clock_unit, think)
        else:
            columns = self.generate.build(folder, clock_unit)
        if self.clients is not None and columns.has_turns:
            raise InputError(None, "workload.clients", self.clients, "would send the turns of a session side by side")
        if self.max_concurrency is not None and columns.waits:
            expected = "is for requests at their own times: here turns of sessions wait for the answer before them"
            raise InputError(None, "workload.max_concurrency", self.max_concurrency, expected)
        return columns if self.transform is None else self.transform.apply(columns)
