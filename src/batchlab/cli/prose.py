"""Tables whose cells are prose."""

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from batchlab.cli.columns import filled, squeezed, table_width

LEAST_PROSE = 24
"""Cells that prose needs beside a table's other columns."""


def print_words(out: Console, columns: Mapping[str, list[Any]], numeric: tuple[str, ...] = (), gap: int = 2) -> None:
    """Print columns of cells, some of them prose, without a word broken.

    Where the words have no room side by side: each row's first cell, and below it the others with their headings.
    """
    table = squeezed(out, columns, numeric, gap, longest=out.width)
    if table is not None:
        out.print(table)
        return
    names = [name and f"{name}: " for name in columns]
    for row in zip(*columns.values(), strict=True):
        for name, cell in zip(names, map(_styled, row), strict=True):
            if name is names[0]:
                out.print(cell)
            elif cell:
                out.print(Padding(Text.assemble((name, "bold"), cell), (0, 0, 0, 4)))


def _styled(cell: Any) -> Text:
    return cell if isinstance(cell, Text) else Text.from_markup(cell)


def print_with_prose(out: Console, columns: Mapping[str, list[Any]], numeric: tuple[str, ...]) -> None:
    """Print columns of cells whose last one is prose: each on lines of its own below its row, where it has no room."""
    *names, prose = columns
    short = {name: columns[name] for name in names}
    if out.width - table_width(short) >= LEAST_PROSE:
        out.print(filled(columns, numeric))
        return
    gap = 2 if table_width(short) <= out.width else 1
    fitting = squeezed(out, short, numeric, gap, longest=out.width)
    if fitting is None:
        print_words(out, columns, numeric)
        return
    rows: list[Sequence[Any]] = [[Text(name, "bold") for name in names], *zip(*short.values(), strict=True)]
    for row, below in zip(rows, ("", *columns[prose]), strict=True):
        line = Table.grid(padding=(0, gap, 0, 0))
        for column in fitting.columns:
            line.add_column(justify=column.justify, overflow="fold", width=column.width)
        line.add_row(*row)
        out.print(line)
        if below:
            out.print(Padding(below, (0, 0, 0, 4)))
