"""batchlab sweep."""

import sys
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.markup import escape

from batchlab.cli.answers import SeveralWords, within
from batchlab.cli.columns import print_folded, print_narrow, table_width
from batchlab.cli.documents import print_json
from batchlab.cli.large import step_times
from batchlab.cli.notes import note
from batchlab.cli.progress import counted_bar
from batchlab.cli.scenario_options import Changes, parse_values, scenario_options
from batchlab.cli.tables import MOST_ROWS, console, percent, say
from batchlab.compare import said
from batchlab.errors import InputError, one_line
from batchlab.plan import sweep as sweeping
from batchlab.plan.columns import Column, columns_of, meanings
from batchlab.plan.pool import cores
from batchlab.plan.trial import REMARKS, Row, Trial, document_of
from batchlab.scenario import cost_of
from batchlab.units import NS_IN_MS, counted

OF_SESSIONS = (
    "a request_rate is of sessions that begin; requests and tokens are those of all turns, over the time to the end of "
    "the last, long after the last session began"
)


@click.command(cls=SeveralWords)
@click.argument("scenario", type=click.Path())
@click.option(
    "--grid",
    multiple=True,
    required=True,
    metavar="KEY=VALUE,...",
    help="Values of a setting: --grid engine.max_num_batched_tokens=512,1024,2048",
)
@scenario_options()
@click.option("--slo", metavar="OBJECTIVES", help="What a run has to meet: --slo 'ttft:p99<=500ms,itl:p99<=50ms'")
@click.option(
    "--goodput",
    multiple=True,
    metavar="METRIC:MS ...",
    help="Count requests that meet all of these: ttft:500 tpot:50.  [default: those of the classes, else --slo]",
)
@click.option("--sample", type=click.IntRange(1), metavar="N", help="Only N of the combinations, drawn at random.")
@click.option("--seed", type=click.IntRange(0), metavar="S", help="The seed of --sample.  [default: 0]")
@click.option("--output", "-o", type=click.Path(), required=True, metavar="FILE", help="Table to write (Parquet).")
@click.option("--jobs", type=click.IntRange(1), metavar="N", help="Processes to run in.  [default: all cores]")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document with all rows instead of a table.")
def sweep(
    scenario: str,
    grid: tuple[str, ...],
    changes: Changes,
    slo: str | None,
    goodput: tuple[str, ...],
    sample: int | None,
    seed: int | None,
    output: str,
    jobs: int | None,
    as_json: bool,
) -> None:
    """Run every combination of settings of a SCENARIO, on all cores, into one table.

    Finished rows are kept beside the output, in FILE.journal: the same command goes on where a killed one was. Exits
    with 1 if a run failed; its row says why.
    """
    if seed is not None and sample is None:
        raise InputError("--seed", None, seed, "needs --sample N: without it all combinations run")
    values = parse_values([one.partition("=") for one in grid], "--grid")
    overrides = changes.fixed(scenario, values, "--grid")
    asked = sweeping.Sweep(scenario, values, overrides, changes.workload, slo, sample, seed or 0, goodput)
    with counted_bar("sweep") as done:
        rows = sweeping.run(asked, Path(output), jobs or cores(), done)
    about = sweeping.about(asked)
    if as_json:
        print_json({**about, "rows": rows})
    else:
        say_step_times(asked.trial({key: some[0] for key, some in values.items()}), values)
        _print(rows, list(values), slo, about)
    failed = sum(row["error"] is not None for row in rows)
    note_remarks(rows)
    note(f"{output}: {counted(len(rows), 'run')}" + (f", {failed:,} failed" if failed else ""))
    if failed:
        sys.exit(1)


def note_remarks(rows: list[Row]) -> None:
    """What cost models had to say of the runs: in how many, and the first of it."""
    told = [row[REMARKS] for row in rows if row.get(REMARKS)]
    if told:
        note(f"in {len(told):,} of {counted(len(rows), 'run')}, as in the first of them: {told[0]}")


def say_step_times(trial: Trial, varied: Collection[str]) -> None:
    """Of which GPU and model milliseconds are; nothing where that is wrong, which each run says."""
    try:
        cost = cost_of(document_of(trial), Path(trial.scenario).parent)
    except InputError:
        return
    if cost.unit == "ns":
        say(console(), step_times(cost, varied))


def _print(rows: list[Row], keys: list[str], slo: str | None, about: Mapping[str, Any]) -> None:
    out = console()
    _print_columns(out, _columns(rows[:MOST_ROWS], keys, slo), len(keys))
    units = {row["unit"] for row in rows if "unit" in row}
    targets = ""
    if len(units) == 1:
        (unit,) = units
        targets = within(about, unit)
        say(out, f"times in {'ms' if unit == 'ns' else f'{unit}s'}, rates per {'s' if unit == 'ns' else unit}")
        if about.get("rate_of") == "sessions":
            say(out, OF_SESSIONS)
    elif units:
        say(
            out,
            f"times in the clock's units, which differ between the runs: {', '.join(sorted(units))}; ns as ms and s",
        )
    if meant := meanings(columns_of(rows), targets):
        say(out, meant)
    for row in [row for row in rows if row["error"] is not None][:MOST_ROWS]:
        settings = ", ".join(f"{key} = {said(key, row[key])}" for key in keys)
        say(out, one_line(f"{settings}: {row['error']}"))
    if len(rows) > MOST_ROWS:
        say(out, f"... and {len(rows) - MOST_ROWS:,} more runs; the file holds all of them")


def _print_columns(out: Console, columns: dict[str, list[str]], keys: int) -> None:
    """On a narrow terminal each run goes by its number, and its settings stand in a table of their own."""
    numeric = tuple(name for name in columns if name != "met")
    rows = len(next(iter(columns.values()), []))
    repeated = keys
    if table_width(columns) > out.width:
        if print_narrow(out, columns, numeric):
            return
        columns = {"run": [str(number + 1) for number in range(rows)], **columns}
        numeric, repeated = ("run", *numeric), 1
    print_folded(out, columns, numeric, repeated)


def _columns(rows: list[Row], keys: list[str], slo: str | None) -> dict[str, list[str]]:
    shown = columns_of(rows)
    names = [key.removeprefix("engine.").removeprefix("workload.generate.") for key in keys]
    headings = {column.heading for column in shown}
    names = names if len(set(names)) == len(names) and not headings & {*names} else keys
    columns: dict[str, list[str]] = {
        name: [escape(one_line(said(key, row[key]))) for row in rows] for name, key in zip(names, keys, strict=True)
    }
    for column in shown:
        columns[column.heading] = [_cell(column, row) for row in rows]
    if slo is not None:
        columns["met"] = ["failed" if row["error"] else "yes" if row["met"] else "no" for row in rows]
    return columns


def _cell(column: Column, row: Row) -> str:
    value = row.get(column.name)
    if value is None:
        return "-"
    if column.kind == "share":
        return percent(value)
    scale = NS_IN_MS if column.kind == "time" and row.get("unit") == "ns" else 1
    return f"{value / scale:,.{column.digits}f}"
