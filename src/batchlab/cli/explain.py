"""batchlab explain."""

import dataclasses
import json
import sys
from typing import Any

import click

from batchlab.cli.documents import print_json
from batchlab.cli.explain_tables import print_overview, print_proof, print_request
from batchlab.cli.notes import note_cut
from batchlab.cli.progress import ended_bar, progress
from batchlab.cli.scenario_options import Changes, scenario_options
from batchlab.errors import InputError
from batchlab.events import Header
from batchlab.explain import Explanation
from batchlab.explain import explain as explain_trace
from batchlab.policies import find, limits_given
from batchlab.prove import Proof
from batchlab.prove import prove as prove_wait
from batchlab.scenario import load
from batchlab.settings import parameters
from batchlab.simulation import Run
from batchlab.units import duration

SAME = "the run has to be the trace's, by the --set, --from-command or --workload that it was made with"
"""What to do about a scenario that is not the trace's."""


@click.command()
@click.argument("trace", type=click.Path())
@click.argument("request", required=False)
@click.option(
    "--prove",
    "scenario",
    type=click.Path(),
    metavar="SCENARIO",
    help="Run the trace's SCENARIO again with the limit lifted that REQUEST first waited for.",
)
@scenario_options()
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document instead of tables.")
def explain(trace: str, request: str | None, scenario: str | None, changes: Changes, as_json: bool) -> None:
    """Say where the time of the requests of a TRACE went, and why.

    Without REQUEST: sums by reason over all and over the slowest 1 %, and what trouble the run shows. With it: every
    span of that request's life; the beginning of its id will do, without vLLM's cmpl-. Exits with 1 if --prove was
    asked and the request did not run earlier.

    Policy and engine settings of --prove are the trace's; --set, --from-command and --workload say how else the trace's
    run differed from its SCENARIO.
    """
    if scenario is not None and request is None:
        raise click.UsageError("--prove needs a REQUEST: whose wait is to be proven?")
    if scenario is None:
        changes.refuse("goes with --prove")
    elif changes.policies:
        raise InputError("--policy", None, ",".join(changes.policies), "the trace says which policy ran")
    with ended_bar("reading") as observers:
        watch = observers[0] if observers else None
        found = explain_trace(trace, () if request is None else (request,), watch)
        if request is not None and found.find(request) != request:
            request = found.find(request)
            found = explain_trace(trace, (request,), watch)
    life = None if request is None else found.life(request)
    proof = None if scenario is None or request is None else _prove(found, request, scenario, changes)
    if as_json:
        print_json(_document(trace, found, request, proof))
    elif life is None:
        print_overview(trace, found)
    else:
        print_request(found, life)
        if proof is not None:
            print_proof(proof)
    if not found.complete and found.header.recorded is None:
        note_cut(trace)
    if proof is not None and not proof.proven:
        sys.exit(1)


def _document(trace: str, found: Explanation, request: str | None, proof: Proof | None) -> dict[str, Any]:
    if request is None:
        return {"trace": trace, **found.document()}
    header = found.header
    document = {"trace": trace, "engine": header.engine, "unit": header.clock["unit"], "complete": found.complete}
    document["request"] = found.request(request)
    if proof is not None:
        document["proof"] = {
            "reason": None if proof.wait is None else proof.wait.reason.label,
            "limits": proof.limits,
            "first_scheduled": proof.first_scheduled,
            "trials": [
                {**dataclasses.asdict(trial), "wait": None if trial.wait is None else trial.wait.label}
                for trial in proof.trials
            ],
            "proven": proof.proven,
        }
    return document


def _prove(found: Explanation, request: str, scenario: str, changes: Changes) -> Proof:
    run = _run_of(found.header, scenario, changes)
    with progress(run) as observers:
        proof = prove_wait(run, request, observers)
    first = found.life(request).first_start
    if proof.first_scheduled != first:
        unit = found.header.clock["unit"]
        here, there = ("never" if time is None else duration(time, unit) for time in (proof.first_scheduled, first))
        expected = f"the trace has request {request!r} first scheduled at {there}: {SAME}"
        raise InputError(scenario, "first scheduled", here, expected)
    return proof


def _run_of(header: Header, scenario: str, changes: Changes) -> Run:
    """The scenario's run with the settings that the trace's header has. Raises InputError where it is another one."""
    try:
        policy = find(header.engine)
    except InputError as error:
        error.place = "the trace's engine"
        raise
    given = {name: header.settings[name] for name in parameters(policy) if header.settings.get(name) is not None}
    share = header.settings.get("gpu_memory_utilization")
    if share is not None:  # the blocks follow from it
        given["gpu_memory_utilization"] = share
    limits = {name: None if share is not None and name == "num_gpu_blocks" else v for name, v in header.limits.items()}
    given |= {own: value for own, value in limits_given(policy, limits).items() if value is not None}
    overrides = {f"engine.{name}": value for name, value in given.items()}
    run = load(scenario, changes.overrides(scenario, overrides), [header.engine], changes.workload).runs[0]
    mine = json.loads(json.dumps(dataclasses.asdict(run.header())))
    theirs = dataclasses.asdict(header)
    for name in ("clock", "settings", "limits", "queue", "deadlines", "retry"):
        place, here, there = _difference(name, mine[name], theirs[name])
        if here != there:
            raise InputError(scenario, place, here, f"the trace has {there!r}: {SAME}")
    return run


def _difference(place: str, here: Any, there: Any) -> tuple[str, Any, Any]:
    """Two values that are not the same, as far down as both are tables, and where that is; else the values."""
    if isinstance(here, dict) and isinstance(there, dict):
        for key in here | there:
            if here.get(key) != there.get(key):
                return _difference(f"{place}.{key}", here.get(key), there.get(key))
    return place, here, there
