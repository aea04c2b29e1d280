"""Columns of cells as tables that fit the terminal. Here alone is decided how wide a column must be and may be."""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Literal

from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text

SHORT = {
    "iteration": "iter",
    "first token": "first",
    "preempted": "preempt",
    "rejected": "reject",
    "dropped": "drop",
    "completed": "done",
    "priority": "prio",
    "first output": "first",
    "preemptions": "preempt",
    "start (ms)": "start",
    "end (ms)": "end ms",
    "arrival (ms)": "arrival",
    "TTFT (ms)": "TTFT",
    "E2E (ms)": "E2E ms",
    "max ITL (ms)": "max ITL",
    "communication": "comm",
    "overhead": "over",
    "max_num_batched_tokens": "budget",
    "max_num_seqs": "seats",
    "request_rate": "rate",
    "output tokens": "tokens",
}
"""Headings for narrow terminals."""
BREAK = re.compile(r" |[_/:-]|[.,](?!\d)")
"""What a name is broken behind; no number is."""
SPARE = ("start (ms)", "start", "first token", "priority", "arrived")
"""Columns that a narrow terminal goes without, in this order: others tell nearly the same."""
Columns = Mapping[str, list[Any]]
"""Cells by their heading: texts, or strings of markup."""


def plain_table(*columns: str, numeric: Sequence[str] = (), gap: int = 2) -> Table:
    """A table without lines; `numeric` columns stand right and are never broken, nor is a heading inside a word."""
    table = Table(box=None, pad_edge=False, padding=(0, gap, 0, 0), header_style="bold")
    for column in columns:
        number = column in numeric
        longest = max(map(cell_len, column.split()), default=1)
        justify: Literal["left", "right"] = "right" if number else "left"
        table.add_column(column, justify=justify, overflow="fold", min_width=longest, no_wrap=number)
    return table


def filled(columns: Columns, numeric: Sequence[str], gap: int = 2) -> Table:
    """Columns of cells as a table, see plain_table."""
    table = plain_table(*columns, numeric=numeric, gap=gap)
    for row in zip(*columns.values(), strict=True):
        table.add_row(*row)
    return table


def table_of(headings: Sequence[str], rows: Sequence[Sequence[Any]]) -> dict[str, list[Any]]:
    """Rows of cells as columns by their headings."""
    return {heading: [row[place] for row in rows] for place, heading in enumerate(headings)}


def table_width(columns: Columns, gap: int = 2) -> int:
    """How wide columns of cells are as a table, if nothing is broken."""
    return sum(_wide([plain(text) for text in (name, *cells)]) + gap for name, cells in columns.items())


def squeezed(
    out: Console, columns: Columns, numeric: Sequence[str], gap: int, longest: int, whole: bool = False
) -> Table | None:
    """Columns of cells as a table as wide as the terminal at most, None where they have no room.

    Broken are, the widest columns first, headings and cells between words, but no cell of `numeric` columns, and words
    that are longer than `longest`. whole: no cell at all is broken, only headings.
    """
    least, most = [], []
    for name, cells in columns.items():
        heading, texts = plain(name), [plain(cell) for cell in cells]
        kept, words = (texts, []) if whole or name in numeric else ([], _words(texts))
        least.append(max(_wide([*kept, *_words([heading])]), min(_wide(words), longest)))
        most.append(_wide([heading, *texts]))
    room = out.width - gap * len(columns)
    if sum(least) > room:
        return None
    table = filled(columns, numeric, gap)
    for column, width in zip(table.columns, _widths(least, most, room), strict=True):
        column.width, column.no_wrap = width, False
    return table


def print_fitted(out: Console, columns: Columns, numeric: Sequence[str]) -> None:
    """Print columns of cells as one table, as far as possible.

    Where the terminal is too narrow: short headings, no columns that are empty, and if need be none of SPARE; where
    that is not enough, several tables with the first column again in each.
    """
    if table_width(columns) <= out.width:
        out.print(filled(columns, numeric))
        return
    held = {name: cells for name, cells in columns.items() if not cells or any(str(cell) for cell in cells)}
    numbers, longest = _short(numeric), _third(out)
    for spared in range(len(SPARE) + 1):
        kept = {SHORT.get(name, name): cells for name, cells in held.items() if name not in SPARE[:spared]}
        table = squeezed(out, kept, numbers, 1, longest)
        if table is not None:
            out.print(table)
            left_out = [name for name in held if name in SPARE[:spared]]
            if left_out:
                out.print(f"(no room for {', '.join(left_out)})", style="dim")
            return
    short = {SHORT.get(name, name): cells for name, cells in held.items()}

    def fit(names: Sequence[str]) -> Table | None:
        return squeezed(out, {name: short[name] for name in names}, numbers, 1, longest)

    for number, names in enumerate(_parts(list(short), 1, lambda names: fit(names) is not None)):
        if number:
            out.print()
        out.print(fit(names) or filled({name: short[name] for name in names}, ()))


def print_folded(out: Console, columns: Columns, numeric: Sequence[str], repeated: int = 1) -> None:
    """Print columns of cells as a table: one too wide for the terminal as several, below one another.

    Each has the first `repeated` columns again, so that a row can be found in all of them; nothing is left out. Where
    these would take more than a third of the width, names in them are broken into several lines.
    """
    if table_width(columns) > out.width and print_narrow(out, columns, numeric):
        return

    def fits(names: Sequence[str]) -> bool:
        return table_width({name: columns[name] for name in names}) <= out.width

    names = list(columns)
    first, rest = names[:repeated], names[repeated:]
    if table_width(columns) > out.width:
        heads = {_broken(n, _third(out)): [_broken(cell, _third(out)) for cell in columns[n]] for n in first}
        columns, first = {**heads, **{n: columns[n] for n in rest}}, list(heads)
    for number, part in enumerate(_parts([*first, *rest], repeated, fits)):
        if number:
            out.print()
        held = {name: columns[name] for name in part}
        narrow = None if fits(part) else squeezed(out, held, numeric, 1, _third(out))
        out.print(narrow or filled(held, numeric if fits(part) else ()))


def print_narrow(out: Console, columns: Columns, numeric: Sequence[str]) -> bool:
    """Print a table with what makes it narrower and breaks no cell, as little as is needed; False if that is too wide.

    First less of a gap, then headings broken between words, then short ones, which are told.
    """
    if table_width(columns, gap=1) <= out.width:
        out.print(filled(columns, numeric, gap=1))
        return True
    short = {SHORT.get(name, name): cells for name, cells in columns.items()}
    if (table := squeezed(out, columns, numeric, 1, 0, whole=True)) is not None:
        out.print(table)
        return True
    if len(short) < len(columns) or table_width(short, gap=1) > out.width:
        return False
    out.print(filled(short, _short(numeric), gap=1))
    told = [f"{SHORT[name]}: {name}" for name in columns if name in SHORT and not name.startswith(SHORT[name])]
    if told:
        out.print(f"({', '.join(told)})", style="dim")
    return True


def _parts(names: Sequence[str], repeated: int, fits: Callable[[Sequence[str]], bool]) -> Iterator[list[str]]:
    """The columns of each of several tables, as many as fit; the first `repeated` are in all of them."""
    first = list(names[:repeated])
    part = first
    for name in names[repeated:]:
        if len(part) > repeated and not fits([*part, name]):
            yield part
            part = first
        part = [*part, name]
    yield part


def _short(names: Sequence[str]) -> list[str]:
    return [SHORT.get(name, name) for name in names]


def _third(out: Console) -> int:
    """Of the terminal's width: as much as one name may take."""
    return max(out.width // 3, 16)


def plain(cell: Any) -> str:
    """A cell's text without its styles."""
    return cell.plain if isinstance(cell, Text) else Text.from_markup(str(cell)).plain


def _words(texts: Sequence[str]) -> list[str]:
    return [word for text in texts for word in text.split()]


def _wide(texts: Sequence[str]) -> int:
    """Cells that the widest line needs."""
    return max((cell_len(line) for text in texts for line in text.split("\n")), default=0)


def _widths(least: Sequence[int], most: Sequence[int], room: int) -> list[int]:
    """A width for each column: all as wide as they would be, or the widest of them as narrow as they must be."""
    for level in range(max(most, default=0), 0, -1):
        found = [max(low, min(high, level)) for low, high in zip(least, most, strict=True)]
        if sum(found) <= room:
            return found
    return list(least)


def _broken(cell: Any, width: int) -> Any:
    """A cell's text in lines of at most so many characters; they end behind a space, _ or the like where one is."""
    if not isinstance(cell, str) or len(cell) <= width:
        return cell
    return "\n".join(line for part in cell.split("\n") for line in _lines(part, width))


def _lines(text: str, width: int) -> list[str]:
    lines = []
    while len(text) > width:
        place = max((found.end() for found in BREAK.finditer(text) if found.end() <= width), default=width)
        lines.append(text[:place].rstrip())
        text = text[place:].lstrip()
    return [*lines, text]
