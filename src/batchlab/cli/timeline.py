"""The timeline of a small run: a row a request, a column an iteration, in text that needs no colour."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from rich.cells import cell_len, set_cell_size
from rich.console import Console
from rich.text import Text

from batchlab.errors import one_line
from batchlab.events import End, Event, Iteration
from batchlab.export.names import labels
from batchlab.export.spans import Mark, Span, Spans
from batchlab.steps import Step

LEGEND = {
    ".": ". waiting",
    "+": "+N prefill of N tokens",
    "(": "(N) found in the prefix cache",
    "D": "D decode",
    "-": "- has a seat, gets no tokens",
    "P": "P preempted",
    "p": "p waits after it",
    "R": "R rejected, comes again",
    "X": "X rejected",
    "x": "x cancelled, expired or failed",
    "#": "# done",
}
"""What the letters of a cell mean, in the order in which they are explained."""
KINDS = {"waiting": ".", "decode": "D", "held": "-", "preempted": "p"}
BEFORE = {"preempted": "P", "turned away": "R"}
AFTER = {"rejected": "X", "dropped": "x", "completed": "#"}
STYLES = {
    ".": "dim",
    "+": "blue",
    "D": "green",
    "-": "yellow",
    "P": "red",
    "p": "red",
    "R": "red",
    "X": "red",
    "x": "red",
}
LONGEST_NAME = 24
"""Cells of a request's name; a longer one is shortened."""


@dataclass(slots=True)
class Cell:
    """What one request did in one iteration: what happened to it first, what it was given, how it ended."""

    before: str = ""
    body: str = ""
    after: str = ""

    def __str__(self) -> str:
        body = "" if self.body == "p" and self.before else self.body
        return self.before + body + self.after


@dataclass
class Timeline:
    """An observer that keeps what each request did in the iterations from first to last: `cells[id][iteration]`.

    steps: these iterations, each with when the step ran that it planned.
    """

    first: int = 0
    last: int = 1 << 62
    cells: dict[str, dict[int, Cell]] = field(default_factory=dict)
    steps: list[Step] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._spans = Spans(self._tell)

    def __call__(self, event: Event) -> None:
        """Take the next event."""
        self._spans(event)
        if isinstance(event, Iteration):
            self._keep(self._spans.steps.over)
        elif isinstance(event, End):
            self._keep(self._spans.steps.left())

    def close(self) -> None:
        """No more events come, whether or not the run has ended."""
        self._spans.close()
        self._keep(self._spans.steps.left())

    def _keep(self, steps: list[Step]) -> None:
        self.steps += [step for step in steps if self.first <= step.line.iteration <= self.last]

    def _tell(self, item: Span | Mark) -> None:
        if isinstance(item, Mark):
            if self.first <= item.iteration <= self.last:
                cell = self._cell(item.id, item.iteration)
                cell.before += BEFORE.get(item.kind, "")
                cell.after += AFTER.get(item.kind, "")
            return
        if item.kind == "retrying":
            return
        for iteration in range(max(item.first, self.first), min(item.last, self.last) + 1):
            self._cell(item.id, iteration).body = KINDS.get(item.kind) or _prefill(item)

    def _cell(self, id: str, iteration: int) -> Cell:
        return self.cells.setdefault(id, {}).setdefault(iteration, Cell())


def _prefill(span: Span) -> str:
    return f"+{span.tokens}({span.cached})" if span.cached else f"+{span.tokens}"


def print_timeline(out: Console, timeline: Timeline, ids: Sequence[str], iterations: range) -> None:
    """The rows of these requests over these iterations. Where they do not fit side by side, several bands of them.

    A band leaves out requests that have nothing in it, unless they have nothing in any.
    """
    if not ids or not iterations:
        return
    names = _names(out, ids)
    wide = max(map(cell_len, ("iteration", *names.values())))
    rows = {id: {number: str(cell) for number, cell in timeline.cells.get(id, {}).items()} for id in ids}
    columns = {number: len(str(number)) for number in iterations}
    for row in rows.values():
        for number, text in row.items():
            if number in columns:
                columns[number] = max(columns[number], len(text))
    bands = list(_bands(columns, out.width - wide))
    for band in bands:
        _print_line(out, Text(set_cell_size("iteration", wide), "bold"), {n: str(n) for n in band}, columns, band)
        for id, row in rows.items():
            if len(bands) == 1 or not row or any(row.get(number) for number in band):
                _print_line(out, Text(set_cell_size(names[id], wide)), row, columns, band)
        if band is not bands[-1]:
            out.print()
    used = {letter for row in rows.values() for text in row.values() for letter in text}
    legend = ", ".join(text for letter, text in LEGEND.items() if letter in used)
    if any(_for_nobody(row) for row in rows.values()):
        legend += "; what follows it was computed for nobody"
    if legend:
        out.print(Text(legend, "dim"), soft_wrap=not out.is_terminal)


def _for_nobody(row: dict[int, str]) -> bool:
    """Whether a step that was planned before the request's last token came out computed for it."""
    ended = min((number for number, text in row.items() if AFTER["completed"] in text), default=None)
    return ended is not None and max(row) > ended


def _names(out: Console, ids: Sequence[str]) -> dict[str, str]:
    """The requests' names as the terminal can show them, none too long and no two alike."""
    most = max(8, min(LONGEST_NAME, out.width // 3))
    shown = [one_line(id).encode(out.encoding, "backslashreplace").decode(out.encoding) for id in ids]
    return dict(zip(ids, labels(shown, most, cell_len), strict=True))


def _bands(columns: dict[int, int], room: int) -> Iterator[list[int]]:
    """Columns that fit beside each other, each with a gap before it; at least one."""
    band: list[int] = []
    left = room
    for number, width in columns.items():
        if band and width + 1 > left:
            yield band
            band, left = [], room
        band.append(number)
        left -= width + 1
    yield band


def _print_line(out: Console, name: Text, row: dict[int, str], columns: dict[int, int], band: list[int]) -> None:
    line = name
    for number in band:
        text = row.get(number, "")
        style = "bold" if text.isdecimal() else STYLES.get(text[:1], "")
        line.append(" ").append(text.ljust(columns[number]), style)
    line.rstrip()
    out.print(line, no_wrap=True, overflow="ignore", crop=False)
