"""Recorded steps of the real vLLM scheduler: every field of every step has to come out the same."""

from typing import Any

from batchlab.clients.request import Request, TokenIdentity
from batchlab.conform.compare import Difference, compare_steps
from batchlab.core.blocks import HashedBlocks
from batchlab.core.scheduler import Core, Limits, Step
from batchlab.costs.unit import Unit
from batchlab.errors import InputError
from batchlab.events import Event, Iteration
from batchlab.policies.vllm import Vllm
from batchlab.simulate import Run, simulate

SEGMENT = 1_000_000  # token j of segment s is written s * SEGMENT + j
PROMPT_SEGMENT = 100_000
OUTPUT_SEGMENT = 500_000
LIMITS = ("max_num_seqs", "max_num_batched_tokens", "block_size", "enable_prefix_caching", "max_model_len")
SETTINGS = (
    "long_prefill_token_threshold",
    "long_prefill_token_threshold_adaptive",
    "enable_chunked_prefill",
    "watermark",
    "scheduler_reserve_full_isl",
    "async_scheduling",
)


def run_case(case: dict[str, Any]) -> tuple[str, Difference | None]:
    """A one-line detail, and the first difference."""
    record_blocks = bool(case["scenario"].get("record_blocks", False))
    run = scenario_run(case["scenario"])
    got = replay(run, record_blocks)
    preemptions = sum(len(line["preempted"]) for line in got)
    detail = f"{len(got)} steps, {len(run.requests)} requests, {preemptions} preemptions"
    return detail, compare_steps([_ordered(line) for line in case["trace"]], [_ordered(line) for line in got], "step")


def scenario_run(scenario: dict[str, Any]) -> Run:
    """The run that a recorded scenario describes. Raises InputError where it is incomplete."""
    try:
        limits = {name: scenario[name] for name in LIMITS}
        limits |= {"num_gpu_blocks": scenario["num_blocks"], "track_blocks": scenario.get("record_blocks", False)}
        settings = {name: scenario[name] for name in SETTINGS if name in scenario}
        return Run(
            policy=Vllm(scheduling_policy=scenario["policy"], **settings),
            limits=Limits(**limits),
            cost=Unit(idle="jump"),
            requests=_requests(scenario),
            engine="vllm",
            settings=settings,
            list_limit=None,
        )
    except KeyError as error:
        raise InputError(None, "scenario", None, f"{error.args[0]} is missing") from error


def replay(run: Run, record_blocks: bool = False) -> list[dict[str, Any]]:
    """Run it, and say every step in the recording's own shape."""
    lines: list[dict[str, Any]] = []
    planned: dict[str, Any] = {}

    def on_plan(core: Core, step: Step) -> None:
        planned.clear()
        planned["running"] = [seq.id for seq in core.running]
        planned["waiting"] = [seq.id for seq in core.waiting]
        planned["free_blocks"] = step.free_blocks
        if record_blocks and isinstance(core.kv, HashedBlocks):
            planned["blocks"] = {seq.id: list(seq.blocks) for seq, _, _ in step.entries}
            planned["free_queue"] = core.kv.free_queue

    seen: set[str] = set()

    def record(event: Event) -> None:
        if isinstance(event, Iteration) and event.idle != "drain":
            lines.append(_line(event, planned, seen))

    simulate(run, [record], on_plan)
    return lines


def _line(event: Iteration, planned: dict[str, Any], seen: set[str]) -> dict[str, Any]:
    new = {id: cached for id, cached in event.cached if id not in seen}
    resumed = {id: cached for id, cached in event.cached if id in seen}
    seen.update(new)
    aborted = [dropped.id for dropped in event.dropped]
    assert event.kv is not None
    return {
        "step": event.start,
        "arrived": event.arrived,
        **({"aborted": aborted} if aborted else {}),
        "scheduled": {id: tokens for id, _, tokens in event.scheduled},
        "total_tokens": sum(tokens for _, _, tokens in event.scheduled),
        "preempted": [preemption.id for preemption in event.preempted],
        "new": new,
        "resumed": resumed,
        **planned,
        "finished": event.completed,
        "free_blocks_after": event.kv["free_after"],
    }


def _ordered(line: dict[str, Any]) -> dict[str, Any]:
    """The line with the scheduling order made part of what is compared."""
    return {**line, "scheduled": list(line["scheduled"].items())}


def _requests(scenario: dict[str, Any]) -> list[Request]:
    stamps = [
        entry.get("arrival_time", entry["arrival_step"] + 1e-6 * index)
        for index, entry in enumerate(scenario["requests"])
    ]
    rank = {stamp: place for place, stamp in enumerate(sorted(set(stamps)))}
    aborts = {entry["id"]: entry["step"] for entry in scenario.get("aborts", ())}
    requests = []
    for index, (entry, stamp) in enumerate(zip(scenario["requests"], stamps, strict=True)):
        output = min(entry["output"], scenario["max_model_len"] - entry["prompt"])
        requests.append(
            Request(
                id=entry["id"],
                arrival=entry["arrival_step"],
                prompt=entry["prompt"],
                output=output,
                max_tokens=output,
                priority=entry.get("priority", 0),
                cancel_at=aborts.get(entry["id"]),
                sent=rank[stamp],
                tokens=TokenIdentity(tuple(_runs(entry, index)), OUTPUT_SEGMENT + index),
            )
        )
    return requests


def _runs(entry: dict[str, Any], index: int) -> list[tuple[int, int, int]]:
    """The prompt as runs of consecutive tokens."""
    if "prompt_token_ids" in entry:
        runs: list[tuple[int, int, int]] = []
        for token in entry["prompt_token_ids"]:
            segment, start = divmod(token, SEGMENT)
            if runs and runs[-1][0] == segment and runs[-1][1] + runs[-1][2] == start:
                runs[-1] = (segment, runs[-1][1], runs[-1][2] + 1)
            else:
                runs.append((segment, start, 1))
        return runs
    segments = entry.get("prompt_segments", [[PROMPT_SEGMENT + index, entry["prompt"]]])
    return [(segment, 0, length) for segment, length in segments]
