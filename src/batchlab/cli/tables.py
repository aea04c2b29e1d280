"""Tables for people."""

import sys
from collections.abc import Callable
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from batchlab.errors import one_line
from batchlab.events import Iteration
from batchlab.metrics.fold import Summary
from batchlab.metrics.result import RequestResult
from batchlab.policies import limits_of
from batchlab.simulate import Run

PRICE = ("recomputed_tokens", "cached_tokens", "moved_blocks", "retries")
"""Totals that are told where they are not 0."""
MOST_ROWS = 200
"""Rows printed of a table; the files hold all."""
PIPE_WIDTH = 160
NS_IN_MS = 10**6
KV_SETTINGS = ("block_size", "num_gpu_blocks", "enable_prefix_caching")


def console() -> Console:
    """Writes to stdout as it is now; where that is no terminal, wide enough that nothing is cut."""
    width = None if sys.stdout.isatty() else PIPE_WIDTH
    return Console(file=sys.stdout, width=width, highlight=False, soft_wrap=False)


def print_run(run: Run, result: Summary, iterations: list[Iteration], title: str = "") -> None:
    """The schedule, the requests and the totals of one run."""
    out = console()
    header = result.header
    end = result.end
    assert header is not None and end is not None
    out.print(f"[bold]{escape(one_line(title or run.engine))}[/bold]")
    say(out, settings_line(run))
    out.print(_schedule(iterations, run.cost.unit))
    _say_rest(out, len(iterations), "iterations")
    out.print(_requests(result, run.cost.unit))
    _say_rest(out, len(result.results), "requests")
    for line in totals_lines(run, result):
        say(out, line)
    out.print()


def say(out: Console, line: str) -> None:
    """A line of prose: a terminal wraps it between words, a pipe gets it whole."""
    out.print(escape(line), soft_wrap=not out.is_terminal)


def settings_line(run: Run) -> str:
    """The policy and the settings that it and the core have."""
    taken = limits_of(type(run.policy))
    limits = {own: getattr(run.limits, core) for own, core in taken.items()}
    blocks = {own for own, core in taken.items() if core in KV_SETTINGS}
    if run.limits.num_gpu_blocks is None:
        limits = {own: value for own, value in limits.items() if own not in blocks}
    shown = {key: value for key, value in (limits | run.settings).items() if value is not None}
    for own, core in taken.items():
        if core == "num_gpu_blocks" and own in shown:
            shown[own] = f"{shown[own]} usable"
    pairs = ", ".join(
        f"{key} = {str(value).lower() if isinstance(value, bool) else value}" for key, value in shown.items()
    )
    return one_line(f"policy {run.engine} ({getattr(run.policy, 'rules', 'custom')}): {pairs}")


def plain_table(*columns: str, numeric: tuple[str, ...] = ()) -> Table:
    """A table without lines; `numeric` columns stand right."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for column in columns:
        longest = max(map(len, column.split()), default=1)  # a heading is never broken inside a word
        table.add_column(column, justify="right" if column in numeric else "left", overflow="fold", min_width=longest)
    return table


def _schedule(iterations: list[Iteration], unit: str) -> Table:
    """A row an iteration. Columns that only some runs need are there only if they hold something."""
    columns: dict[str, Callable[[Iteration], Any]] = {"iteration": lambda it: str(it.iteration)}
    if unit != "iteration":
        mark, shown = (" (ms)", _milliseconds) if unit == "ns" else ("", _number)
        columns |= {f"start{mark}": lambda it: shown(it.start), f"end{mark}": lambda it: shown(it.end)}
    columns |= {
        "arrived": lambda it: _ids(it.arrived),
        "scheduled": _scheduled,
        "first token": lambda it: _ids(it.first_token),
        "preempted": lambda it: _ids([preemption.id for preemption in it.preempted]),
        "rejected": lambda it: _ids([rejection.id for rejection in it.rejected]),
    }
    if any(it.dropped for it in iterations):
        columns["dropped"] = lambda it: _ids([drop.id for drop in it.dropped])
    columns |= {
        "completed": lambda it: _ids(it.completed),
        "queue": lambda it: _ids(it.queue),
        "active": lambda it: _ids(it.active),
        "unused": lambda it: "" if it.unused is None else f"{it.unused:,}",
    }
    if any(it.kv for it in iterations):
        columns["free KV"] = lambda it: "" if it.kv is None else f"{it.kv['free_after']:,}"
    table = plain_table(*columns, numeric=("iteration", "start", "end", "start (ms)", "end (ms)", "unused", "free KV"))
    for it in iterations[:MOST_ROWS]:
        table.add_row(*(cell(it) for cell in columns.values()))
    return table


def _scheduled(it: Iteration) -> Text:
    """Decodes in green as the bare id, prefill as id+tokens in blue, with what it found cached: id+tokens(cached)."""
    text = Text()
    cached = {id: tokens for id, tokens in it.cached if tokens}
    for id, phase, tokens in it.scheduled:
        if text:
            text.append(" ")
        if phase == "decode":
            text.append(one_line(id), style="green")
        else:
            found = f"({cached[id]})" if id in cached else ""
            text.append(f"{one_line(id)}+{tokens}{found}", style="blue")
    return text if it.scheduled else Text(it.idle or "", style="dim")


def _ids(ids: list[str] | int) -> Text:
    return Text(f"{ids:,} requests" if isinstance(ids, int) else " ".join(map(one_line, ids)))


def _requests(result: Summary, unit: str) -> Table:
    """A row a request; times in ms where the clock counts ns, every token's time where it counts cost units."""
    counted = unit == "iteration"
    shown = _milliseconds if unit == "ns" else _number
    mark = " (ms)" if unit == "ns" else ""
    times = ["first output", "completed"] if counted else [f"TTFT{mark}", f"E2E{mark}", f"max ITL{mark}"]
    arrival = f"arrival{mark}"
    with_outputs = unit == "cost unit" and any(r.output_times for r in result.results)
    table = plain_table(
        *("request", arrival, "priority", "prompt", "output", "result", *times, "preemptions"),
        *(["output times"] if with_outputs else []),
        numeric=(arrival, "priority", "prompt", "output", *times, "preemptions"),
    )
    for r in result.results[:MOST_ROWS]:
        request = r.request
        cells = (
            [r.first_iteration, r.completed_iteration]
            if counted
            else [r.since_arrival(r.first_time), r.since_arrival(r.completed_time), r.max_itl]
        )
        table.add_row(
            Text(one_line(request.id)),
            shown(request.arrival),
            str(request.priority),
            f"{request.prompt:,}",
            f"{request.output:,}",
            Text(_result(r)),
            *(shown(cell) for cell in cells),
            _number(r.preemptions),
            *([" ".join(map(str, r.output_times or ()))] if with_outputs else []),
        )
    return table


def _milliseconds(ns: int | None) -> str:
    """A time in ns as ms, to the microsecond."""
    return "-" if ns is None else f"{ns / NS_IN_MS:,.3f}"


def _result(r: RequestResult) -> str:
    return r.result if r.reason is None else f"{r.result}: {one_line(r.reason)}"


def _number(value: Any) -> str:
    return "-" if value is None else f"{value:,}"


def totals_lines(run: Run, result: Summary) -> list[str]:
    """How the run ended, and what it adds up to."""
    end = result.end
    assert end is not None
    totals = result.totals()
    reasons = ", ".join(f"{number:,} {reason}" for reason, number in totals["rejections"].items())
    counts = ", ".join(f"{number:,} {name}" for name, number in result.result_counts().items())
    lines = [
        f"{end.termination} after {end.iterations:,} iterations, at {end.time:,} {run.cost.unit}"
        f"{'s' if run.cost.unit != 'ns' and end.time != 1 else ''}: {counts or 'no requests'}",
        f"longest queue {totals['max_queue_length']:,}, preemptions {totals['preemptions']:,}, "
        f"rejections {sum(totals['rejections'].values()):,}{f' ({reasons})' if reasons else ''}, "
        f"unused budget {_number(totals['unused_budget'])}, "
        f"decode stalls {_number(totals['decode_stalls'])} active and "
        f"{_number(totals['preempted_decode_stalls'])} preempted",
    ]
    price = {name: totals[name] for name in PRICE}
    if any(price.values()):
        lines.append(", ".join(f"{name.replace('_', ' ')} {number:,}" for name, number in price.items() if number))
    if getattr(run.policy, "batching", "iteration") == "request":
        lines.append(slots_line(result.slots()))
    if run.inline and result.header is not None and result.header.max_tokens_rule != "given":
        lines.append("max_tokens is each request's true output length where none is given: an oracle, no engine has it")
    if run.cost.unit == "cost unit":
        lines.append(
            "Times are cost units, not milliseconds. Where ends are equal, that follows from adding the same costs up "
            "in another order; it proves nothing about throughput."
        )
    return [one_line(line) for line in lines]


def slots_line(slots: dict[str, Any]) -> str:
    """How many slots were opened, and for how many output tokens."""
    share = "" if slots["waste"] is None else f" ({percent(slots['waste'])})"
    return f"slots opened {slots['opened']:,}, useful {slots['useful']:,}, wasted {slots['wasted']:,}{share}"


def percent(share: float) -> str:
    """A share of 1 as people read it."""
    return f"{100 * share:.2f} %"


def _say_rest(out: Console, total: int, noun: str) -> None:
    if total > MOST_ROWS:
        out.print(f"... and {total - MOST_ROWS:,} more {noun}; --trace and --summary write all of them")
