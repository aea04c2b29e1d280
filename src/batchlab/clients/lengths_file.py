"""Lengths of generated requests from a file: pairs of prompt and output that belong together."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from batchlab.clients.workload import FormatName, read_file
from batchlab.errors import InputError
from batchlab.settings import Count, Table

if TYPE_CHECKING:
    from batchlab.clients.columns import Columns, Integers


class LengthColumns(Table):
    """The file's names for the two lengths."""

    prompt: str
    output: str


class LengthsTable(Table):
    """Which file, what it holds, and how its rows are chosen.

    draw: `sample` takes a row at random for each request, with replacement; `in-order` takes them as they stand, and
    begins again after the last.
    """

    file: str
    format: FormatName
    columns: LengthColumns | None = None
    draw: Literal["sample", "in-order"] = "sample"
    limit: Count | None = None
    drop_empty: bool = False

    def read(self, folder: Path) -> Columns:
        """The file's rows. Raises InputError."""
        from batchlab.clients.formats import FORMATS
        from batchlab.clients.layout import Layout

        form = FORMATS[self.format]
        if form.own == (self.columns is not None):
            wanted = "has its own names" if form.own else "needs columns = { prompt = '...', output = '...' }"
            raise InputError(None, "workload.generate.lengths.columns", None, f"{self.format} {wanted}")
        given = form.names if self.columns is None else self.columns.model_dump()
        assert given is not None
        names = {name: given[name] for name in ("prompt", "output")}
        layout = Layout(names, "unit", limit=self.limit, drop_empty=self.drop_empty)
        return read_file(folder / self.file, form.container, layout)

    def pick(self, rows: int, shares: Any) -> Integers:
        """Which of so many rows each request gets; its share of 1 decides where they are drawn."""
        import numpy as np

        if self.draw == "in-order":
            return np.arange(len(shares)) % rows
        drawn: Integers = np.minimum((shares * rows).astype(np.int64), rows - 1)
        return drawn
