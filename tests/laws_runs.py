"""Random runs for the laws: every run follows from its policy's name and a seed."""

import functools
import hashlib
import inspect
import io
import json
import types
import typing
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from random import Random
from typing import Any

import pytest
from laws_odd import Odd
from loads import NEVER, any_arrivals, any_lengths, any_priorities

from batchlab import policies
from batchlab._build import build_kind
from batchlab.core.limits import Limits
from batchlab.costs.linear import Linear
from batchlab.errors import InputError
from batchlab.metrics.fold import Summary
from batchlab.scenario import build
from batchlab.settings import parameters
from batchlab.simulation import Run, simulate
from batchlab.trace.write import TraceWriter

ODD = "odd"
POLICIES = [*policies.names(), ODD]
SEEDS = range(150)
BUILD_SEEDS = range(60)  # for each policy, to compare the builds
CROWDS = range(7, 1000, 50)  # seeds of loads with more waiting than a trace lists
TRIES = 500  # for documents that a policy accepts
WAITS = ("static", "fastertransformer", "triton", "triton-iterative", ODD)  # on purpose, with work at hand
RESERVES = ("orca", "tensorrt-llm")  # blocks for what is not computed yet
KV_LIMITS = ("block_size", "num_gpu_blocks", "enable_prefix_caching", "max_model_len")

SETTINGS: dict[str, list[Any]] = {  # for parameters that their type does not describe well enough
    "prefill_chunk": [1, 2, 3, 5, 16, 1000],
    "watermark": [0.0, 0.0, 0.05, 0.25, 0.9],
    "long_prefill_token_threshold": [0, 0, 1, 2, 5],
    "scheduler_reserve_full_isl": [True, True, False],
    "max_num_queued_reqs": [None, None, 0, 1, 4, 500],
    "max_num_queued_tokens": [None, None, 5, 30, 1000],
}
BY_TYPE: dict[Any, list[Any]] = {
    bool: [False, True],
    int: [1, 2, 3, 8, 64],
    float: [0.0, 0.25, 1.0],
}


def any_setting(name: str, parameter: inspect.Parameter, rng: Random) -> Any:
    """A value for a policy's own setting, by its name or else its type."""
    if name in SETTINGS:
        return rng.choice(SETTINGS[name])
    kind = parameter.annotation
    while typing.get_origin(kind) is typing.Annotated:
        kind = typing.get_args(kind)[0]
    if typing.get_origin(kind) in (typing.Union, types.UnionType):
        choices = typing.get_args(kind)
        if type(None) in choices and rng.random() < 0.5:
            return None
        kind = rng.choice([choice for choice in choices if choice is not type(None)])
    if typing.get_origin(kind) is typing.Literal:
        return rng.choice(typing.get_args(kind))
    if kind in BY_TYPE:
        return rng.choice(BY_TYPE[kind])
    if parameter.default is not parameter.empty:
        return parameter.default
    raise AssertionError(f"add values for the setting {name} ({kind}) to SETTINGS in {__file__}")


def any_cost(rng: Random) -> dict[str, Any]:
    kind = rng.choice(["unit", "ints", "floats", "long floats"])
    if kind == "unit":
        return {"model": "unit", "idle": rng.choice(["step", "step", "jump"])}
    unit = {"model": "linear", "unit": rng.choice(["cost unit", "ns"])}
    if kind == "ints":
        return unit | {"prefill_token": rng.choice([1, 2, 3]), "decode_token": rng.choice([0, 1, 5])}
    if kind == "floats":
        return unit | {"per_iteration": 0.5, "prefill_token": rng.choice([0.1, 1.25]), "context_token": 0.01}
    return unit | {"per_iteration": 7_123_456.789, "prefill_token": 1e5 / 3, "decode_token": 0.3}


def any_load(rng: Random, seed: int, budget: int | None) -> list[dict[str, Any]]:
    if seed in CROWDS:
        return [{"id": f"c{n}", "arrival": n // 299, "prompt": 1, "output": 1 + n % 2} for n in range(300)]
    count = rng.choice([0, 1, 2, 3, 5, 8, 13])
    arrivals = any_arrivals(rng, count) if count else []
    scale = rng.choice([1, 1, 10, 10**7])
    short = rng.random() < 0.7
    loads = []
    rows = zip(arrivals, any_lengths(rng, count), any_priorities(rng, count), strict=True)
    for number, (arrival, (prompt, output), priority) in enumerate(rows):
        if short and budget is not None:
            prompt = min(prompt, budget)
        row = {"id": f"r{count - number}", "arrival": arrival, "prompt": prompt, "output": output}
        loads.append(row | {"priority": priority})
    limit_kind = rng.choice(["none", "given", "some"])
    patience = rng.choice([0, 0, 0.3])
    for row in loads:
        row["arrival"] *= scale
        if limit_kind == "given" or (limit_kind == "some" and rng.random() < 0.5):
            row["max_tokens"] = row["output"] + rng.choice([0, 1, 5, 60])
        if rng.random() < patience:
            row["cancel_at"] = row["arrival"] + rng.choice([0, 1, 3, 10, 40]) * scale
        if rng.random() < patience:
            row["deadline"] = rng.choice([1, 2, 5, 15, 60]) * scale
    if rng.random() < 0.5:
        share_prefixes(rng, loads)
    return loads


def any_fight(rng: Random) -> list[dict[str, Any]]:
    """Requests that grow side by side, so that a small pool runs out under them."""
    loads: list[dict[str, Any]] = []
    for number in range(rng.choice([2, 3, 5, 8])):
        row = {"id": f"r{number}", "arrival": rng.choice([0, 0, 1, 4]), "prompt": rng.choice([1, 3, 4, 8])}
        loads.append(row | {"output": rng.choice([4, 9, 20]), "priority": rng.randint(0, 2)})
        if rng.random() < 0.2:
            loads[-1]["cancel_at"] = rng.randint(4, 60)
        if rng.random() < 0.2:
            loads[-1]["deadline"] = rng.randint(4, 60)
        if rng.random() < 0.3:
            loads[-1]["max_tokens"] = loads[-1]["output"] + rng.choice([1, 9])
    if rng.random() < 0.6:
        share_prefixes(rng, loads)
    return loads


def share_prefixes(rng: Random, loads: list[dict[str, Any]]) -> None:
    """Prompts that begin with the same tokens, whole prompts among them; some share a part of a part."""
    for row in loads:
        first = rng.choice([0, row["prompt"], row["prompt"], min(row["prompt"], 4)])
        second = rng.choice([0, row["prompt"] - first])
        pairs = [[rng.choice("ab"), first], ["c", second]]
        row["prefix"] = [pair for pair in pairs if pair[1]]


def any_blocks(rng: Random, budget: int | None, load: list[dict[str, Any]]) -> dict[str, Any]:
    """Pools mostly just large enough for the longest request alone, or a little too small."""
    size = rng.choice([1, 2, 2, 4, 16])
    longest = max((row["prompt"] + row["output"] for row in load), default=1)
    tight = -(-longest // size) + rng.choice([-1, 1, 1, 2, 3, 5])
    blocks = rng.choice([None, tight, tight, tight, 3, 9, 200])
    return {
        "block_size": size,
        "num_gpu_blocks": None if blocks is None else max(blocks, 2),
        "enable_prefix_caching": blocks is not None and rng.random() < 0.6,
        "max_model_len": rng.choice([None, None, None, 2, longest, budget]),
    }


def any_queue(rng: Random) -> dict[str, Any]:
    queue: dict[str, Any] = {"order": rng.choice(["arrival", "priority"]), "when_full": rng.choice(["reject", "shed"])}
    if queue["order"] == "priority" and rng.random() < 0.6:
        queue["aging"] = rng.choice([1, 2, 5, 10**7])
    return queue


def any_document(policy: str, seed: int, rng: Random) -> dict[str, Any]:
    """A scenario, as it would stand in a file; a policy may still refuse it."""
    budget = rng.choice([None, 1, 2, 3, 5, 8, 16, 64])
    limits = {
        "max_num_seqs": rng.choice([None, 1, 1, 2, 3, 5, 16]),
        "max_num_batched_tokens": budget,
        "max_queue": rng.choice([None, None, 0, 1, 2, 5, 400]),
    }
    if seed in CROWDS:
        limits |= {"max_num_seqs": rng.choice([1, 3, 7]), "max_queue": None}
    cost = any_cost(rng)
    fight = policy == "vllm" and seed not in CROWDS and rng.random() < 0.6
    load = any_fight(rng) if fight else any_load(rng, seed, budget)
    if cost["model"] == "unit" and any(row["arrival"] + row.get("deadline", 0) > 2000 for row in load):
        cost = {"model": "linear", "unit": "ns", "prefill_token": 1, "decode_token": 1}
    settings, own_queue = {}, False
    takes = {name: name for name in ("max_num_seqs", "max_num_batched_tokens", "max_queue", *KV_LIMITS)}
    if policy != ODD:
        found = policies.find(policy)
        settings = {name: any_setting(name, p, rng) for name, p in parameters(found).items()}
        takes, own_queue = policies.limits_of(found), found.own_queue
    if any(name.endswith("microseconds") for name in settings) and cost["model"] == "unit":
        cost = {"model": "linear", "unit": "ns", "prefill_token": 100, "decode_token": 300}
    limits |= any_blocks(rng, budget, load)
    if fight:
        limits |= {"max_num_seqs": rng.choice([2, 3, 5]), "max_model_len": None}
        limits["max_num_batched_tokens"] = budget = rng.choice([5, 8, 16, 64])
    if policy == ODD and limits["max_model_len"] is not None:  # its door takes everybody
        limits["max_model_len"] += max((row["prompt"] for row in load), default=1)
    if policy == ODD:  # a trace does not say in which order several seats and preemptions of one iteration were
        limits["enable_prefix_caching"] = False
    if seed in CROWDS:  # all of it is to wait
        limits |= {"num_gpu_blocks": None, "enable_prefix_caching": False, "max_model_len": None}
    if seed in CROWDS or (fight and rng.random() < 0.8):
        settings = {name: value for name, value in settings.items() if not name.startswith("max_num_queued")}
    workload: dict[str, Any] = {"requests": load}
    if rng.random() < 0.3:
        workload["retry"] = {
            "limit": rng.choice([1, 2, 4]),
            "wait": rng.choice([1, 3, 50]),
            "factor": rng.choice([1, 2]),
        }
    run: dict[str, Any] = {"max_iterations": rng.choice([1, 2, 5, 20])} if rng.random() < 0.2 else {}
    if not run and cost.get("idle") == "step":
        run["max_iterations"] = NEVER
    if settings.get("enable_chunked_prefill") is False:  # else vLLM does not start
        longest = max((row["prompt"] + row.get("max_tokens", row["output"]) for row in load), default=1)
        limits["max_num_batched_tokens"] = max(budget or 1, longest)
    return {
        "engine": {
            "policy": policy,
            **{own: limits[core] for own, core in takes.items() if limits[core] is not None},
            **{name: value for name, value in settings.items() if value is not None},
        },
        "cost": cost,
        "queue": {} if own_queue or rng.random() < 0.3 else any_queue(rng),
        "run": run | {"deadlines": rng.choice(["keep", "drop"])},
        "workload": workload,
    }


def make_run(document: dict[str, Any], seed: int) -> Run:
    """The run of a document. Raises InputError if its policy refuses it."""
    if document["engine"]["policy"] == ODD:
        run = odd_run(document, seed)
    else:
        run = build(document).runs[0]
        run.policy.check(run.limits, run.requests)
        if run.policy.counts_ns and run.cost.unit != "ns":  # the load's own clock does not suit the policy
            run = replace(run, cost=Linear("ns", per_iteration=3, prefill_token=1, decode_token=0.5))
    inline = seed % 3 != 0
    source = {"name": None, "sha256": None, "requests": len(run.requests) if inline else None}
    return replace(run, inline=inline, source=source)


def odd_run(document: dict[str, Any], seed: int) -> Run:
    """The requests and limits are checked as any built-in policy's are."""
    template = build(document | {"engine": {"policy": "static", "max_num_batched_tokens": 1}}).runs[0]
    engine = {name: value for name, value in document["engine"].items() if name != "policy"}
    policy = Odd(seed, len(template.requests), template.cost.idle == "step")
    limits = Limits(**engine, shed=template.limits.shed)
    if limits.enable_prefix_caching and limits.num_gpu_blocks is None:
        raise InputError(None, "engine.enable_prefix_caching", True, "needs blocks")
    return replace(template, policy=policy, limits=limits, engine=ODD, settings={"seed": seed})


@functools.cache
def document_for(policy: str, seed: int) -> str:
    """The first of the seed's documents that the policy accepts, as JSON."""
    rng = Random(f"law {policy} {seed}")
    for _ in range(TRIES):
        document = any_document(policy, seed, rng)
        try:
            make_run(document, seed)
        except InputError:
            continue
        return json.dumps(document)
    raise AssertionError(f"{policy} refused {TRIES} scenarios; widen any_document")


@dataclass(frozen=True)
class Outcome:
    """One finished run: what went in, and the trace and the summary that came out."""

    policy: str
    seed: int
    document: dict[str, Any]
    text: str
    summary: dict[str, Any]

    @functools.cached_property
    def lines(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.text.splitlines()]

    @property
    def header(self) -> dict[str, Any]:
        return self.lines[0]

    @property
    def end(self) -> dict[str, Any]:
        return self.lines[-1]

    @functools.cached_property
    def iterations(self) -> list[dict[str, Any]]:
        return [line for line in self.lines if line["type"] == "iteration"]

    @functools.cached_property
    def requests(self) -> dict[str, dict[str, Any]]:
        """By id, as the trace introduces them."""
        introduced = self.header.get("requests") or [line for line in self.lines if line["type"] == "request"]
        return {request["id"]: request for request in introduced}

    @property
    def limits(self) -> dict[str, Any]:
        return self.header["limits"]

    @property
    def asynchronous(self) -> bool:
        return self.header["steps_in_flight"] > 1

    def delivered(self, line: dict[str, Any]) -> dict[str, Any] | None:
        """The iteration whose tokens come out at this one's end."""
        number = line["delivers"] if self.asynchronous else line["iteration"]
        return None if number is None else self.iterations[number]

    def output_of(self, name: str) -> int:
        """The tokens that a request can give."""
        longest = self.limits["max_model_len"]
        request = self.requests[name]
        return request["output"] if longest is None else min(request["output"], longest - request["prompt"])


def carry_out(run: Run) -> tuple[str, dict[str, Any]]:
    """The trace's text and the summary."""
    file, summary = io.StringIO(), Summary()
    simulate(run, [summary, TraceWriter(file, summary)])
    return file.getvalue(), summary.document()


@functools.cache
def outcome(policy: str, seed: int) -> Outcome:
    document = json.loads(document_for(policy, seed))
    return Outcome(policy, seed, document, *carry_out(make_run(document, seed)))


def outcomes(policy: str) -> Iterator[Outcome]:
    return (outcome(policy, seed) for seed in SEEDS)


def every_run(law: Callable[..., None]) -> Callable[..., None]:
    """Make a law about one run a test over all policies and seeds."""

    @pytest.mark.parametrize("policy", POLICIES)
    def test(policy: str) -> None:
        for one in outcomes(policy):
            try:
                law(one)
            except Exception as error:
                error.add_note(f"policy {policy}, seed {one.seed}: {json.dumps(one.document)}")
                raise

    test.__name__, test.__doc__ = law.__name__, law.__doc__
    return test


def digests() -> dict[str, str]:
    """The digest of every trace that the builds have to agree on."""
    found = {"form": build_kind()}
    for policy in POLICIES:
        for seed in BUILD_SEEDS:
            text = outcome(policy, seed).text
            found[f"{policy} {seed}"] = hashlib.sha256(text.encode()).hexdigest()
    return found
