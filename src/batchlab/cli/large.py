"""What `run` prints for a workload file: figures instead of every iteration and every request."""

from typing import Any

from rich.markup import escape
from rich.table import Table

from batchlab.cli.tables import console, plain_table, say, settings_line, totals_lines
from batchlab.clients.columns import Columns
from batchlab.clients.describe import starts
from batchlab.errors import one_line
from batchlab.metrics.fold import Summary
from batchlab.simulate import Run
from batchlab.units import NS_IN_MS, NS_IN_S

NAMES = {
    "ttft": "TTFT",
    "tpot": "TPOT",
    "itl": "ITL",
    "e2el": "E2E",
    "ntpot": "NTPOT",
    "queue_time": "queue time",
    "max_itl": "max ITL",
}
FIGURES = ("mean", "p50", "p90", "p95", "p99", "max")


def print_large_run(run: Run, result: Summary, title: str = "") -> None:
    """The workload, the latencies and the totals of one run."""
    document = result.document(with_requests=False)
    out = console()
    out.print(f"[bold]{escape(one_line(title or run.engine))}[/bold]")
    say(out, settings_line(run))
    for line in (*workload_lines(run), *unsent_lines(run, document)):
        say(out, one_line(line))
    out.print()
    out.print(latency_table(document["latency"], run.cost.unit))
    error = document["latency"]["itl"].get("error")
    if error is not None:
        say(out, f"ITL percentiles are from a histogram, each within {100 * error:.2f} %; all else is exact")
    out.print()
    say(out, _throughput(document["throughput"]))
    for line in totals_lines(run, result):
        say(out, line)
    out.print()


def workload_lines(run: Run) -> list[str]:
    """Where the requests came from, what was done to them, and what they are like."""
    columns = run.requests
    if not isinstance(columns, Columns):
        return []
    origin = columns.origin
    known = starts(columns)
    when = f" over {duration(int(known.max() - known.min()), run.cost.unit)}"
    if columns.waits:
        later = len(columns) - len(known)
        when = f", {len(known):,}{when} and {later:,} as turns sent after the answer before them"
    if run.clients is not None:
        pause = duration(run.think_time, run.cost.unit)
        when = f" in a closed loop of {run.clients:,} clients, each {pause} after its last"
    lines = [
        f"{len(columns):,} requests{when}; prompt mean {columns.prompt.mean():,.1f}, "
        f"output mean {columns.output.mean():,.1f} tokens"
    ]
    if origin is not None:
        said, rule = origin.lines()
        lines = [said, *lines, rule]
    return lines


def unsent_lines(run: Run, document: dict[str, Any]) -> list[str]:
    """How many turns of sessions were never sent, if any: they are in no figure."""
    unsent = len(run.requests) - sum(document["results"].values())
    if not isinstance(run.requests, Columns) or not run.requests.waits or not unsent:
        return []
    return [
        f"{unsent:,} turns were never sent: a turn of their session before them was not answered; no figure has them"
    ]


def milliseconds(value: float | None) -> str:
    """A time in ns as ms: two decimals, more where it is so small that they would say little."""
    if value is None:
        return "-"
    ms = value / NS_IN_MS
    return f"{ms:,.2f}" if ms >= 0.1 or not ms else f"{ms:,.6f}".rstrip("0")


def latency_table(latency: dict[str, dict[str, Any]], unit: str) -> Table:
    """One line for each latency."""
    in_ms = unit == "ns"
    shown = plain_table("ms" if in_ms else f"in {unit}s", "count", *FIGURES, numeric=("count", *FIGURES))
    for key, name in NAMES.items():
        figures = latency[key]
        cells = (amount(figures[f], unit) for f in FIGURES)
        shown.add_row(name, f"{figures['count']:,}", *cells)
    return shown


def amount(value: float | None, unit: str) -> str:
    """A latency as a number without its unit, which is ms where the clock counts ns."""
    if unit == "ns":
        return milliseconds(value)
    return "-" if value is None else f"{value:,.2f}".removesuffix(".00")


def _throughput(found: dict[str, Any]) -> str:
    if found["span"] is None:
        return "throughput: nothing was completed"
    per = found["per"]
    span = duration(found["span"], "ns" if per == "s" else per)
    return (
        f"throughput {found['request_rate']:,.3f} requests/{per}, "
        f"{found['output_token_rate']:,.1f} output tokens/{per} (prompt tokens not counted), "
        f"over {span} from the first arrival to the last completion"
    )


def duration(time: int, unit: str) -> str:
    """A time with its unit."""
    if unit != "ns":
        return f"{time:,} {unit}{'' if time == 1 else 's'}"
    if time >= 10**10:
        return f"{time / NS_IN_S:,.1f} s"
    return f"{time / NS_IN_MS:,.3f} ms"
