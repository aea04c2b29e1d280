"""Recorded steps of the real vLLM scheduler: every field of every step has to come out the same."""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from batchlab.clients.request import Request, TokenIdentity
from batchlab.conform.compare import Difference, compare_steps
from batchlab.core.blocks import HashedBlocks
from batchlab.core.limits import Limits
from batchlab.core.scheduler import Core
from batchlab.core.step import Step
from batchlab.costs.unit import Unit
from batchlab.errors import InputError
from batchlab.events import Event, Iteration
from batchlab.policies.vllm import Vllm
from batchlab.settings import Count, CountOrZero, Whole, validate
from batchlab.simulation import Run, simulate
from batchlab.units import counted

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


class RequestEntry(BaseModel):
    """A request of a recorded scenario."""

    model_config = ConfigDict(strict=True)

    id: str = Field(min_length=1)
    arrival_step: CountOrZero
    prompt: Count
    output: Count
    priority: Whole = 0
    arrival_time: float | None = Field(default=None, allow_inf_nan=False)
    prompt_segments: list[Annotated[list[CountOrZero], Field(min_length=2, max_length=2)]] | None = None
    prompt_token_ids: list[CountOrZero] | None = None

    @model_validator(mode="after")
    def _tokens_make_the_prompt(self) -> "RequestEntry":
        lengths: dict[str, int] = {}
        if self.prompt_segments is not None:
            lengths["prompt_segments"] = sum(length for _, length in self.prompt_segments)
        if self.prompt_token_ids is not None:
            lengths["prompt_token_ids"] = len(self.prompt_token_ids)
        for name, length in lengths.items():
            if length != self.prompt:
                raise ValueError(f"{name} make {length} tokens, prompt says {self.prompt}")
        return self


class Abort(BaseModel):
    """A client that gives up."""

    model_config = ConfigDict(strict=True)

    step: CountOrZero
    id: str


class RecordedScenario(BaseModel):
    """What a recorded case says of the engine and the load; other fields are left alone."""

    model_config = ConfigDict(strict=True)

    max_num_seqs: Count
    max_num_batched_tokens: Count
    block_size: Count
    num_blocks: Count
    max_model_len: Count
    enable_prefix_caching: bool
    policy: Literal["fcfs", "priority"]
    long_prefill_token_threshold: CountOrZero = 0
    long_prefill_token_threshold_adaptive: bool = False
    enable_chunked_prefill: bool = True
    watermark: Annotated[float, Field(ge=0, lt=1, strict=False)] = 0.0
    scheduler_reserve_full_isl: bool = True
    async_scheduling: bool = False
    record_blocks: bool = False
    requests: list[RequestEntry]
    aborts: list[Abort] = Field(default_factory=list)

    @model_validator(mode="after")
    def _names_are_clear(self) -> "RecordedScenario":
        ids = [entry.id for entry in self.requests]
        if len(set(ids)) < len(ids):
            raise ValueError("each request needs an id of its own")
        unknown = [abort.id for abort in self.aborts if abort.id not in ids]
        if unknown:
            raise ValueError(f"aborts name {unknown[0]!r}, which no request has")
        return self


def run_case(case: dict[str, Any]) -> tuple[str, Difference | None]:
    """A one-line detail, and the first difference. Raises InputError where the case is not one."""
    recorded = case["trace"]
    for number, line in enumerate(recorded):
        if not isinstance(line, dict) or not isinstance(line.get("scheduled"), dict):
            raise InputError(None, f"trace[{number}]", line, "must be an object with scheduled = {id: tokens}")
    run = scenario_run(case["scenario"])
    got = replay(run, bool(case["scenario"].get("record_blocks", False)))
    preemptions = sum(len(line["preempted"]) for line in got)
    detail = (
        f"{counted(len(got), 'step')}, {counted(len(run.requests), 'request')}, {counted(preemptions, 'preemption')}"
    )
    return detail, compare_steps([_ordered(line) for line in recorded], [_ordered(line) for line in got], "step")


def scenario_run(scenario: dict[str, Any]) -> Run:
    """The run that a recorded scenario describes. Raises InputError where that is not clear."""
    checked: RecordedScenario = validate(RecordedScenario, scenario, "scenario")
    settings = {name: getattr(checked, name) for name in SETTINGS}
    return Run(
        policy=Vllm(scheduling_policy=checked.policy, **settings),
        limits=Limits(
            **{name: getattr(checked, name) for name in LIMITS},
            num_gpu_blocks=checked.num_blocks,
            track_blocks=checked.record_blocks,
        ),
        cost=Unit(idle="jump"),
        requests=_requests(checked),
        engine="vllm",
        settings=settings,
        list_limit=None,
    )


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


def _requests(scenario: RecordedScenario) -> list[Request]:
    stamps = [
        entry.arrival_step + 1e-6 * index if entry.arrival_time is None else entry.arrival_time
        for index, entry in enumerate(scenario.requests)
    ]
    rank = {stamp: place for place, stamp in enumerate(sorted(set(stamps)))}
    aborts: dict[str, int] = {}
    for abort in scenario.aborts:
        aborts[abort.id] = min(abort.step, aborts.get(abort.id, abort.step))
    requests = []
    for index, (entry, stamp) in enumerate(zip(scenario.requests, stamps, strict=True)):
        output = max(1, min(entry.output, scenario.max_model_len - entry.prompt))
        requests.append(
            Request(
                id=entry.id,
                arrival=entry.arrival_step,
                prompt=entry.prompt,
                output=output,
                max_tokens=output,
                priority=entry.priority,
                cancel_at=aborts.get(entry.id),
                sent=rank[stamp],
                tokens=TokenIdentity(tuple(_runs(entry, index)), OUTPUT_SEGMENT + index),
            )
        )
    return requests


def _runs(entry: RequestEntry, index: int) -> list[tuple[int, int, int]]:
    """The prompt as runs of consecutive tokens."""
    if entry.prompt_token_ids is not None:
        return [(*divmod(token, SEGMENT), 1) for token in entry.prompt_token_ids]
    if entry.prompt_segments is not None:
        return [(segment, 0, length) for segment, length in entry.prompt_segments]
    return [(PROMPT_SEGMENT + index, 0, entry.prompt)]
