"""batchlab bench."""

import contextlib
import json
import math
import signal
import sys
from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import click

from batchlab.cli.answers import SeveralWords
from batchlab.cli.bench_options import Number, extra_of, headers_of, interval_of, path_of
from batchlab.cli.documents import print_json
from batchlab.cli.notes import note
from batchlab.cli.progress import counted_bar
from batchlab.cli.scenario_options import scenario_options
from batchlab.errors import InputError
from batchlab.files import flush, whole_bytes, whole_file
from batchlab.units import NS_IN_S

GENERATED = ("num_prompts", "request_rate", "burstiness", "random_input_len", "random_output_len", "random_range_ratio")
"""Options that make a load, and do not go with one that a scenario has."""
MOST_SECONDS = 10**6
AT_ONCE = (
    "a place that becomes free is taken in the very next step; over HTTP that step has begun before the answer is "
    "read, so what waited for it starts up to a step later, and so does what is behind it"
)
Tokens = click.IntRange(1, 2**24)
"""More than any context has, and a prompt that can still be written out."""


@click.command(cls=SeveralWords)
@click.argument("url")
@click.option("--scenario", type=click.Path(), metavar="FILE", help="Send the [workload] of this scenario.")
@scenario_options()
@click.option("--num-prompts", type=click.IntRange(1, 10**7), default=1000, show_default=True, metavar="N")
@click.option(
    "--request-rate", default="inf", show_default=True, metavar="R", help="Requests per second; inf: at once."
)
@click.option(
    "--burstiness", type=float, metavar="B", default=1.0, show_default=True, help="Shape of the gaps; 1: Poisson."
)
@click.option("--random-input-len", type=Tokens, default=1024, show_default=True, metavar="LEN")
@click.option("--random-output-len", type=Tokens, default=128, show_default=True, metavar="LEN")
@click.option(
    "--random-range-ratio",
    type=Number(0, 1, max_open=True),
    metavar="R",
    default=0.0,
    show_default=True,
    help="Lengths lie evenly between LEN*(1-R) and LEN*(1+R).",
)
@click.option("--seed", type=click.IntRange(0, 2**63 - 1), default=0, show_default=True, metavar="N")
@click.option(
    "--max-concurrency", type=click.IntRange(1), metavar="N", help="Hold back what would be more than N in flight."
)
@click.option(
    "--closed-loop", type=click.IntRange(1), metavar="N", help="N clients, each sending after its last answer."
)
@click.option("--think-time", type=Number(0, MOST_SECONDS), metavar="S", help="Of a closed loop's clients.")
@click.option(
    "--num-warmups", type=click.IntRange(0, 10**6), default=0, show_default=True, help="Sent before, uncounted."
)
@click.option(
    "--max-retries",
    type=click.IntRange(0, 1000),
    metavar="N",
    default=0,
    show_default=True,
    help="Attempts after a 429 or 503, each when its Retry-After says, or after 1 s.",
)
@click.option("--ignore-eos", is_flag=True, help="Ask for exactly the output length of each request.")
@click.option("--backend", type=click.Choice(["openai", "openai-chat"]), default="openai", show_default=True)
@click.option("--endpoint", metavar="PATH", help="Instead of the backend's own, such as /v1/completions.")
@click.option("--model", metavar="NAME", help="By default the first that the server names.")
@click.option("--text", is_flag=True, help="Prompts as words, not as token ids; a chat has words always.")
@click.option(
    "--vocab-size",
    type=click.IntRange(11, 2**31),
    metavar="N",
    default=1000,
    show_default=True,
    help="Bound of token ids.",
)
@click.option("--no-token-ids", is_flag=True, help="Do not ask for return_token_ids, for servers that refuse it.")
@click.option("--header", "headers", multiple=True, metavar="KEY=VALUE", help="A header of every request.")
@click.option("--extra-body", metavar="JSON", help="More fields of every request.")
@click.option("--timeout", type=Number(0.001, MOST_SECONDS), default=600.0, show_default=True, help="Seconds.")
@click.option(
    "--scrape-interval",
    type=Number(0, MOST_SECONDS),
    metavar="S",
    default=0.5,
    show_default=True,
    help="Seconds between two looks at /metrics, at least 0.2; 0: none.",
)
@click.option("--slo", metavar="OBJECTIVES", help="What must hold: 'ttft:p99<=500ms,itl:p99<=50ms'.")
@click.option(
    "--goodput", multiple=True, metavar="METRIC:MS ...", help="Count requests that meet all: ttft:500 tpot:50."
)
@click.option("--predict", is_flag=True, help="Simulate the scenario too, and print it beside.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document instead of tables.")
@click.option("--requests", type=click.Path(), metavar="FILE", help="One row a request: .parquet, .arrow or .csv.")
@click.option("--save-detailed", type=click.Path(), metavar="FILE", help="As vllm bench serve writes it (JSON).")
@click.option("--save-run", type=click.Path(), metavar="FOLDER", help="For validate and calibrate; needs --scenario.")
def bench(url: str, **given: Any) -> None:
    """Send requests to the server at URL and measure what comes back.

    Open loop: each request goes out at its own time, whatever the server does, and latencies count from that time. The
    options are those of `vllm bench serve`; or the load is that of a scenario. Exits with 1 if nothing was completed,
    or an objective of --slo is missed. Ctrl-C prints the figures of what has ended, and exits with 130.
    """
    try:
        import aiohttp  # noqa: F401
    except ImportError:
        raise InputError(
            "bench",
            None,
            None,
            "needs aiohttp: pip install 'batchlab[bench]', or in a checkout .venv/bin/pip install -e '.[bench]'",
        ) from None
    from batchlab.bench import interruptible, outputs
    from batchlab.bench.figures import document
    from batchlab.bench.run import bench as measure
    from batchlab.metrics.answers import goals_of, missed, question

    run, requests = _load(given)
    asked = question("ns", given["slo"], given["goodput"], None, targets_of=goals_of(requests))
    plan, where = _plan(given, run), _where(url, given)
    _check_outputs(given)
    with contextlib.ExitStack() as files:  # opened before: what cannot be written must not cost the run
        table = files.enter_context(whole_bytes(given["requests"])) if given["requests"] else None
        detailed = files.enter_context(whole_file(given["save_detailed"])) if given["save_detailed"] else None
        if given["save_run"]:
            files.enter_context(outputs.run_folder(Path(given["save_run"])))
        with counted_bar("bench") as done:
            result = interruptible.run(measure(where, requests, plan, given["seed"], done, keep=True))
        found = document(result, asked)
        rate = None if run is not None else _rate(given["request_rate"])
        found["load"]["asked_rate"] = None if rate is None or math.isinf(rate) else rate
        if given["predict"] and found["partial"]:
            found["notes"].append("nothing is predicted beside: that would be of all the load")
        elif given["predict"]:
            found["predicted"] = _predicted(run, plan, asked)
            found["notes"] += [f"of the prediction: {remark}" for remark in run.remarks()]
            if found["load"]["held_back"] or (plan.clients is not None and not plan.think_time):
                found["notes"].append(f"of the prediction: {AT_ONCE}")
            found["notes"] += _other_wait(found["retry_wait"])
        _write(result, found, run, given, table, detailed)
    if given["as_json"]:
        print_json(found)
    else:
        from batchlab.cli.bench_tables import print_bench  # numpy takes time to import

        print_bench(found)
    for line in found["notes"]:
        note(line)
    if found["partial"]:
        sys.exit(128 + signal.SIGINT)
    if not found["results"].get("completed") or missed(found.get("answers", {})):
        sys.exit(1)


def _plan(given: dict[str, Any], run: Any) -> Any:
    """How the requests are sent. Raises InputError for options that do not go together."""
    from batchlab.bench.load import Plan

    clients, think_time = given["closed_loop"], round((given["think_time"] or 0) * NS_IN_S)
    if run is not None and run.clients is not None and clients is None:
        clients = run.clients
        think_time = run.think_time if given["think_time"] is None else think_time
    cap = given["max_concurrency"]
    if run is not None and cap is None and given["closed_loop"] is None:
        cap = run.max_concurrency
    if clients is not None and cap is not None:
        raise InputError("--max-concurrency", None, None, "a closed loop of N clients never has more than N in flight")
    if cap is not None and run is not None and getattr(run.requests, "waits", False):
        expected = "is for requests at their own times: here turns of sessions wait for the answer before them"
        raise InputError("--max-concurrency", None, None, expected)
    if clients is None and given["think_time"] is not None:
        raise InputError("--think-time", None, None, "needs --closed-loop: in an open loop nobody waits for an answer")
    return Plan(
        max_concurrency=cap,
        clients=clients,
        think_time=think_time,
        max_retries=given["max_retries"],
        num_warmups=given["num_warmups"],
        exact=given["ignore_eos"],
        text=given["text"] or given["backend"] == "openai-chat",
    )


def _where(url: str, given: dict[str, Any]) -> Any:
    """Which server, and how it is spoken to. Raises InputError."""
    from batchlab.bench.run import Where

    return Where(
        url,
        backend=given["backend"],
        path=path_of(given["endpoint"]),
        model=given["model"],
        headers=headers_of(given["headers"]),
        extra=extra_of(given["extra_body"]),
        scrape_interval=interval_of(given["scrape_interval"]),
        timeout=given["timeout"],
        token_ids=not given["no_token_ids"],
        vocab=given["vocab_size"],
    )


def _load(given: dict[str, Any]) -> tuple[Any, Sequence[Any]]:
    """The scenario's run, if there is one, and the requests to send. Raises InputError."""
    chosen = click.get_current_context().get_parameter_source
    named = [name for name in GENERATED if chosen(name) is not click.core.ParameterSource.DEFAULT]
    for name in ("request_rate", "burstiness"):
        if given["closed_loop"] is not None and name in named:
            expected = "does not go with --closed-loop, whose clients send when they have their last answer"
            raise InputError(f"--{name.replace('_', '-')}", None, given[name], expected)
    if given["scenario"] is None:
        for option in ("predict", "save_run"):
            if given[option]:
                raise InputError(f"--{option.replace('_', '-')}", None, None, "needs --scenario: the engine's settings")
        given["changes"].refuse("needs --scenario: it changes that")
        return None, _generated(given)
    if named:
        option = f"--{named[0].replace('_', '-')}"
        raise InputError(option, None, None, "does not go with --scenario: its [workload] is the load")
    from batchlab.scenario import load

    changes = given["changes"]
    loaded = load(given["scenario"], changes.overrides(given["scenario"]), changes.names, changes.workload)
    run = loaded.runs[0]
    if given["predict"] and len(loaded.runs) > 1:
        several = [one.engine for one in loaded.runs]
        raise loaded.locate(InputError(None, "engine.policy", several, "choose one to predict, with --policy"))
    if run.cost.unit != "ns":
        expected = "must be 'ns': a load is sent in real time"
        raise loaded.locate(InputError(None, "cost.unit", run.cost.unit, expected))
    return run, run.requests


def _generated(given: dict[str, Any]) -> Sequence[Any]:
    """The load of the options that vLLM has too."""
    from batchlab.clients.generate import GenerateTable
    from batchlab.settings import validate

    arrivals: dict[str, Any] = {"arrivals": "all-at-once"}
    rate = _rate(given["request_rate"])
    if not math.isinf(rate):
        arrivals = {"arrivals": "gamma", "request_rate": rate, "burstiness": given["burstiness"]}
    elif not 0.01 <= given["burstiness"] <= 10_000:  # of no use there, but wrong all the same
        raise InputError("--burstiness", None, given["burstiness"], "must be at least 0.01 and at most 10000")
    ratio = Fraction(str(given["random_range_ratio"]))
    lengths = {
        name: {
            "distribution": "uniform",
            "min": max(1, math.floor(given[f"random_{side}_len"] * (1 - ratio))),
            "max": math.ceil(given[f"random_{side}_len"] * (1 + ratio)),
        }
        for name, side in (("prompt", "input"), ("output", "output"))
    }
    table = {"num_prompts": given["num_prompts"], "seed": given["seed"], **arrivals, **lengths}
    try:
        columns: Sequence[Any] = validate(GenerateTable, table).build(Path(), "ns")
    except InputError as error:
        name = error.place if error.place in GENERATED else "request_rate"
        raise InputError(f"--{name.replace('_', '-')}", None, error.value or given[name], error.expected) from None
    return columns


def _rate(text: str) -> float:
    try:
        rate = float(text)
    except ValueError:
        rate = math.nan
    if not rate > 0:
        raise InputError("--request-rate", None, text, "must be a number above 0, or inf")
    return rate


def _check_outputs(given: dict[str, Any]) -> None:
    """No output is another one, and each can be what is asked of it. Raises InputError."""
    if given["requests"]:
        from batchlab.metrics.table import ending_of

        ending_of(given["requests"])
    named = [
        Path(given[name]).resolve() for name in ("requests", "save_detailed", "save_run", "scenario") if given[name]
    ]
    for path in named:
        if named.count(path) > 1:
            raise InputError(path, None, None, "is named twice, as input or output")


def _write(result: Any, found: dict[str, Any], run: Any, given: dict[str, Any], table: Any, detailed: Any) -> None:
    from batchlab.bench import outputs

    if table is not None:
        outputs.write_table(result, table, given["requests"])
        flush(table, given["requests"])
    if detailed is not None:
        json.dump(outputs.vllm_result(result, found), detailed)
        flush(detailed, given["save_detailed"])
    if given["save_run"] and (found["partial"] or not found["results"].get("completed")):
        why = "the run was interrupted" if found["partial"] else "no request was completed"
        found["notes"].append(f"{given['save_run']}: not written: {why}")
    elif given["save_run"]:
        outputs.write_run(result, Path(given["save_run"]), run)
        lost = found["requests"] - found["results"]["completed"]
        if lost:
            what = f"{lost:,} of {found['requests']:,} requests were not completed and are left out"
            found["notes"].append(f"{given['save_run']}: {what}: what the server spent on them is missing")


def _other_wait(waited: dict[str, Any]) -> list[str]:
    """What to know of a prediction whose refused requests came again after another time."""
    from batchlab.bench.load import WAIT

    if waited["count"] == 0 or (waited["mean"] == WAIT and waited["max"] == WAIT):
        return []
    measured = f"{waited['mean']:g} s in the mean, {waited['max']:g} s at most"
    return [f"of the prediction: it waits {WAIT:g} s before another attempt; the server asked for {measured}"]


def _predicted(run: Any, plan: Any, asked: Any = None) -> dict[str, Any]:
    """The figures of a simulation of the same requests, in the same kind of loop, and its answers to what is asked."""
    from batchlab.bench.load import WAIT
    from batchlab.clients.retry import Backoff
    from batchlab.metrics.answers import answers
    from batchlab.metrics.fold import Summary
    from batchlab.simulation import simulate

    summary = Summary()
    if plan.clients is not None or plan.max_concurrency is not None:
        how = {name: getattr(plan, name) for name in ("clients", "think_time", "max_concurrency")}
        run = replace(run, inline=False, **how)
    again = Backoff(plan.max_retries + 1, round(WAIT * NS_IN_S), 1) if plan.max_retries else None
    simulate(replace(run, retry=again), [summary])
    document = summary.document(with_requests=False)
    found = {name: document[name] for name in ("results", "latency", "throughput")}
    return found | ({"answers": answers(summary, asked)} if asked else {})
