"""What a recording says of the engine and of each request, in the form of docs/trace-format.md."""

from __future__ import annotations

import logging
from typing import Any

import vllm

import batchlab
from batchlab.trace.encode import SCHEMA
from batchlab.units import NS_IN_MS, NS_IN_S

log = logging.getLogger("vllm.batchlab")

SETTINGS = (
    "long_prefill_token_threshold",
    "long_prefill_token_threshold_adaptive",
    "enable_chunked_prefill",
    "watermark",
    "scheduler_reserve_full_isl",
)
"""Settings that go by the same name in vLLM's SchedulerConfig and in our policy `vllm`."""
MOST_PRIORITY = 2**62
ASYNC = "asynchronous scheduling, vLLM's default on a GPU: start it with --no-async-scheduling"
RULES = f"vLLM {vllm.__version__.partition('+')[0]}"
"""Whose rules decide where no policy of one's own does."""
NAME_BYTES = 8
"""Of a block's hash, so many bytes are its name: among a million blocks, 1 in 40 million that two have the same."""


def settings_of(scheduler: Any) -> dict[str, Any]:
    """What vLLM decides by, under the names of our policy `vllm`."""
    config = scheduler.scheduler_config
    return {name: getattr(config, name) for name in SETTINGS} | {
        "scheduling_policy": config.policy,
        "async_scheduling": bool(config.async_scheduling),
    }


def limits_of(scheduler: Any) -> dict[str, Any]:
    """The bounds that vLLM keeps, under the names of our core."""
    return {
        "max_num_seqs": scheduler.max_num_active_reqs,
        "max_num_batched_tokens": scheduler.max_num_scheduled_tokens,
        "max_queue": None,
        "num_gpu_blocks": scheduler.cache_config.num_gpu_blocks - 1,  # the null block is vLLM's own
        "block_size": scheduler.block_size,
        "enable_prefix_caching": bool(scheduler.cache_config.enable_prefix_caching),
        "max_model_len": scheduler.max_model_len,
    }


def obstacle(scheduler: Any) -> str | None:
    """What this engine does that a trace, or our policy, has no place for; None if all has one."""
    config = scheduler.vllm_config
    groups = len(scheduler.kv_cache_config.kv_cache_groups)
    found = {
        ASYNC: scheduler.scheduler_config.async_scheduling,
        "speculative decoding": config.speculative_config is not None,
        f"{groups} groups of KV blocks, where one is expected": groups != 1,
        "a KV connector": scheduler.connector is not None,
        "pipeline parallelism": scheduler.parallel_config.pipeline_parallel_size > 1,
        "a model that does not generate": scheduler.num_sampled_tokens_per_step != 1,
        "hashes of parts of a KV block": scheduler.hash_block_size != scheduler.block_size,
    }
    return next((what for what, there in found.items() if there), None)


def header(
    scheduler: Any, engine: str, rules: str, settings: dict[str, Any], order: str, recorded: dict[str, int]
) -> dict[str, Any]:
    """The first line."""
    queue = {"order": "policy"} if order == "policy" else {"order": order, "aging": None, "shed": False}
    return {
        "type": "header",
        "schema": SCHEMA,
        "batchlab": batchlab.__version__,
        "engine": engine,
        "rules": rules,
        "settings": settings,
        "limits": limits_of(scheduler),
        "clock": {"unit": "ns", "cost": {"model": "recorded"}, "idle": "jump"},
        "queue": queue,
        "deadlines": "keep",
        "retry": None,
        "steps_in_flight": 1,
        "batching": "iteration",
        "holds": "computed",
        "max_iterations": None,
        "max_tokens_rule": "given",
        "source": {"name": None, "sha256": None, "requests": None},
        "recorded": recorded,
    }


def request_line(request: Any, arrival: int, epoch: int, caching: bool) -> dict[str, Any]:
    """A request as it comes to the scheduler, at `arrival`; `sent` is vLLM's own time stamp of it."""
    line = {
        "type": "request",
        "id": request.request_id,
        "arrival": arrival,
        "prompt": request.num_prompt_tokens,
        "max_tokens": request.max_tokens,
        "priority": priority(request),
        "sent": sent(request, epoch),
    }
    limit = deadline(request)
    if limit is not None:
        line["deadline"] = limit
    elif (given := _deadline_ms(request)) is not None:
        log.warning("batchlab: request %s has no deadline: deadline_ms is %.50r", request.request_id, given)
    if caching:
        line["blocks"] = names(request.block_hashes)
    return line


def sent(request: Any, epoch: int) -> int:
    """vLLM's time stamp of a request, in ns after `epoch`. Stamps that differ stay different."""
    stamp: float = request.arrival_time
    seconds, part = divmod(stamp, 1)
    return int(seconds) * NS_IN_S + round(part * NS_IN_S) - epoch


def priority(request: Any) -> int:
    """Of a request. A client may give a number of any size; one beyond what a trace holds stays at the bound."""
    return max(-MOST_PRIORITY, min(int(request.priority), MOST_PRIORITY))


def deadline(request: Any) -> int | None:
    """In ns after its arrival: what the client gave as `"vllm_xargs": {"deadline_ms": ...}`, if it did."""
    given = _deadline_ms(request)
    if isinstance(given, bool) or not isinstance(given, int | float) or not 0 < given < 2**40:
        return None
    return round(given * NS_IN_MS) or None


def _deadline_ms(request: Any) -> Any:
    return (getattr(request.sampling_params, "extra_args", None) or {}).get("deadline_ms")


def names(hashes: list[bytes]) -> list[str]:
    """Names of KV blocks: equal names, equal blocks with equal ones before them."""
    return [hash[:NAME_BYTES].hex() for hash in hashes]
