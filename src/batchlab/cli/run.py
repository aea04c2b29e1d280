"""batchlab run."""

import contextlib
import json
import os
import sys
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import click

from batchlab.cli.answers import SeveralWords, print_answers
from batchlab.cli.documents import print_json
from batchlab.cli.progress import progress
from batchlab.cli.tables import KV_SETTINGS, MOST_ROWS, print_run, settings_line
from batchlab.cli.timeline import Timeline
from batchlab.errors import InputError, one_line, shorten
from batchlab.events import Event, Iteration
from batchlab.export.strip import Strip
from batchlab.files import flush, read_toml, whole_bytes, whole_file
from batchlab.metrics.answers import Question, answers, missed, question
from batchlab.metrics.fold import Summary
from batchlab.policies import limits_of
from batchlab.scenario import Scenario, cost_of, load, override
from batchlab.settings import MOST_TOKENS
from batchlab.settings import parse_setting as parse_setting  # other commands have it from here
from batchlab.simulate import Run, simulate
from batchlab.trace.encode import encode
from batchlab.trace.write import TraceWriter
from batchlab.vllm_command import MEMORY, parse


@click.command(cls=SeveralWords)
@click.argument("scenario", type=click.Path())
@click.option(
    "--policy",
    "--mode",
    "engines",
    multiple=True,
    metavar="NAME",
    help="Policy to run instead of the file's: a name, several with commas, or FILE.py:CLASS.",
)
@click.option("--set", "settings", multiple=True, metavar="KEY=VALUE", help="Any setting: --set engine.prefill_chunk=2")
@click.option("--token-budget", type=int, metavar="N", help="Short for --set engine.max_num_batched_tokens=N.")
@click.option("--chunk-size", type=int, metavar="N", help="Short for --set engine.prefill_chunk=N.")
@click.option("--from-command", metavar="COMMAND", help="Policy vllm with the settings of a `vllm serve ...` command.")
@click.option("--workload", type=click.Path(), metavar="FILE", help="Workload file instead of the scenario's.")
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
    help="Count requests that meet all of these, as vLLM does: ttft:500 tpot:50.",
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
    engines: tuple[str, ...],
    settings: tuple[str, ...],
    token_budget: int | None,
    chunk_size: int | None,
    from_command: str | None,
    workload: str | None,
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
    overrides = _overrides(scenario, settings, from_command, token_budget, chunk_size)
    names = _names(engines) or (["vllm"] if from_command is not None else [])
    loaded = load(scenario, overrides, names, workload)
    if requests is not None:
        from batchlab.metrics.table import ending_of  # pyarrow takes time to import

        ending_of(requests)
    _refuse_overwriting(loaded, trace, summary, requests)
    _notes(loaded, overrides, from_command is not None)
    asked = [
        question(one.cost.unit, slo, goodput, window, by == "group", chunk_tokens, _goals(one)) for one in loaded.runs
    ]
    documents = []
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
        for remark in cost_remarks(one):
            note(remark)
    if as_json:
        print_json({"scenario": loaded.name, "runs": documents})
    if any(d["termination"] != "all_terminal" or missed(d.get("answers", {})) for d in documents):
        sys.exit(1)


def _overrides(
    scenario: str, settings: tuple[str, ...], from_command: str | None, token_budget: int | None, chunk_size: int | None
) -> dict[str, Any]:
    """What the options change in the file; --set and its short forms go before the command's. Raises InputError."""
    overrides = dict(parse_setting(setting) for setting in settings)
    if from_command is not None:
        overrides = _settings_of(from_command, *_memory(scenario, overrides)) | overrides
    if token_budget is not None:
        overrides["engine.max_num_batched_tokens"] = token_budget
    if chunk_size is not None:
        overrides["engine.prefill_chunk"] = chunk_size
    return overrides


def _goals(run: Run) -> Mapping[str | None, str]:
    """Targets that the workload states for its classes."""
    origin = getattr(run.requests, "origin", None)
    return {} if origin is None else origin.goodput


def _names(engines: tuple[str, ...]) -> list[str]:
    """The policies that --policy names. Raises InputError."""
    names = [name for option in engines for name in option.split(",")]
    if "" in names:
        raise InputError("--policy", None, ",".join(engines), "must be a name, or several with commas")
    return names


def _memory(scenario: str, overrides: dict[str, Any]) -> tuple[bool, bool]:
    """Whether the scenario's cost model can tell a number of KV blocks, and whether [engine] says one, or a share.

    What is wrong with it loading it will say.
    """
    try:
        document, _ = read_toml(scenario)
        override(document, {key: value for key, value in overrides.items() if key.partition(".")[0] == "cost"})
        engine = document.get("engine", {})
        said = {key.removeprefix("engine.") for key in overrides} | set(engine if isinstance(engine, dict) else ())
        return hasattr(cost_of(document, Path(scenario).parent), "kv_blocks"), bool(MEMORY & said)
    except InputError:
        return False, False


def _settings_of(command: str, knows_memory: bool, has_blocks: bool) -> dict[str, Any]:
    """The [engine] settings of a command line; flags that say nothing here are named on stderr."""
    found = parse(command, knows_memory, has_blocks)
    if found.cost:
        said = ", ".join(f"{key} ({shorten(value)})" for key, value in found.cost.items())
        note(f"not taken from the command, [cost] says it: {said}")
    if found.unknown:
        note(f"not modelled, ignored: {', '.join(found.unknown)}")
    return {f"engine.{key}": value for key, value in found.settings.items()}


def _notes(scenario: Scenario, given: Collection[str], from_command: bool) -> None:
    """Say on stderr what does not go without saying about the settings."""
    for policy, keys in scenario.ignored.items():
        note(f"{policy} does not take these settings of the file, ignored: {', '.join(keys)}")
    if from_command:
        one = scenario.runs[0]
        own = [name for name in limits_of(type(one.policy)) if f"engine.{name}" not in given]
        if one.limits.num_gpu_blocks is None or "gpu_memory_utilization" in one.settings:
            own = [name for name in own if name not in KV_SETTINGS]
        shown = [f"{name} = {value}" for name in own if (value := getattr(one.limits, name)) is not None]
        note(f"not in the command, from the file or our defaults: {', '.join(shown) or 'nothing'}")
        if one.limits.num_gpu_blocks is None:
            note("KV blocks are not modelled: set engine.num_gpu_blocks to the number that the engine logs at start")


def note(text: str) -> None:
    """A remark on stderr."""
    print(f"batchlab: {one_line(text)}", file=sys.stderr)


def cost_remarks(run: Run) -> list[str]:
    """What the run's cost model has to say after it, such as steps outside the range that it was measured in."""
    remarks = getattr(run.cost, "remarks", None)
    return [] if remarks is None else list(remarks())


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
    result = Summary(each_gap=asked.of_parts, keep_times=asked.chunk is not None)
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
        print_run(seen.result, seen.iterations, seen.timeline, settings_line(run), title)
    else:
        from batchlab.cli.large import print_large_run, unsent_lines, workload_lines  # numpy takes time to import

        workload = [*workload_lines(run), *unsent_lines(run, seen.result)]
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
