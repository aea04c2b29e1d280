"""batchlab run."""

import contextlib
import json
import sys
import tomllib
from pathlib import Path
from typing import Any

import click

from batchlab.cli.tables import print_run
from batchlab.errors import InputError
from batchlab.events import Event, Iteration
from batchlab.files import whole_file
from batchlab.metrics.fold import Summary
from batchlab.scenario import Scenario, load
from batchlab.simulate import Run, simulate
from batchlab.trace.encode import encode
from batchlab.trace.write import TraceWriter


@click.command()
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
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document instead of tables.")
@click.option("--trace", type=click.Path(), metavar="FILE", help="Write the iteration trace (JSON Lines).")
@click.option("--summary", type=click.Path(), metavar="FILE", help="Write the per-request summary (JSON).")
def run(
    scenario: str,
    engines: tuple[str, ...],
    settings: tuple[str, ...],
    token_budget: int | None,
    chunk_size: int | None,
    as_json: bool,
    trace: str | None,
    summary: str | None,
) -> None:
    """Run a SCENARIO file and print every iteration and every request.

    Exits with 1 if a run stopped at its iteration limit. A scenario with several policies runs them one after the
    other; --trace and --summary then write one file each, with the policy's name before the suffix.
    """
    overrides = dict(parse_setting(setting) for setting in settings)
    if token_budget is not None:
        overrides["engine.max_num_batched_tokens"] = token_budget
    if chunk_size is not None:
        overrides["engine.prefill_chunk"] = chunk_size
    names = [name for option in engines for name in option.split(",") if name]
    loaded = load(scenario, overrides, names)
    documents = []
    for one in loaded.runs:
        result, iterations = _run_one(one, loaded, trace, summary, keep=True)
        documents.append(result.document())
        if as_json:
            documents[-1]["schedule"] = [encode(iteration) for iteration in iterations]
        else:
            print_run(one, result, iterations, title=loaded.title)
    if as_json:
        print(json.dumps({"scenario": loaded.name, "runs": documents}, indent=1, ensure_ascii=False))
    if any(document["termination"] != "all_terminal" for document in documents):
        sys.exit(1)


def parse_setting(text: str) -> tuple[str, Any]:
    """KEY=VALUE, the value written as in TOML; a bare word is a text. Raises InputError."""
    key, equals, value = text.partition("=")
    key = key.strip()
    if not equals or not key or not value.strip():
        raise InputError("--set", None, text, "must be SECTION.KEY=VALUE, such as engine.prefill_chunk=2")
    try:
        parsed = tomllib.loads(f"value = {value}")
    except tomllib.TOMLDecodeError:
        parsed = {"value": value.strip()}
    if len(parsed) != 1:
        raise InputError("--set", None, text, "must be one SECTION.KEY=VALUE")
    return key, parsed["value"]


def _run_one(
    run: Run, scenario: Scenario, trace: str | None, summary_file: str | None, keep: bool
) -> tuple[Summary, list[Iteration]]:
    """Simulate once, writing what is asked for as it goes."""
    result = Summary()
    iterations: list[Iteration] = []

    def record(event: Event) -> None:
        if isinstance(event, Iteration):
            iterations.append(event)

    with contextlib.ExitStack() as stack:
        observers: list[Any] = [result, record] if keep else [result]
        if trace is not None:
            file = stack.enter_context(whole_file(_path_for(trace, run, scenario)))
            observers.append(TraceWriter(file, result))
        simulate(run, observers)
    if summary_file is not None:
        with whole_file(_path_for(summary_file, run, scenario)) as file:
            json.dump(result.document(), file, indent=1, ensure_ascii=False)
            file.write("\n")
    return result, iterations


def _path_for(path: str, run: Run, scenario: Scenario) -> Path:
    """The file for one run: named as asked, or with the policy's name in it where there are several."""
    asked = Path(path)
    if len(scenario.runs) == 1:
        return asked
    engine = run.engine.rpartition(":")[2].replace("/", "_")
    return asked.with_name(f"{asked.stem}.{engine}{asked.suffix}")
