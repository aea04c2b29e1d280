"""batchlab run."""

import contextlib
import json
import os
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import click

from batchlab.cli.answers import SeveralWords, print_answers
from batchlab.cli.documents import print_json
from batchlab.cli.notes import note
from batchlab.cli.progress import progress
from batchlab.cli.scenario_options import Changes, scenario_options
from batchlab.cli.tables import MOST_ROWS, print_run, settings_line
from batchlab.cli.timeline import Timeline
from batchlab.errors import InputError
from batchlab.events import Event, Iteration
from batchlab.export.strip import Strip
from batchlab.files import flush, whole_bytes, whole_file
from batchlab.metrics.answers import Question, answers, goals_of, missed, question
from batchlab.metrics.fold import Summary
from batchlab.scenario import Scenario, load
from batchlab.settings import MOST_TOKENS
from batchlab.simulation import Run, simulate
from batchlab.trace.encode import encode
from batchlab.trace.write import TraceWriter


@click.command(cls=SeveralWords)
@click.argument("scenario", type=click.Path())
@scenario_options()
@click.option("--token-budget", type=int, metavar="N", help="Short for --set engine.max_num_batched_tokens=N.")
@click.option("--chunk-size", type=int, metavar="N", help="Short for --set engine.prefill_chunk=N.")
@click.option(
    "--json",
    "as_json",
    is_flag=True,
    help="Print one JSON document instead of tables; of a workload file's requests it holds the figures only.",
)
@click.option("--trace", type=click.Path(), metavar="FILE", help="Write the iteration trace (JSON Lines).")
@click.option("--summary", type=click.Path(), metavar="FILE", help="Write the per-request summary (JSON).")
@click.option(
    "--requests",
    type=click.Path(),
    metavar="FILE",
    help="Write a table with one row for each request: FILE.parquet, FILE.arrow or FILE.csv.",
)
@click.option("--slo", metavar="OBJECTIVES", help="What must hold: 'ttft:p99<=500ms,itl:p99<=50ms'.")
@click.option(
    "--goodput",
    multiple=True,
    metavar="METRIC:MS ...",
    help="Count requests that meet all of these, as vLLM does: ttft:500 tpot:50.  [default: those of the classes]",
)
@click.option("--window", metavar="FROM..TO", help="Measure requests that arrive then; `steady` finds the time itself.")
@click.option(
    "--chunk-tokens",
    type=click.IntRange(1, MOST_TOKENS),
    metavar="N",
    help="ICL, TTFT and TPOT as a client sees them whose stream brings N tokens at a time.",
)
@click.option("--by", type=click.Choice(["group"]), help="Measure each group of requests by itself too.")
def run(
    scenario: str,
    changes: Changes,
    token_budget: int | None,
    chunk_size: int | None,
    as_json: bool,
    trace: str | None,
    summary: str | None,
    requests: str | None,
    slo: str | None,
    goodput: tuple[str, ...],
    window: str | None,
    chunk_tokens: int | None,
    by: str | None,
) -> None:
    """Run a SCENARIO file and print every iteration and every request; for a workload file, latencies instead.

    Exits with 1 if a run stopped at its iteration limit or stalled, or an objective of --slo is missed; requests that
    were rejected or failed have their result all the same. A scenario with several policies runs them one after the
    other; --trace, --summary and --requests then write one file each, with the policy's name before the suffix.
    """
    shorts = {"engine.max_num_batched_tokens": token_budget, "engine.prefill_chunk": chunk_size}
    loaded = load(scenario, changes.overrides(scenario, shorts), changes.names, changes.workload)
    if requests is not None:
        from batchlab.metrics.table import ending_of  # pyarrow takes time to import

        ending_of(requests)
    _refuse_overwriting(loaded, trace, summary, requests)
    for policy, keys in loaded.ignored.items():
        note(f"{policy} does not take these settings of the file, ignored: {', '.join(keys)}")
    asked = [
        question(one.cost.unit, slo, goodput, window, by == "group", chunk_tokens, goals_of(one.requests))
        for one in loaded.runs
    ]
    documents = []
    told: set[str] = set()  # of several policies only once
    for one, what in zip(loaded.runs, asked, strict=True):
        seen = _run_one(one, loaded, what, trace, summary, requests)
        documents.append(seen.result.document(with_requests=one.inline))
        if what:  # before anything is printed: it may be refused
            documents[-1]["answers"] = answers(seen.result, what)
        if as_json and one.inline:
            documents[-1]["schedule"] = [encode(iteration) for iteration in seen.iterations]
        elif not as_json:
            _print(one, seen, loaded.title)
            print_answers(documents[-1].get("answers"), one.cost.unit)
        for remark in one.remarks():
            if remark not in told:
                note(remark)
            told.add(remark)
    if not all(one.inline for one in loaded.runs):
        from batchlab.cli.large import note_unshared

        note_unshared(loaded.runs)
    if as_json:
        print_json({"scenario": loaded.name, "runs": documents})
    if any(d["termination"] != "all_terminal" or missed(d.get("answers", {})) for d in documents):
        sys.exit(1)


@dataclass
class _Seen:
    """What was seen of a run: all of it where its workload is written out, else its iterations if they were told."""

    result: Summary
    iterations: list[Iteration] = field(default_factory=list)
    timeline: Timeline = field(default_factory=lambda: Timeline(last=MOST_ROWS - 1))
    strip: Strip | None = None

    def record(self, event: Event) -> None:
        """Keep every iteration."""
        if isinstance(event, Iteration):
            self.iterations.append(event)


def _run_one(
    run: Run,
    scenario: Scenario,
    asked: Question,
    trace: str | None,
    summary_file: str | None,
    requests_file: str | None,
) -> _Seen:
    """Simulate once, writing what is asked for as it goes. Iterations are kept only where the workload is inline."""
    result = Summary(each_gap=asked.each_gap, keep_times=asked.chunk is not None)
    seen = _Seen(result)
    with contextlib.ExitStack() as stack:
        observers: list[Any] = [result]
        if run.inline:
            observers += [seen.record, seen.timeline]
        else:
            observers += stack.enter_context(progress(run))
        if trace is not None and not run.inline:  # then iterations are told, so they can be counted too
            seen.strip = Strip()
            observers.append(seen.strip)
        if trace is not None:
            file = stack.enter_context(whole_file(_path_for(trace, run, scenario)))
            observers.append(TraceWriter(file, result))
        if summary_file is not None:  # opened before the run: what cannot be written must not cost it
            summary_out = stack.enter_context(whole_file(_path_for(summary_file, run, scenario)))
        if requests_file is not None:
            requests_out = stack.enter_context(whole_bytes(_path_for(requests_file, run, scenario)))
        simulate(run, observers)
        if summary_file is not None:
            json.dump(result.document(), summary_out, indent=1, ensure_ascii=False)
            summary_out.write("\n")
            flush(summary_out, summary_file)
        if requests_file is not None:
            result.write_table(requests_out, requests_file)
            flush(requests_out, requests_file)
        if trace is not None:
            flush(file, trace)
    return seen


def _print(run: Run, seen: _Seen, title: str) -> None:
    if run.inline:
        print_run(seen.result, seen.timeline, settings_line(run), title)
    else:
        from batchlab.cli.large import (  # numpy takes time to import
            print_large_run,
            step_times,
            unsent_lines,
            workload_lines,
        )

        told = [step_times(run.cost)] if run.cost.unit == "ns" else []
        workload = [*told, *workload_lines(run), *unsent_lines(run, seen.result)]
        print_large_run(seen.result, settings_line(run), workload, title, seen.strip)


def _refuse_overwriting(scenario: Scenario, *outputs: str | None) -> None:
    """No output may overwrite an input or another output. Raises InputError."""
    taken = {os.path.realpath(scenario.path): "the scenario itself"}
    for run in scenario.runs:
        origin = getattr(run.requests, "origin", None)
        if origin is not None and origin.file is not None:
            taken[os.path.realpath(origin.file)] = "its workload file"
        for file in getattr(run.cost, "inputs", ()):
            taken[os.path.realpath(file)] = "a file of its cost model"
        if ":" in run.engine or run.engine.endswith(".py"):
            taken[os.path.realpath(run.engine.rpartition(":")[0] or run.engine)] = "the policy's file"
    for path in [_path_for(output, run, scenario) for output in outputs if output for run in scenario.runs]:
        real = os.path.realpath(path)
        if real in taken and not str(path).startswith("/dev/"):
            raise InputError(path, None, None, f"would overwrite {taken[real]}")
        taken[real] = "another output"


def _path_for(path: str, run: Run, scenario: Scenario) -> Path:
    """The file for one run: named as asked, or with the policy's name in it where there are several."""
    asked = Path(path)
    if len(scenario.runs) == 1:
        return asked
    engine = run.engine.rpartition(":")[2].replace("/", "_")
    return asked.with_name(f"{asked.stem}.{engine}{asked.suffix}")
