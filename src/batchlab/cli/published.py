"""batchlab published."""

import sys
from dataclasses import asdict
from typing import Any

import click
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from batchlab.cli.columns import plain_table
from batchlab.cli.documents import print_json
from batchlab.cli.progress import status
from batchlab.cli.prose import print_words
from batchlab.cli.tables import console, say
from batchlab.published.record import Record
from batchlab.published.records import RECORDS, find
from batchlab.published.reproductions import reproduce as simulated
from batchlab.published.result import Reproduction

CONDITIONS = (
    "system", "model", "precision", "hardware", "baseline", "metric", "denominator", "workload", "source",
)  # fmt: skip
FIT = "FIT"
FITS = f"{FIT}: chosen after seeing the target, so what it gives is a fit and no prediction."


@click.command()
@click.argument("name", required=False)
@click.option(
    "--reproduce", is_flag=True, help="Simulate, and print simulated beside published. Without NAME: all of them."
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document instead of text.")
def published(name: str | None, reproduce: bool, as_json: bool) -> None:
    """List published results of LLM serving, or show the one called NAME with all its conditions.

    Exits with 1 if the result that --reproduce asks for cannot be reproduced; it says why.
    """
    records = list(RECORDS.values()) if name is None else [find(name)]
    found: dict[str, Reproduction] = {}
    if reproduce:
        with status("simulating") as tell:
            for record in records:
                if record.reproduction is not None:
                    tell(record.name)
                    found[record.name] = simulated(record, tell)
    if as_json:
        entries = [_entry(record, found.get(record.name)) for record in records]
        print_json({"published": entries} if name is None else entries[0])
    elif name is None and not reproduce:
        _list(console(), records)
    else:
        for record in records:
            _show(console(), record, found.get(record.name), reproduce)
    if name is not None and reproduce and not found:
        sys.exit(1)


def _list(out: Console, records: list[Record]) -> None:
    columns = {
        "name": [record.name for record in records],
        "published": [escape(record.claim) for record in records],
        "model": [escape(record.model) for record in records],
        "simulated": ["yes" if record.reproduction else "no" for record in records],
    }
    print_words(out, columns)
    out.print()
    say(out, "None of these is a general factor: `batchlab published NAME` has the conditions.")


def _show(out: Console, record: Record, found: Reproduction | None, wanted: bool) -> None:
    out.print(f"[bold]{escape(record.name)}[/bold]")
    say(out, record.claim)
    out.print()
    out.print(_conditions(record))
    if found is not None:
        _show_reproduction(out, found)
    elif record.not_reproduced is not None:
        out.print()
        say(out, f"Not reproduced: {record.not_reproduced}.")
    elif not wanted:
        out.print()
        say(out, f"Simulated by: batchlab published {record.name} --reproduce")
    out.print()


def _conditions(record: Record) -> Table:
    table = plain_table("", "")
    table.show_header = False
    for value in record.values:
        table.add_row("published", escape(f"{value.what}: {value.text}"))
    for condition in CONDITIONS:
        table.add_row(condition, escape(getattr(record, condition)))
    table.add_row("does not show", escape(record.not_shown))
    for supposition in record.supposed:
        table.add_row("supposed", escape(f"by {supposition.who}: {supposition.what}"))
    for note in record.notes:
        table.add_row("note", escape(note))
    return table


def _show_reproduction(out: Console, found: Reproduction) -> None:
    rows = found.compared
    columns = {
        "simulated beside published": [escape(row.what) for row in rows],
        "published": ["-" if row.published is None else f"{row.published:,g}" for row in rows],
        "simulated": [number(row.simulated) for row in rows],
        "unit": [row.unit for row in rows],
        "error": ["-" if row.error is None else f"{100 * row.error:+.1f} %" for row in rows],
    }
    out.print()
    print_words(out, columns, ("published", "simulated", "error"))
    out.print()
    print_words(out, {"assumed": [escape(f"- {line}") for line in found.assumed]})
    constants = found.constants
    columns = {
        "constant": [escape(constant.name) for constant in constants],
        "value": [escape(constant.value) for constant in constants],
        "origin": [escape(constant.origin) for constant in constants],
        "": [FIT if constant.fit else "" for constant in constants],
    }
    out.print()
    print_words(out, columns)
    if any(constant.fit for constant in found.constants):
        say(out, FITS)
    out.print("\n[bold]sensitivity: simulated values when one thing is changed[/bold]", end="")
    variants = [("as above", tuple(row.simulated for row in rows))]
    variants += [(varied.change, varied.simulated) for varied in found.sensitivity]
    columns = {"changed": [escape(change) for change, _ in variants]}
    columns |= {row.what: [number(values[place]) for _, values in variants] for place, row in enumerate(rows)}
    out.print()
    print_words(out, columns, tuple(columns)[1:], gap=1)
    out.print()
    say(out, f"The simulation does not show: {found.not_shown}.")


def number(value: float) -> str:
    """Three or four digits that matter."""
    digits = 0 if value >= 100 else 1 if value >= 10 else 2 if value >= 1 else 3
    return f"{value:,.{digits}f}"


def _entry(record: Record, found: Reproduction | None) -> dict[str, Any]:
    entry = record.model_dump()
    entry["reproducible"] = entry.pop("reproduction") is not None
    if found is not None:
        entry["reproduction"] = asdict(found)
        for row, written in zip(found.compared, entry["reproduction"]["compared"], strict=True):
            written["error"] = row.error
    return entry
