"""The part of a scenario's [workload] that names a file, and the requests in that file. docs/workloads.md."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Literal

from pydantic import Field

from batchlab.errors import InputError
from batchlab.settings import Count, Table

if TYPE_CHECKING:
    from batchlab.clients.columns import Columns

AZURE = {"arrival": "TIMESTAMP", "prompt": "ContextTokens", "output": "GeneratedTokens"}
MOONCAKE = {"arrival": "timestamp", "prompt": "input_length", "output": "output_length", "hash_ids": "hash_ids"}


class ColumnMap(Table):
    """The file's names for what a request has."""

    arrival: str
    prompt: str
    output: str
    id: str | None = None
    max_tokens: str | None = None
    priority: str | None = None


class FileTable(Table):
    """A workload file: which, and what it holds."""

    file: str | None = Field(default=None, min_length=1)
    format: Literal["azure", "mooncake", "csv", "jsonl"] | None = None
    columns: ColumnMap | None = None
    time_unit: Literal["s", "ms", "us", "ns", "unit"] | None = None
    sort: bool = False
    limit: Count | None = None

    def read(self, folder: Path, clock_unit: str) -> Columns:
        """The requests in the file; a relative path counts from `folder`. Raises InputError."""
        names, unit = self._names_and_unit(clock_unit)
        # Only here, since numpy and pyarrow take time to import.
        from batchlab.clients import readers
        from batchlab.clients.columns import Origin
        from batchlab.clients.rows import Layout
        from batchlab.clients.source import digest

        assert self.file is not None and self.format is not None
        path = folder / self.file
        in_json = self.format in ("mooncake", "jsonl")
        layout = Layout(names, unit, "key" if in_json else "column", self.sort, self.limit)
        columns = (readers.read_jsonl if in_json else readers.read_csv)(path, layout)
        rule = f"max_tokens from {names['max_tokens']!r}" if "max_tokens" in names else Origin.rule
        columns.origin = Origin(str(path), digest(path), self.format, self.limit, self.sort, rule)
        return columns

    def _names_and_unit(self, clock_unit: str) -> tuple[dict[str, str], str]:
        """The file's names for our fields, and the unit of its times. Raises InputError for what does not fit."""
        own_format = self.format in ("azure", "mooncake")
        if self.format is None:
            raise InputError(None, "workload.format", None, "is missing; one of azure, mooncake, csv, jsonl")
        settings: dict[str, object] = {"columns": self.columns, "time_unit": self.time_unit}
        for key, value in settings.items():
            if own_format and value is not None:
                raise InputError(None, f"workload.{key}", None, f"only for csv and jsonl; {self.format} has its own")
            if not own_format and value is None:
                raise InputError(None, f"workload.{key}", None, f"is missing; {self.format} needs it{_form(key)}")
        if own_format:
            names, unit = (AZURE, "stamp") if self.format == "azure" else (MOONCAKE, "ms")
        else:
            assert self.columns is not None and self.time_unit is not None
            names, unit = self.columns.model_dump(exclude_none=True), self.time_unit
        if (unit == "unit") != (clock_unit != "ns"):
            place, value = ("workload.format", self.format) if own_format else ("workload.time_unit", unit)
            wanted = "is 's', 'ms', 'us' or 'ns'" if unit == "unit" else "is 'unit', with format = 'csv' or 'jsonl'"
            message = f"does not fit [cost], whose clock counts in {clock_unit}: what fits {wanted}"
            raise InputError(None, place, value, message)
        return dict(names), unit


def _form(key: str) -> str:
    if key == "columns":
        return ": columns = { arrival = '...', prompt = '...', output = '...' }, the file's own names"
    return ": 's', 'ms', 'us', 'ns', or 'unit' for a clock without seconds; a unit is never guessed"
