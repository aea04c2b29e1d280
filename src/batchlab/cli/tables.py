"""Tables for people."""

import sys
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from batchlab.errors import one_line
from batchlab.events import Iteration
from batchlab.metrics.fold import RequestResult, Summary
from batchlab.simulate import Run

MOST_ROWS = 200
"""Rows printed of a table; the files hold all."""
PIPE_WIDTH = 160


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
    out.print(escape(_settings_line(run)))
    out.print(_schedule(iterations, run.cost.unit))
    _say_rest(out, len(iterations), "iterations")
    out.print(_requests(result, run.cost.unit))
    _say_rest(out, len(result.results), "requests")
    for line in _totals(run, result):
        out.print(escape(line))
    out.print()


def _settings_line(run: Run) -> str:
    limits = {
        "max_num_seqs": run.limits.max_num_seqs,
        "max_num_batched_tokens": run.limits.max_num_batched_tokens,
        "max_queue": run.limits.max_queue,
    }
    shown = {key: value for key, value in limits.items() if value is not None} | run.settings
    pairs = ", ".join(
        f"{key} = {str(value).lower() if isinstance(value, bool) else value}" for key, value in shown.items()
    )
    return one_line(f"policy {run.engine} ({getattr(run.policy, 'rules', 'custom')}): {pairs}")


def _table(*columns: str, numeric: tuple[str, ...] = ()) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for column in columns:
        table.add_column(column, justify="right" if column in numeric else "left", overflow="fold")
    return table


def _schedule(iterations: list[Iteration], unit: str) -> Table:
    timed = unit != "iteration"
    names = ["iteration", *(["start", "end"] if timed else [])]
    table = _table(
        *names,
        *(
            "arrived",
            "scheduled",
            "first token",
            "preempted",
            "rejected",
            "completed",
            "queue",
            "active",
            "unused",
        ),
        numeric=("iteration", "start", "end", "unused"),
    )
    for it in iterations[:MOST_ROWS]:
        table.add_row(
            str(it.iteration),
            *([f"{it.start:,}", f"{it.end:,}"] if timed else []),
            _ids(it.arrived),
            _scheduled(it),
            _ids(it.first_token),
            _ids([preemption.id for preemption in it.preempted]),
            _ids([id for id, _ in it.rejected]),
            _ids(it.completed),
            _ids(it.queue),
            _ids(it.active),
            "" if it.unused is None else f"{it.unused:,}",
        )
    return table


def _scheduled(it: Iteration) -> Text:
    """Decodes in green as the bare id, prefill as id+tokens in blue: readable without colour too."""
    text = Text()
    for id, phase, tokens in it.scheduled:
        if text:
            text.append(" ")
        if phase == "decode":
            text.append(one_line(id), style="green")
        else:
            text.append(f"{one_line(id)}+{tokens}", style="blue")
    return text if it.scheduled else Text(it.idle or "", style="dim")


def _ids(ids: list[str] | int) -> Text:
    return Text(f"{ids:,} requests" if isinstance(ids, int) else " ".join(map(one_line, ids)))


def _requests(result: Summary, unit: str) -> Table:
    counted = unit == "iteration"
    times = ["first output", "completed"] if counted else ["TTFT", "E2E", "max ITL"]
    with_outputs = not counted and any(r.output_times for r in result.results)
    table = _table(
        *("request", "arrival", "priority", "prompt", "output", "result", *times, "preemptions"),
        *(["output times"] if with_outputs else []),
        numeric=("arrival", "priority", "prompt", "output", *times, "preemptions"),
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
            f"{request.arrival:,}",
            str(request.priority),
            f"{request.prompt:,}",
            f"{request.output:,}",
            Text(_result(r)),
            *(_number(cell) for cell in cells),
            _number(r.preemptions),
            *([" ".join(map(str, r.output_times or ()))] if with_outputs else []),
        )
    return table


def _result(r: RequestResult) -> str:
    return r.result if r.reason is None else f"{r.result}: {one_line(r.reason)}"


def _number(value: Any) -> str:
    return "-" if value is None else f"{value:,}"


def _totals(run: Run, result: Summary) -> list[str]:
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
        f"decode stalls {totals['decode_stalls']:,} active and {totals['preempted_decode_stalls']:,} preempted",
    ]
    if result.header is not None and result.header.max_tokens_rule != "given":
        lines.append("max_tokens is each request's true output length where none is given: an oracle, no engine has it")
    if run.cost.unit == "cost unit":
        lines.append(
            "Times are cost units, not milliseconds. Equal ends follow from adding the same costs up in another order; "
            "they prove nothing about throughput."
        )
    return [one_line(line) for line in lines]


def _say_rest(out: Console, total: int, noun: str) -> None:
    if total > MOST_ROWS:
        out.print(f"... and {total - MOST_ROWS:,} more {noun}; --trace and --summary write all of them")
