"""Tables for people."""

import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.text import Text

from batchlab import policies
from batchlab.cli.columns import print_fitted
from batchlab.cli.names import shown_id
from batchlab.cli.timeline import Timeline, print_timeline
from batchlab.errors import one_line
from batchlab.events import Header, Iteration
from batchlab.metrics.fold import Summary
from batchlab.metrics.result import RequestResult
from batchlab.policies import limits_of
from batchlab.simulation import Run
from batchlab.steps import Step
from batchlab.units import NS_IN_MS, counted, duration

PRICE = ("recomputed_tokens", "cached_tokens", "moved_blocks", "retries")
"""Totals that are told where they are not 0."""
MOST_ROWS = 200
"""Rows printed of a table; the files hold all."""
ENDINGS = {
    "all_terminal": "every request ended",
    "iteration_limit": "stopped by max_iterations",
    "cut": "the trace breaks off",
    "recorded": "the recording ends",
}
"""What a run's termination means."""
PIPE_WIDTH = 160
KV_SETTINGS = ("block_size", "num_gpu_blocks", "enable_prefix_caching")


class Stdout(Console):
    """That a reader who is gone ends every command alike is the matter of `main`: rich alone would exit with 1."""

    def on_broken_pipe(self) -> None:
        """Raises the BrokenPipeError that it is called for."""
        raise


def console() -> Console:
    """Writes to stdout as it is now; where that is no terminal, wide enough that nothing is cut."""
    # rich alone would take a dumb terminal (TERM=dumb) for 80 columns wide
    width, height = shutil.get_terminal_size() if sys.stdout.isatty() else (PIPE_WIDTH, None)
    return Stdout(file=sys.stdout, width=width, height=height, highlight=False, soft_wrap=False)


def print_run(result: Summary, timeline: Timeline, settings: str, title: str = "") -> None:
    """The schedule, the timeline, the requests and the totals of one run. settings: the line that states them."""
    out = console()
    header, end = result.header, result.end
    assert header is not None and end is not None
    unit = header.clock["unit"]
    out.print(f"[bold]{escape(one_line(title or header.engine))}[/bold]")
    say(out, settings)
    if timeline.steps:
        print_schedule(out, timeline, [r.request.id for r in result.results[:MOST_ROWS]], unit)
        _say_rest(out, end.iterations, "iterations")
    if result.results:
        _print_requests(out, result, unit)
        _say_rest(out, len(result.results), "requests")
    for line in totals_lines(result):
        say(out, line)
    out.print()


def print_schedule(out: Console, timeline: Timeline, ids: Sequence[str], unit: str, counted: bool = False) -> None:
    """The timeline's iterations, then the same by request. counted: of queue and active only how many they are."""
    steps = timeline.steps
    _print_iterations(out, steps, unit, counted)
    if steps and ids:
        out.print()
        print_timeline(out, timeline, ids, range(steps[0].line.iteration, steps[-1].line.iteration + 1))
        out.print()


def say(out: Console, line: str) -> None:
    """A line of prose: a terminal wraps it between words, a pipe gets it whole."""
    out.print(escape(one_line(line)), soft_wrap=not out.is_terminal)


def settings_line(run: Run) -> str:
    """The policy and the settings that it and the core have."""
    rules = getattr(run.policy, "rules", "custom")
    return _settings_line(run.engine, rules, vars(run.limits), run.settings, limits_of(type(run.policy)))


def settings_line_of(header: Header) -> str:
    """The same from what a trace says; the core's own names of the limits where the policy is none of ours."""
    known = header.engine in policies.names()
    taken = limits_of(policies.find(header.engine)) if known else {name: name for name in header.limits}
    return _settings_line(header.engine, header.rules, header.limits, header.settings, taken)


def _settings_line(
    engine: str, rules: str, limits: Mapping[str, Any], settings: Mapping[str, Any], taken: Mapping[str, str]
) -> str:
    """taken: the limits that the policy has, by its own names for them."""
    shown = {own: limits.get(core) for own, core in taken.items()}
    if limits.get("num_gpu_blocks") is None:
        shown = {own: value for own, value in shown.items() if taken[own] not in KV_SETTINGS}
    shown = {key: value for key, value in {**shown, **settings}.items() if value is not None}
    for own, core in taken.items():
        if core == "num_gpu_blocks" and own in shown:
            shown[own] = f"{shown[own]} usable"
    pairs = ", ".join(
        f"{key} = {str(value).lower() if isinstance(value, bool) else value}" for key, value in shown.items()
    )
    return one_line(f"policy {engine} ({rules}): {pairs}")


def _print_iterations(out: Console, steps: list[Step], unit: str, counted: bool) -> None:
    """A row an iteration: what it planned, when that ran, and whose tokens it brought.

    Columns that only some runs need are there only if they hold something.
    """
    columns: dict[str, Callable[[Step], Any]] = {"iteration": lambda step: str(step.line.iteration)}
    if unit != "iteration":
        mark, shown = (" (ms)", milliseconds) if unit == "ns" else ("", _number)
        columns |= {
            f"start{mark}": lambda step: shown(step.start),
            f"end{mark}": lambda step: shown(step.end if step.out is not None or not step.line.scheduled else None),
        }
    columns |= {
        "arrived": lambda step: _ids(step.line.arrived),
        "scheduled": lambda step: _scheduled(step.line),
        "first token": lambda step: _ids([] if step.out is None else step.out.first_token),
        "preempted": lambda step: _ids([preemption.id for preemption in step.line.preempted]),
        "rejected": lambda step: _ids([rejection.id for rejection in step.line.rejected]),
    }
    if any(step.line.dropped for step in steps):
        columns["dropped"] = lambda step: _ids([drop.id for drop in step.line.dropped])
    columns |= {
        "completed": lambda step: _ids([] if step.out is None else step.out.completed),
        "queue": lambda step: _ids(step.line.queue, counted),
        "active": lambda step: _ids(step.line.active, counted),
        "unused": lambda step: "" if step.line.unused is None else f"{step.line.unused:,}",
    }
    if any(step.line.kv for step in steps):
        columns["free KV"] = lambda step: "" if step.line.kv is None else f"{step.line.kv['free_after']:,}"
    cells = {name: [cell(step) for step in steps] for name, cell in columns.items()}
    counts = ("queue", "active") if counted else ()
    print_fitted(out, cells, ("iteration", "start", "end", "start (ms)", "end (ms)", "unused", "free KV", *counts))


def _scheduled(it: Iteration) -> Text:
    """Decodes in green as the bare id, prefill as id+tokens in blue, with what it found cached: id+tokens(cached)."""
    text = Text()
    cached = {id: tokens for id, tokens in it.cached if tokens}
    for id, phase, tokens in it.scheduled:
        if text:
            text.append(" ")
        if phase == "decode":
            text.append(shown_id(id), style="green")
        else:
            found = f"({cached[id]})" if id in cached else ""
            text.append(f"{shown_id(id)}+{tokens}{found}", style="blue")
    return text if it.scheduled else Text(it.idle or "", style="dim")


def _ids(ids: list[str] | int, numbers: bool = False) -> Text:
    if numbers:
        return Text(f"{ids if isinstance(ids, int) else len(ids):,}")
    return Text(counted(ids, "request") if isinstance(ids, int) else " ".join(map(shown_id, ids)))


def _print_requests(out: Console, result: Summary, unit: str) -> None:
    """A row a request; times in ms where the clock counts ns, every token's time where it counts cost units."""
    shown, mark = (milliseconds, " (ms)") if unit == "ns" else (_number, "")
    results = result.results[:MOST_ROWS]
    times: dict[str, Callable[[RequestResult], int | None]] = {
        f"TTFT{mark}": lambda r: r.since_arrival(r.first_time),
        f"E2E{mark}": lambda r: r.since_arrival(r.completed_time),
        f"max ITL{mark}": lambda r: r.max_itl,
    }
    if unit == "iteration":
        times = {"first output": lambda r: r.first_iteration, "completed": lambda r: r.completed_iteration}
    columns: dict[str, list[Any]] = {
        "request": [Text(shown_id(r.request.id)) for r in results],
        f"arrival{mark}": [shown(r.request.arrival) for r in results],
        "priority": [str(r.request.priority) for r in results],
        "prompt": [f"{r.request.prompt:,}" for r in results],
        "output": [f"{r.request.output:,}" for r in results],
        "result": [Text(_result(r)) for r in results],
        **{name: [shown(time(r)) for r in results] for name, time in times.items()},
        "preemptions": [_number(r.preemptions) for r in results],
    }
    if unit == "cost unit" and any(r.output_times for r in results):
        columns["output times"] = [" ".join(map(str, r.output_times or ())) for r in results]
    print_fitted(out, columns, tuple(name for name in columns if name not in ("request", "result", "output times")))


def milliseconds(ns: float | None) -> str:
    """A time in ns as ms, to the microsecond."""
    return "-" if ns is None else f"{ns / NS_IN_MS:,.3f}"


def _result(r: RequestResult) -> str:
    return r.result if r.reason is None else f"{r.result}: {one_line(r.reason)}"


def _number(value: Any) -> str:
    return "-" if value is None else f"{value:,}"


def totals_lines(result: Summary) -> list[str]:
    """How the run ended, and what it adds up to."""
    header, end = result.header, result.end
    assert header is not None and end is not None
    unit = header.clock["unit"]
    totals = result.totals()
    reasons = ", ".join(f"{number:,} {reason}" for reason, number in totals["rejections"].items())
    counts = ", ".join(f"{number:,} {name}" for name, number in result.result_counts().items())
    lines = [
        f"{ENDINGS.get(end.termination, end.termination)} after {counted(end.iterations, 'iteration')}, at "
        f"{duration(end.time, unit)}: {counts or 'no requests'}",
        f"longest queue {totals['max_queue_length']:,}, preemptions {totals['preemptions']:,}, "
        f"rejections {sum(totals['rejections'].values()):,}{f' ({reasons})' if reasons else ''}, "
        f"unused budget {_number(totals['unused_budget'])}, {_stalls(totals)}",
    ]
    price = {name: totals[name] for name in PRICE} | {"padding_tokens": result.tally.padding_tokens}
    if any(price.values()):
        lines.append(", ".join(f"{name.replace('_', ' ')} {number:,}" for name, number in price.items() if number))
    if header.batching == "request":
        lines.append(slots_line(result.slots()))
    if header.requests is not None and header.max_tokens_rule != "given":
        lines.append("max_tokens is each request's true output length where none is given: an oracle, no engine has it")
    if unit == "cost unit":
        lines.append(
            "Times are cost units, not milliseconds. Where ends are equal, that follows from adding the same costs up "
            "in another order; it proves nothing about throughput."
        )
    return [one_line(line) for line in lines]


def _stalls(totals: dict[str, Any]) -> str:
    active, preempted = totals["decode_stalls"], totals["preempted_decode_stalls"]
    if active is None:
        return "decode stalls not counted, since several steps are in flight"
    return f"decode stalls {active:,} active and {preempted:,} preempted"


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
