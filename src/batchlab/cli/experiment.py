"""batchlab experiment."""

import json
from dataclasses import asdict

import click
from rich.table import Table

from batchlab.cli.compare import parse_values
from batchlab.cli.large import milliseconds
from batchlab.cli.progress import counted_bar
from batchlab.cli.run import parse_setting
from batchlab.cli.tables import console, plain_table, say
from batchlab.compare import said
from batchlab.errors import InputError
from batchlab.plan import experiment as comparing
from batchlab.plan.experiment import Measured
from batchlab.plan.pool import cores, each
from batchlab.plan.trial import Trial

COLUMNS = {
    "short TTFT p50": ("ttft short", "p50"),
    "p99": ("ttft short", "p99"),
    "long TTFT p50": ("ttft long", "p50"),
    "p99 ": ("ttft long", "p99"),
    "ITL p50": ("itl", "p50"),
    "p99  ": ("itl", "p99"),
    "queue p99": ("queue_time", "p99"),
}
"""Headings, with the metric and its statistic below them."""
RATES = ("requests", "output tokens", "KV use", "preempt")


@click.command()
@click.argument("scenario", type=click.Path())
@click.option(
    "--vary",
    default="engine.max_num_batched_tokens=1024,2048",
    show_default=True,
    metavar="KEY=FIRST,SECOND",
    help="The one thing that changes.",
)
@click.option("--short", type=click.IntRange(1), default=512, show_default=True, help="Longest prompt that is short.")
@click.option("--warm-up", type=float, default=0.1, show_default=True, help="Share of the load's time not measured.")
@click.option("--slo", metavar="OBJECTIVES", help="What to meet: 'ttft:p99<=500ms,itl:p99<=50ms'")
@click.option("--set", "settings", multiple=True, metavar="KEY=VALUE", help="A setting that all runs have.")
@click.option("--workload", type=click.Path(), metavar="FILE", help="Workload file instead of the scenario's.")
@click.option("--jobs", type=click.IntRange(1), metavar="N", help="Processes to run in.  [default: all cores]")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document instead of a table.")
def experiment(
    scenario: str,
    vary: str,
    short: int,
    warm_up: float,
    slo: str | None,
    settings: tuple[str, ...],
    workload: str | None,
    jobs: int | None,
    as_json: bool,
) -> None:
    """Change one setting of a SCENARIO and nothing else: short, long and mixed prompts apart, and what it means.

    The load is a file or generated. Its short prompts alone, its long ones alone, and all of them run at both values,
    each request at its own time.
    """
    if not 0 <= warm_up < 1:
        raise InputError("--warm-up", None, warm_up, "must be a share from 0 to below 1")
    varied = parse_values([vary.partition("=")], "--vary")
    trial = Trial(scenario, dict(parse_setting(setting) for setting in settings), workload, slo)
    todo = comparing.parts(trial, varied, short, warm_up)
    found = {}
    with counted_bar("experiment") as done:
        for number, measured in each(_measure, list(enumerate(todo)), jobs or cores()):
            found[number[0]] = measured
            done(len(found), len(todo))
    rows = [found[number] for number in range(len(todo))]
    key = next(iter(varied))
    readings = {one.load: comparing.read(one, other, key) for one, other in zip(rows[::2], rows[1::2], strict=True)}
    if as_json:
        document = {"varied": key, "short": short, "warm_up": warm_up, "slo": slo}
        print(json.dumps({**document, "runs": [asdict(row) for row in rows], "reading": readings}, indent=1))
        return
    out = console()
    out.print(_table(rows, key, slo))
    times, rates = ("ms", "s") if rows[0].unit == "ns" else (f"{rows[0].unit}s", rows[0].unit)
    say(out, f"times in {times}, rates per {rates}; short: prompts up to {short:,} tokens")
    say(out, f"requests of the first {100 * warm_up:g} % of the time are served and not measured")
    for load, lines in readings.items():
        for line in lines:
            say(out, f"{load}: {line}")


def _measure(numbered: tuple[int, comparing.Part]) -> Measured:
    return comparing.measure(numbered[1])


def _table(rows: list[Measured], key: str, slo: str | None) -> Table:
    name = key.rpartition(".")[2]
    met = [] if slo is None else ["met"]
    shown = plain_table("prompts", name, *COLUMNS, *RATES, *met, numeric=(name, *COLUMNS, *RATES))
    for row in rows:
        times = [_time(row.latency[metric][statistic], row.unit) for metric, statistic in COLUMNS.values()]
        shown.add_row(
            row.load,
            said(key, row.value),
            *times,
            f"{row.request_rate:,.2f}",
            f"{row.output_token_rate:,.1f}",
            "-" if row.kv_use is None else f"{100 * row.kv_use:.0f} %",
            f"{row.preemptions:,}",
            *([] if slo is None else ["yes" if row.met else "no"]),
        )
    return shown


def _time(value: float | None, unit: str) -> str:
    if value is None:
        return "-"
    return milliseconds(value) if unit == "ns" else f"{value:,.2f}"
