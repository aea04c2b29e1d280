"""The part of a scenario's [workload] that names a file, and the requests in that file. docs/workloads.md."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from pydantic import Field

from batchlab.clients.formats import FORMATS, MAPPED, Format
from batchlab.clients.layout import Layout
from batchlab.errors import InputError
from batchlab.settings import Count, Table

if TYPE_CHECKING:
    from batchlab.clients.columns import Columns

FormatName = Literal[
    "azure", "burstgpt", "vidur", "sarathi", "mooncake", "llmservingsim", "vllm-bench", "csv", "jsonl", "parquet"
]


class ColumnMap(Table):
    """The file's names for what a request has."""

    arrival: str
    prompt: str
    output: str
    id: str | None = None
    max_tokens: str | None = None
    priority: str | None = None
    session: str | None = None
    turn: str | None = None


class FileTable(Table):
    """A workload file: which, and what it holds."""

    file: str | None = Field(default=None, min_length=1)
    format: FormatName | None = None
    columns: ColumnMap | None = None
    time_unit: Literal["s", "ms", "us", "ns", "timestamp", "unit"] | None = None
    sort: bool = False
    limit: Count | None = None
    round_times: bool = False
    drop_empty: bool = False
    prompts: Literal["whole", "new"] | None = None

    def read(self, folder: Path, clock_unit: str, think_time: int | None = None) -> Columns:
        """The requests in the file; a relative path counts from `folder`. Raises InputError.

        think_time: how long after the end of a turn the next one of its session is sent; None for the file's times.
        """
        form, names, unit = self._form(clock_unit)
        from batchlab.clients.columns import ORACLE, Origin  # only here, since numpy takes time to import
        from batchlab.clients.source import digest

        assert self.file is not None and self.format is not None
        path = folder / self.file
        rounds = self.round_times or form.rounds
        self._check_sessions(names)
        layout = Layout(
            names, unit, "column", self.sort, self.limit, rounds, self.drop_empty, self.prompts or "whole", think_time
        )
        columns = read_file(path, form.container, layout)
        rule = f"max_tokens from {names['max_tokens']!r}" if "max_tokens" in names else ORACLE
        steps = tuple(self._steps(rounds, columns.dropped, think_time if "session" in names else None))
        columns.origin = Origin(str(path), digest(path), self.format, steps, rule)
        return columns

    def _check_sessions(self, names: dict[str, str]) -> None:
        if "session" not in names:
            for key, value in (("columns.turn", names.get("turn")), ("prompts", self.prompts)):
                if value is not None:
                    raise InputError(None, f"workload.{key}", value, "needs a session among the columns")
        elif self.prompts is None:
            expected = "is missing: 'whole' where a prompt holds the turns before it, 'new' where only what is new"
            raise InputError(None, "workload.prompts", None, expected)

    def _steps(self, rounds: bool, dropped: int, think_time: int | None) -> list[str]:
        """What reading did beside reading."""
        steps = []
        if self.limit is not None:
            steps.append(f"only the first {self.limit:,} rows (limit = {self.limit})")
        if dropped:
            steps.append(f"{dropped:,} rows with a length of 0 dropped (drop_empty = true)")
        if self.sort:
            steps.append("sorted by arrival (sort = true)")
        if rounds:
            steps.append("times rounded to ns")
        if self.prompts == "new":
            steps.append("the turns before it put in front of each prompt (prompts = 'new')")
        if think_time is not None:
            steps.append(f"turns sent {think_time:,} after the end of the one before (think_time = {think_time})")
        return steps

    def _form(self, clock_unit: str) -> tuple[Format, dict[str, str], str]:
        """The file's form, its names for our fields, and the unit of its times. Raises InputError for what is amiss."""
        if self.format is None:
            raise InputError(None, "workload.format", None, f"is missing; one of {', '.join(FORMATS)}")
        form = FORMATS[self.format]
        if not form.timed:
            message = "has no arrivals: take its lengths with [workload.generate] lengths = { file = '...' }"
            raise InputError(None, "workload.format", self.format, message)
        settings: dict[str, object] = {"columns": self.columns, "time_unit": self.time_unit}
        for key, value in settings.items():
            if form.own and value is not None:
                message = f"only for {', '.join(MAPPED[:-1])} and {MAPPED[-1]}; {self.format} has its own"
                raise InputError(None, f"workload.{key}", None, message)
            if not form.own and value is None:
                raise InputError(None, f"workload.{key}", None, f"is missing; {self.format} needs it{_hint(key)}")
        if form.own:
            assert form.names is not None and form.unit is not None
            names, unit = dict(form.names), form.unit
        else:
            assert self.columns is not None and self.time_unit is not None
            names, unit = self.columns.model_dump(exclude_none=True), self.time_unit
        if unit == "timestamp":
            if self.format != "parquet":
                raise InputError(None, "workload.time_unit", unit, "only for parquet, whose times can be of that type")
            unit = "stamp"
        if (unit == "unit") != (clock_unit != "ns"):
            place, value = ("workload.format", self.format) if form.own else ("workload.time_unit", unit)
            wanted = (
                "is 's', 'ms', 'us' or 'ns'"
                if unit == "unit"
                else "is 'unit', with format = 'csv', 'jsonl' or 'parquet'"
            )
            message = f"does not fit [cost], whose clock counts in {clock_unit}: what fits {wanted}"
            raise InputError(None, place, value, message)
        return form, names, unit


def read_file(path: Path, container: str, layout: Layout) -> Columns:
    """The requests in a file of the given kind. Raises InputError."""
    if container == "parquet":
        from batchlab.clients import parquet

        return parquet.read(path, layout)
    if container == "lists":
        from batchlab.clients import lists_file

        return lists_file.read(path, layout)
    from batchlab.clients import readers

    if container == "jsonl":
        return readers.read_jsonl(path, replace(layout, kind="key"))
    return readers.read_csv(path, layout)


def _hint(key: str) -> str:
    if key == "columns":
        return ": columns = { arrival = '...', prompt = '...', output = '...' }, the file's own names"
    return ": 's', 'ms', 'us', 'ns', or 'unit' for a clock without seconds; a unit is never guessed"
