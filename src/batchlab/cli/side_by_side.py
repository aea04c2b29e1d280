"""The table of a comparison: a column for each variant, in as many blocks as the terminal's width asks for."""

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from rich.cells import cell_len
from rich.console import Console
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from batchlab import compare
from batchlab.cli.tables import PRICE, console, percent
from batchlab.errors import one_line
from batchlab.settings import LimitSettings

WIDEST = 24
"""Characters of a cell; longer ones are folded."""
GAP = 2
LATENCIES = ("ttft", "tpot", "itl", "e2el", "queue_time")
FIGURES = ("mean", "p50", "p90", "p99", "max")
Cell = tuple[str, ...] | None
"""What is marked part by part if it differs from the column to the left; None where nothing can be told."""


@dataclass(frozen=True)
class Row:
    """A label and one cell a column. marks: whether differences are marked."""

    label: str
    cells: Sequence[Cell]
    marks: bool = True


@dataclass(frozen=True)
class Section:
    """Rows that belong together, below a heading if there is one."""

    heading: str
    rows: Sequence[Row]


def print_comparison(plan: compare.Comparison, outcomes: Sequence[compare.Outcome], out: Console | None = None) -> None:
    """Print what all variants have in common, then the columns."""
    out = out or console()
    differing = compare.differing(plan.variants)
    out.print(f"[bold]{escape(one_line(plan.title or plan.name))}[/bold]")
    for line in _common(compare.common(plan.variants), differing, out.width):
        out.print(escape(line))
    for line in _workload(plan.variants[0], differing):
        out.print(escape(one_line(line)))
    out.print()
    sections = [_settings(outcomes, differing), _requests(outcomes), _latencies(outcomes), _totals(outcomes)]
    lines: list[tuple[str, list[Text]]] = []
    for section in sections:
        if section.heading and section.rows:
            lines.append((section.heading, []))
        lines += zip((row.label for row in section.rows), rendered(section), strict=True)
    _print_blocks(out, lines, len(outcomes))
    if len(outcomes) > 1:
        out.print("* differs from the column before")
    inline = [outcome.document for outcome in outcomes if outcome.variant.run.inline and outcome.document]
    if any(document["max_tokens_rule"] != "given" for document in inline):
        out.print("max_tokens is each request's true output length where none is given: an oracle, no engine has it")
    if any(outcome.variant.run.cost.unit == "cost unit" for outcome in outcomes):
        out.print("Times are cost units, not milliseconds. Equal end times prove nothing about throughput.")


def _print_blocks(out: Console, lines: Sequence[tuple[str, list[Text]]], count: int) -> None:
    """The lines as tables of as many columns as there is room for. A line without cells is a heading."""
    widths = [min(WIDEST, max(3, *(cells[n].cell_len for _, cells in lines if cells))) for n in range(count)]
    label_width = min(max(len(label) for label, _ in lines), out.width // 2)
    for block in blocks(widths, out.width - label_width - GAP):
        table = Table(box=None, pad_edge=False, padding=(0, GAP, 0, 0), header_style="bold")
        table.add_column("", overflow="fold", width=label_width)
        for n in block:
            table.add_column(str(n + 1), overflow="fold", width=min(widths[n], out.width - label_width - GAP))
        for label, cells in lines:
            if cells and not any(cells[n] for n in block):
                continue  # no column of this block has a reason
            name = _label(out, label, label_width)
            name.stylize("" if cells else "italic")
            table.add_row(name, *(cells[n] for n in block if cells))
        out.print(table)
        out.print()


def _label(out: Console, label: str, width: int) -> Text:
    """A row's label; where it is too long its other lines are indented further than its first."""
    if cell_len(label) <= width:
        return Text(label)
    indent = " " * (len(label) - len(label.lstrip()))
    below = f"\n{indent}{' ' * GAP}"
    return Text(indent) + Text(below).join(Text(label.lstrip()).wrap(out, width - len(below) + 1, overflow="fold"))


def blocks(widths: Sequence[int], room: int) -> list[list[int]]:
    """The columns' numbers, as many in each block as there is room for, at least one."""
    found: list[list[int]] = []
    left = 0
    for number, width in enumerate(widths):
        if not found or width > left:
            found.append([])
            left = room
        found[-1].append(number)
        left -= width + GAP
    return found


def rendered(section: Section) -> list[list[Text]]:
    """The rows' cells as text: parts one below the other, those that differ from the left bold and with a star."""
    marked = [_marked(row) for row in section.rows]
    widths: dict[tuple[int, int], int] = {}
    for row in marked:
        for column, parts in enumerate(row):
            for position, (text, _) in enumerate(parts[:-1]):
                widths[column, position] = max(widths.get((column, position), 0), len(text))
    return [
        [
            Text(" ").join(
                Text(text.ljust(widths.get((column, position), 0)), style="bold" if different else "")
                for position, (text, different) in enumerate(parts)
            )
            for column, parts in enumerate(row)
        ]
        for row in marked
    ]


def _marked(row: Row) -> list[list[tuple[str, bool]]]:
    """For each cell its parts, each with whether it differs from the left; the text then ends in a star."""
    found: list[list[tuple[str, bool]]] = []
    left: Cell = None
    for cell in row.cells:
        if cell is None:
            found.append([("-", False)])
        else:
            old = left if left is not None and row.marks else cell
            different = [i >= len(old) or part != old[i] for i, part in enumerate(cell)]
            different[-1] |= len(old) != len(cell)
            found.append([(f"{part}*" if new else part, new) for part, new in zip(cell, different, strict=True)])
        left = cell
    return found


def _common(facts: dict[str, Any], differing: Sequence[str], width: int) -> list[str]:
    """What is the same in every column and says something, in lines broken between settings."""
    shown = {
        _short(key): one_line(compare.said(key, value))
        for key, value in facts.items()
        if key not in differing and not _unset(key, value)
    }
    if "policy" in shown and "rules" in shown:
        shown["policy"] += f" ({shown.pop('rules')})"
    lines = [""]
    for number, (key, value) in enumerate(shown.items(), 1):
        part = f"{'in all columns: ' if number == 1 else ''}{key} = {value}{',' if number < len(shown) else ''}"
        if lines[-1] and len(lines[-1]) + 1 + len(part) > width:
            lines.append("")
        lines[-1] += f" {part}" if lines[-1] else part
    return lines


def _unset(key: str, value: Any) -> bool:
    """Whether it goes without saying: the core's own settings at their defaults, costs of 0, no limit."""
    own = LimitSettings.model_fields.get(_short(key))
    return value is None or (key.startswith("cost.") and value == 0) or (own is not None and value == own.default)


def _workload(first: compare.Variant, differing: Sequence[str]) -> list[str]:
    """What the workload file is like, if there is one and the same for all."""
    if first.run.inline or any(key.startswith(("workload.", "cost.unit")) for key in differing):
        return []
    from batchlab.cli.large import workload_lines

    return workload_lines(first.run)


def _settings(outcomes: Sequence[compare.Outcome], differing: Sequence[str]) -> Section:
    """What sets the variants apart, and how each ended."""
    facts = [outcome.variant.facts for outcome in outcomes]
    rows = [
        Row(_short(key), [(one_line(compare.said(key, each[key])) if key in each else "-",) for each in facts])
        for key in differing
    ]
    rows.append(Row("ended", [(outcome.ending,) for outcome in outcomes]))
    if any(outcome.reason for outcome in outcomes):
        rows.append(Row("  because", [(one_line(outcome.reason or ""),) for outcome in outcomes], marks=False))
    return Section("", rows)


def _short(key: str) -> str:
    return key.removeprefix("engine.")


def _requests(outcomes: Sequence[compare.Outcome]) -> Section:
    """Request by request, where there are few."""
    units = {outcome.variant.run.cost.unit for outcome in outcomes}
    counted = units == {"iteration"}
    fields = ("first_output", "completed") if counted else ("ttft", "e2el", "max_itl")
    in_ms = units == {"ns"}
    names = "first output, completed" if counted else f"TTFT, E2E, max ITL{' in ms' if in_ms else ''}"
    reasons = {reason for o in outcomes if o.document for reason in o.document["totals"]["rejections"]}
    found: dict[str, list[Cell]] = {}
    for column, outcome in enumerate(outcomes):
        for entry in (outcome.document or {}).get("requests", ()):
            cells = found.setdefault(entry["id"], [None] * len(outcomes))
            cells[column] = _request(entry, fields, len(reasons) > 1, in_ms)
    return Section(names, [Row(f"  {one_line(id)}", cells) for id, cells in found.items()])


def _request(entry: dict[str, Any], fields: Sequence[str], with_reason: bool, in_ms: bool) -> Cell:
    """Its times, and the result if it is not complete; the reason of a rejection if there is more than one in all."""
    times = [_time(entry[field], "ns") if in_ms else _number(entry[field]) for field in fields]
    result = entry["result"]
    if result == "completed":
        return tuple(times)
    if with_reason and entry["reason"]:
        result += f": {one_line(entry['reason'])}"
    return (result,) if entry["first_output"] is None else (*times, result)


def _latencies(outcomes: Sequence[compare.Outcome]) -> Section:
    """Means and percentiles, where there are many requests."""
    documents = [outcome.document for outcome in outcomes]
    if not any(document and "requests" not in document for document in documents):
        return Section("", [])
    from batchlab.cli.large import NAMES  # numpy takes time to import

    units = {outcome.variant.run.cost.unit for outcome in outcomes}
    unit = units.pop() if len(units) == 1 else ""
    rows = [
        Row(
            f"  {NAMES[name]} {figure.replace('p', 'P')}",
            [None if d is None else (_time(d["latency"][name][figure], unit),) for d in documents],
        )
        for name in LATENCIES
        for figure in FIGURES
    ]
    return Section(f"latency in {'ms' if unit == 'ns' else f'{unit}s'}" if unit else "latency", rows)


def _time(value: float | None, unit: str) -> str:
    """A figure of a latency, in ms where times are ns."""
    if unit == "ns":
        from batchlab.cli.large import milliseconds

        return milliseconds(value)
    return "-" if value is None else f"{value:,.2f}".removesuffix(".00")


def _totals(outcomes: Sequence[compare.Outcome]) -> Section:
    """The runs' totals."""
    documents = [outcome.document for outcome in outcomes]

    def row(label: str, of: Callable[[dict[str, Any]], Any]) -> Row:
        return Row(label, [None if document is None else (_number(of(document)),) for document in documents])

    def each(label: str, of: Callable[[dict[str, Any]], dict[str, int]]) -> list[Row]:
        names = sorted({name for document in documents if document for name in of(document)})
        return [row(label.format(one_line(name)), functools.partial(count, of, name)) for name in names]

    def count(of: Callable[[dict[str, Any]], dict[str, int]], name: str, document: dict[str, Any]) -> int:
        return of(document).get(name, 0)

    def priced(name: str) -> bool:
        return any(document["totals"][name] for document in documents if document)

    listed = [document.get("unused_per_iteration") for document in documents if document]
    lists = [row("  in each iteration", lambda d: d["unused_per_iteration"])] if listed and all(listed) else []
    many = [document for document in documents if document and "requests" not in document]
    units = {outcome.variant.run.cost.unit for outcome in outcomes}
    rows = [
        *each("{} requests", lambda d: d["results"]),
        *each("  {}", lambda d: d["totals"]["rejections"]),
        row("longest queue", lambda d: d["totals"]["max_queue_length"]),
        row("preemptions", lambda d: d["totals"]["preemptions"]),
        row("unused budget", lambda d: d["totals"]["unused_budget"]),
        *lists,
        row("decode stalls, active", lambda d: d["totals"]["decode_stalls"]),
        row("decode stalls, preempted", lambda d: d["totals"]["preempted_decode_stalls"]),
        *[row(name.replace("_", " "), functools.partial(_total, name)) for name in PRICE if priced(name)],
        row("slot waste", lambda d: _share(d["slots"]["waste"])),
        row("iterations", lambda d: d["iterations"]),
        *([] if units == {"iteration"} else [_end_time(documents, units)]),
        *([row(f"requests/{many[0]['throughput']['per']}", lambda d: d["throughput"]["request_rate"])] if many else []),
    ]
    return Section("totals", rows if any(documents) else [])


def _total(name: str, document: dict[str, Any]) -> Any:
    return document["totals"][name]


def _share(share: float | None) -> str | None:
    return None if share is None else percent(share)


def _end_time(documents: Sequence[dict[str, Any] | None], units: set[str]) -> Row:
    """In ms where all times are ns; any other unit is among the settings."""
    unit = "ns" if units == {"ns"} else ""
    cells = [None if document is None else (_time(document["time"], unit),) for document in documents]
    return Row("end time (ms)" if unit else "end time", cells)


def _number(value: Any) -> str:
    if isinstance(value, list):
        return " ".join(map(_number, value))
    if isinstance(value, str):
        return value
    return "-" if value is None else f"{value:,.4g}" if isinstance(value, float) else f"{value:,}"
