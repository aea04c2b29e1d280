"""What `run` prints for a workload file: figures instead of every iteration and every request."""

from collections.abc import Collection, Iterable, Sequence
from typing import Any

from rich.console import Console
from rich.markup import escape

from batchlab.cli.columns import print_folded
from batchlab.cli.notes import note
from batchlab.cli.sparks import print_over_time, print_spread
from batchlab.cli.tables import console, say, settings_line, totals_lines
from batchlab.clients.columns import Columns
from batchlab.clients.describe import shared_tokens, starts
from batchlab.clients.request import Request
from batchlab.costs.base import CostModel
from batchlab.errors import one_line
from batchlab.export.strip import Strip
from batchlab.metrics.fold import Summary
from batchlab.simulation import Run
from batchlab.units import NS_IN_MS, NS_IN_S, counted

NAMES = {
    "ttft": "TTFT",
    "tpot": "TPOT",
    "itl": "ITL",
    "e2el": "E2E",
    "ntpot": "NTPOT",
    "queue_time": "queue time",
    "max_itl": "max ITL",
}
FROM_SEND = {"ttft_from_send": "TTFT from send", "e2el_from_send": "E2E from send", "icl": "ICL (chunks)"}
"""What a client adds that counts from the sending, where that is another time."""
FIGURES = ("mean", "p50", "p90", "p95", "p99", "max")


def print_large_run(
    result: Summary, settings: str, workload: Sequence[str], title: str = "", strip: Strip | None = None
) -> None:
    """The workload, the latencies, small charts and the totals of one run.

    settings, workload: the lines that state them. strip: its iterations, if they were told.
    """
    document = result.document(with_requests=False)
    out, unit = console(), document["unit"]
    out.print(f"[bold]{escape(one_line(title or document['engine']))}[/bold]")
    say(out, settings)
    for line in workload:
        say(out, one_line(line))
    out.print()
    print_latencies(out, document["latency"], unit)
    error = document["latency"]["itl"].get("error")
    if error is not None:
        say(out, f"ITL percentiles are from a histogram, each within {100 * error:.2f} %; all else is exact")
    out.print()
    print_spread(out, result, lambda time: duration(round(time), unit))
    print_over_time(out, result, strip, lambda start, end: span(round(start), round(end), unit))
    if "load" in document:
        say(out, _held_back(document["load"], unit))
    say(out, _throughput(document["throughput"]))
    for line in totals_lines(result):
        say(out, line)
    out.print()


def conditions(run: Run) -> list[str]:
    """What runs at several rates have in common: the policy, model and GPU or other step times, and the requests."""
    lines = [settings_line(run), step_times(run.cost)]
    if isinstance(run.requests, Columns) and run.requests.origin is not None:
        lines.append(run.requests.origin.lines()[0])
    return [one_line(line) for line in lines]


def step_times(cost: CostModel, varied: Collection[str] = ()) -> str:
    """Of which GPU and model step times are, or what else they come from. varied: keys that are not the same in all."""
    about = {key: value for key, value in cost.describe().items() if f"cost.{key}" not in varied}
    named = [about["model"]] if "model" in about else []
    if about.get("llm") is None and about.get("gpu") is None:
        named += [f"{key} = {value}" for key, value in about.items() if key != "model" and not isinstance(value, list)]
    else:
        named.append(" on ".join(about[key] for key in ("llm", "gpu") if about.get(key) is not None))
        named += [f"{key} = {about[key]}" for key in ("tensor_parallel", "pipeline_parallel") if about.get(key, 1) > 1]
        stored = {key: about.get(key) for key in ("dtype", "weight_dtype", "kv_dtype")}
        named += [f"{key} = {value}" for key, value in stored.items() if value not in (None, "bf16")]
    return one_line(f"step times: {', '.join(named)}")


def note_unshared(runs: Iterable[Run]) -> None:
    """Say once that a prefix cache can find nothing in the load but what a preempted request left behind."""
    if any(run.limits.enable_prefix_caching and _unshared(run.requests) for run in runs):
        note("prompts share no tokens: prefix caching finds only what preempted requests left behind")


def _unshared(requests: Sequence[Request]) -> bool:
    """Whether no two of many requests have a token in common."""
    if not isinstance(requests, Columns) or requests.identities is not None:
        return False
    shared = shared_tokens(requests)
    return shared is None or not shared["tokens"]


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
    if run.max_concurrency is not None:
        when += f", at most {run.max_concurrency:,} in flight"
    lines = [
        f"{counted(len(columns), 'request')}{when}; prompt mean {columns.prompt.mean():,.1f}, "
        f"output mean {columns.output.mean():,.1f} tokens"
    ]
    if origin is not None:
        said, rule = origin.lines()
        lines = [said, *lines, rule]
    return lines


def unsent_lines(run: Run, result: Summary) -> list[str]:
    """How many turns of sessions were never sent, if any: they are in no figure."""
    unsent = len(run.requests) - sum(result.result_counts().values())
    if not isinstance(run.requests, Columns) or not run.requests.waits or not unsent:
        return []
    return [
        f"{unsent:,} turns were never sent: a turn of their session before them was not answered; no figure has them"
    ]


def source_lines(result: Summary) -> list[str]:
    """The same from what a trace says of its requests."""
    header, arrival = result.header, result.column("arrival")
    assert header is not None
    if not len(arrival):
        return ["no requests"]
    lines = [
        f"{counted(len(arrival), 'request')} over "
        f"{duration(int(arrival.max() - arrival.min()), header.clock['unit'])}; "
        f"prompt mean {result.column('prompt').mean():,.1f}, output mean {result.column('output').mean():,.1f} tokens"
    ]
    return [*(str(part) for part in (header.source.get("name"), *header.source.get("steps", ())) if part), *lines]


def milliseconds(value: float | None) -> str:
    """A time in ns as ms: two decimals, more where it is so small that they would say little."""
    if value is None:
        return "-"
    ms = value / NS_IN_MS
    return f"{ms:,.2f}" if ms >= 0.1 or not ms else f"{ms:,.6f}".rstrip("0")


def print_latencies(out: Console, latency: dict[str, dict[str, Any]], unit: str) -> None:
    """A row for each of the latencies."""
    names = {key: name for key, name in {**NAMES, **FROM_SEND}.items() if key in latency}
    rows = [latency[key] for key in names]
    columns: dict[str, list[Any]] = {
        "ms" if unit == "ns" else f"in {unit}s": list(names.values()),
        "count": [f"{row['count']:,}" for row in rows],
        **{figure: [amount(row[figure], unit) for row in rows] for figure in FIGURES},
    }
    print_folded(out, columns, ("count", *FIGURES))


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


def _held_back(load: dict[str, Any], unit: str) -> str:
    per = "s" if unit == "ns" else unit
    sent, asked = (load[name] for name in ("achieved_rate", "requested_rate"))
    rates = "all at once" if asked is None else f"{asked:,.3f} requests/{per}"
    reached = "at once" if sent is None else f"{sent:,.3f}"
    longest = duration(load["longest_held_back"], unit)
    return (
        f"sent {reached} of {rates} requested: the cap on requests in flight held {load['held_back']:,} back, "
        f"for up to {longest}"
    )


def span(start: int, end: int, unit: str) -> str:
    """From when to when, both in the unit of the end."""
    if unit != "ns":
        return f"{start:,} to {duration(end, unit)}"
    shown = f"{start / NS_IN_S:,.1f}" if end >= 10**10 else f"{start / NS_IN_MS:,.3f}"
    return f"{shown} to {duration(end, unit)}"


def duration(time: int, unit: str) -> str:
    """A time with its unit."""
    if unit != "ns":
        return f"{time:,} {unit}{'' if time == 1 else 's'}"
    if time >= 10**10:
        return f"{time / NS_IN_S:,.1f} s"
    return f"{time / NS_IN_MS:,.3f} ms"
