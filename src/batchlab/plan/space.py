"""What `tune` may change: values of each setting, in the terms of the scenario's policy."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from batchlab.clients.columns import Columns
from batchlab.errors import InputError
from batchlab.policies import limits_of
from batchlab.settings import parameters
from batchlab.simulation import Run

Space = dict[str, list[Any]]
"""Dotted key -> its values, in order."""


def doublings(low: int, high: int) -> list[int]:
    """low, 2 low, 4 low ... up to high. Of a low of 0: 0, then from 1."""
    found = [low] if low == 0 else []
    value = max(low, 1)
    while value <= high:
        found.append(value)
        value *= 2
    return found


LIMITS: dict[str, list[Any]] = {
    "max_num_batched_tokens": doublings(256, 16384),
    "max_num_seqs": doublings(16, 1024),
    "block_size": [16, 32, 64],
}
"""Of the core's settings, whatever the policy calls them."""
OWN: dict[str, list[Any]] = {
    "long_prefill_token_threshold": [0, *doublings(256, 4096)],
    "scheduling_policy": ["fcfs", "priority"],
    "prefill_chunk": doublings(64, 8192),
    "capacity_scheduler_policy": ["GUARANTEED_NO_EVICT", "MAX_UTILIZATION"],
    "enable_chunked_context": [False, True],
    "max_bs": doublings(8, 512),
    "max_batch_size": doublings(8, 512),
    "max_queue_delay_microseconds": [0, 100, 1000, 10_000, 100_000],
}
"""Of a policy's own settings."""


def default_space(run: Run) -> Space:
    """The settings that a run's policy has and that it makes sense to change, with the run's own values among them.

    Block sizes only where the number of blocks follows from the GPU's memory: elsewhere they would change the memory.
    Priorities only where requests differ in them.
    """
    found: Space = {}
    for own, core in limits_of(type(run.policy)).items():
        value = getattr(run.limits, core)
        if core in LIMITS and value is not None:
            if core != "block_size" or "gpu_memory_utilization" in run.settings:
                found[f"engine.{own}"] = _with(LIMITS[core], value)
    for own in parameters(type(run.policy)):
        if own in OWN and own in run.settings and (own != "scheduling_policy" or _priorities(run) > 1):
            found[f"engine.{own}"] = _with(OWN[own], run.settings[own])
    return found


def _with(values: Sequence[Any], own: Any) -> list[Any]:
    if own in values or own is None:
        return list(values)
    return sorted([*values, own]) if isinstance(own, int) else [*values, own]


def _priorities(run: Run) -> int:
    """How many different ones the requests have."""
    if isinstance(run.requests, Columns):
        priority = run.requests.priority
        return 1 if priority is None else len(np.unique(priority))
    return len({request.priority for request in run.requests})


def range_of(text: str) -> str:
    """The values of KEY=LOW..HIGH, each doubling, as KEY=VALUE,...; any other text as it is. Raises InputError."""
    key, equals, values = text.partition("=")
    low, dots, high = values.strip().partition("..")
    if not dots:
        return text
    if not (low.isascii() and low.isdigit() and high.isascii() and high.isdigit() and int(low) <= int(high) < 1 << 40):
        raise InputError(
            "--space", None, text, "a range is KEY=LOW..HIGH, whole numbers: each doubling, such as 256..8192"
        )
    return f"{key}{equals}{','.join(map(str, doublings(int(low), int(high))))}"
