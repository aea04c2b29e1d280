"""batchlab tune."""

import sys
from pathlib import Path
from typing import Any

import click
from rich.markup import escape

from batchlab.cli.answers import SeveralWords
from batchlab.cli.columns import print_folded
from batchlab.cli.documents import print_json
from batchlab.cli.large import conditions, note_unshared
from batchlab.cli.notes import note
from batchlab.cli.progress import counted_bar
from batchlab.cli.scenario_options import Changes, parse_values, scenario_options
from batchlab.cli.sweep import OF_SESSIONS, note_remarks
from batchlab.cli.tables import MOST_ROWS, console, percent, say
from batchlab.compare import endings, said
from batchlab.errors import one_line
from batchlab.metrics.objectives import ATTAINMENT
from batchlab.plan import tune as tuning
from batchlab.plan.pool import cores
from batchlab.plan.recommend import most_of, spelled
from batchlab.plan.space import range_of
from batchlab.plan.trial import Row, rate_of, run_of
from batchlab.units import NS_IN_MS, counted

MAXIMIZED = {"capacity": "capacity", "throughput": "output tokens", "goodput": "goodput"}
"""What is maximised -> its heading."""


@click.command(cls=SeveralWords)
@click.argument("scenario", type=click.Path())
@click.option("--slo", required=True, metavar="OBJECTIVES", help="What to meet: 'ttft:p99<=500ms,itl:p99<=50ms'")
@click.option(
    "--space",
    multiple=True,
    metavar="KEY=VALUES",
    help="What may change, instead of what the policy has: engine.max_num_seqs=64,256 or 64..1024, each doubling.",
)
@click.option(
    "--maximize",
    type=click.Choice(list(tuning.MAXIMIZED)),
    default="capacity",
    show_default=True,
    help="The highest rate that meets the objectives, or output tokens or good requests a second at the load as it is.",
)
@click.option("--trials", type=click.IntRange(1, tuning.MOST_TRIALS), default=50, show_default=True, metavar="N")
@click.option("--seed", type=click.IntRange(0, 2**32 - 1), default=0, show_default=True, help="Of the optimiser.")
@click.option(
    "--goodput",
    multiple=True,
    metavar="METRIC:MS ...",
    help="Targets of each request: ttft:500 tpot:50.  [default: those of the classes, else --slo]",
)
@scenario_options()
@click.option("--output", "-o", type=click.Path(), metavar="FILE", help="Table of all runs to write (Parquet).")
@click.option("--jobs", type=click.IntRange(1), metavar="N", help="Processes to run in.  [default: all cores]")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document with all rows instead of a table.")
def tune(
    scenario: str,
    slo: str,
    space: tuple[str, ...],
    maximize: str,
    trials: int,
    seed: int,
    goodput: tuple[str, ...],
    changes: Changes,
    output: str | None,
    jobs: int | None,
    as_json: bool,
) -> None:
    """Look for the settings of a SCENARIO that trade throughput against its objectives best.

    Prints the Pareto front, and recommends settings in the engine's own spelling. With --output, finished runs are
    kept in FILE.journal: the same command goes on where a killed one was. Exits with 1 if nothing meets the objectives.
    """
    values = parse_values([range_of(one).partition("=") for one in space], "--space")
    overrides = changes.fixed(scenario, values, "--space", baseline=True)
    asked = tuning.Tuning(
        scenario, slo, values, overrides, changes.workload, goodput, maximize, trials, seed, changes.command
    )
    with counted_bar("tune") as done:
        found = tuning.run(asked, None if output is None else Path(output), jobs or cores(), done)
    if as_json:
        print_json({**tuning.about(asked, found), "rows": found.rows})
    else:
        _print(asked, found)
    note_remarks(found.rows)
    if output is not None:
        note(f"{output}: {counted(len(found.rows), 'run')}")
    if not found.met:
        sys.exit(1)


def _print(asked: tuning.Tuning, found: tuning.Tuned) -> None:
    out = console()
    first = found.rows[0]
    run = run_of(asked.trial({}))
    for line in conditions(run):
        say(out, line)
    note_unshared([run])
    errors = [row["error"] for row in found.rows if row["error"] is not None]
    said_after = f", then {found.taken_back:,} with a change of the best taken back" if found.taken_back else ""
    say(out, f"{found.tried:,} of {found.size:,} combinations tried{said_after}")
    if errors:
        say(out, f"{len(errors):,} did not run to the end, the first: {errors[0]}")
    out.print()
    front = sorted((row for row in found.rows if row["pareto"]), key=lambda row: -row[asked.axes()[0].column])
    shown = [first, *(row for row in front if row is not first)]
    columns = _columns(asked, found, shown[:MOST_ROWS])
    print_folded(out, columns, tuple(name for name in columns if name not in ("", "met")))
    if len(shown) > MOST_ROWS:
        say(out, f"... and {len(shown) - MOST_ROWS:,} more; --json and --output have all of them")
    out.print()
    per = "s" if first["unit"] == "ns" else first["unit"]
    times = "ms" if first["unit"] == "ns" else f"{first['unit']}s"
    meaning = {
        "capacity": f"capacity: {rate_of(run)}/{per}, the most that meet the objectives; all else at the load as it is",
        "throughput": f"output tokens: each {per}, at the load as it is",
        "goodput": f"goodput: requests/{per} within all targets, at the load as it is",
    }[asked.maximize]
    say(out, f"times in {times}; {meaning}")
    if rate_of(run) == "sessions":
        say(out, OF_SESSIONS)
    say(out, "front: no other combination tried is as good on all of these and better on one")
    _say_recommended(asked, found)


def _say_recommended(asked: tuning.Tuning, found: tuning.Tuned) -> None:
    out = console()
    row, first = found.recommended, found.rows[0]
    if not found.met:
        say(out, f"no combination tried meets {asked.slo} at the load as it is")
    if row is None:
        return
    said_of = "recommended" if found.met else f"most {most_of(tuning.MAXIMIZED[asked.maximize], row)}, though it misses"
    say(out, f"{said_of}: {': '.join(filter(None, ('as it is' if row is first else '', str(spelled(asked, found)))))}")
    heading = MAXIMIZED[asked.maximize]
    column = tuning.MAXIMIZED[asked.maximize]
    before, after = first[column], row[column]
    change = f" ({100 * (after / before - 1):+.0f} %)" if before else ""
    if row is not first:
        say(out, f"{heading} {_rate(before)} as it is, {_rate(after)} so{change}")
    if not found.met:
        shares = ", ".join(f"{percent(one['attainment'])} {name}" for one, name in ((first, "as it is"), (row, "so")))
        say(out, f"requests within all targets at the load as it is: {shares}")
    for caveat in tuning.caveats(asked, found):
        say(out, f"uncertain: {caveat}")


def _columns(asked: tuning.Tuning, found: tuning.Tuned, rows: list[Row]) -> dict[str, list[str]]:
    """What each row is, its settings and its figures."""
    columns = {"": [_mark(found, row) for row in rows]}
    for key, heading in endings(found.space).items():
        cells = ["-" if row[key] is None else escape(one_line(said(key, row[key]))) for row in rows]
        columns[heading] = cells
    heading = MAXIMIZED[asked.maximize]
    columns[heading] = [_rate(row.get(tuning.MAXIMIZED[asked.maximize])) for row in rows]
    for axis in asked.axes()[1:]:
        columns[axis.column.removeprefix("slo.")] = [_figure(axis.column, row) for row in rows]
    columns["met"] = ["yes" if row["met"] else "no" for row in rows]
    return columns


def _mark(found: tuning.Tuned, row: Row) -> str:
    recommended = " *" if row["recommended"] else ""
    names = ["as it is"] if row is found.rows[0] else []
    return ", ".join([*names, "front"] if row["pareto"] else names) + recommended


def _figure(column: str, row: Row) -> str:
    value: Any = row.get(column)
    if value is None:
        return "-"
    if column == f"slo.{ATTAINMENT}":
        return percent(value)
    return f"{value / NS_IN_MS if row['unit'] == 'ns' else value:,.2f}"


def _rate(value: float | None) -> str:
    if not value:
        return "-" if value is None else "none"
    return f"{value:,.1f}" if value >= 1000 else f"{value:,.4g}"
