"""The modes `static`, `continuous` and `chunked`, read literally from their rules.

Time is counted in cost units. An iteration costs the sum of its tokens, its outputs appear at its end.
"""

import itertools
from typing import Any

MODES = ("static", "continuous", "chunked")


class Job:
    """One request and how far it has come."""

    def __init__(self, request: dict[str, Any]) -> None:
        self.id = request["id"]
        self.arrival = request["arrival"]
        self.prompt_left = request["prompt"]
        self.output = request["output"]
        self.output_times: list[int] = []

    def done(self) -> bool:
        return len(self.output_times) == self.output

    def summary(self) -> dict[str, Any]:
        times = self.output_times
        gaps = [later - earlier for earlier, later in itertools.pairwise(times)]
        return {
            "name": self.id,
            "ttft": times[0] - self.arrival,
            "e2e": times[-1] - self.arrival,
            "max_itl": max(gaps, default=0),
            "output_times": times,
        }


def check(mode: str, limits: dict[str, Any], requests: list[dict[str, Any]]) -> None:
    if mode not in MODES:
        raise ValueError(f"unknown mode {mode!r}")
    for name in ("max_num_seqs", "max_num_batched_tokens", "prefill_chunk"):
        if limits[name] < 1:
            raise ValueError(f"{name} must be at least 1")
    if not requests:
        raise ValueError("there are no requests")
    for request in requests:
        if request["arrival"] < 0:
            raise ValueError(f"request {request['id']!r}: arrival must not be negative")
        if request["prompt"] < 1 or request["output"] < 1:
            raise ValueError(f"request {request['id']!r}: lengths must be at least 1")


def too_long_prompt(mode: str, limits: dict[str, Any], requests: list[dict[str, Any]]) -> str | None:
    """Why an unchunked mode refuses these requests, or None."""
    budget = limits["max_num_batched_tokens"]
    for request in requests:
        if mode != "chunked" and request["prompt"] > budget:
            return f"request {request['id']!r}: prompt of {request['prompt']} exceeds the budget of {budget}"
    return None


def admit(mode: str, seats: int, now: int, waiting: list[Job], active: list[Job]) -> None:
    if mode == "static" and active:
        return
    while waiting and waiting[0].arrival <= now and len(active) < seats:
        active.append(waiting.pop(0))


def plan(mode: str, limits: dict[str, Any], active: list[Job]) -> list[tuple[Job, str, int]]:
    """Who gets how many tokens in this iteration, in the order they are given out."""
    budget = limits["max_num_batched_tokens"]
    actions = []
    for job in active:
        if job.prompt_left == 0 and budget > 0:
            actions.append((job, "decode", 1))
            budget -= 1
    for job in active:
        tokens = prefill_tokens(mode, limits, job.prompt_left, budget)
        if tokens > 0:
            actions.append((job, "prefill", tokens))
            budget -= tokens
    return actions


def prefill_tokens(mode: str, limits: dict[str, Any], prompt_left: int, budget: int) -> int:
    if mode == "chunked":
        return min(prompt_left, budget, limits["prefill_chunk"])
    if prompt_left > budget:
        return 0
    return prompt_left


def duration(cost: dict[str, Any], actions: list[tuple[Job, str, int]]) -> int:
    return sum(cost[f"{phase}_token"] * tokens for _, phase, tokens in actions)


def carry_out(actions: list[tuple[Job, str, int]], end: int) -> None:
    for job, phase, tokens in actions:
        if phase == "prefill":
            job.prompt_left -= tokens
        if job.prompt_left == 0:
            job.output_times.append(end)


def run(mode: str, limits: dict[str, Any], cost: dict[str, Any], requests: list[dict[str, Any]]) -> dict[str, Any]:
    check(mode, limits, requests)
    error = too_long_prompt(mode, limits, requests)
    if error is not None:
        return {"error": error}
    jobs = [Job(request) for request in requests]
    waiting = sorted(jobs, key=lambda job: job.arrival)  # stable: input order among equal arrivals
    active: list[Job] = []
    trace = []
    now = 0
    while waiting or active:
        if not active:
            now = max(now, waiting[0].arrival)
        admit(mode, limits["max_num_seqs"], now, waiting, active)
        actions = plan(mode, limits, active)
        end = now + duration(cost, actions)
        carry_out(actions, end)
        shown = [f"{job.id}:{phase}:{tokens}" for job, phase, tokens in actions]
        trace.append({"start": now, "end": end, "actions": shown})
        active = [job for job in active if not job.done()]
        now = end
    return {"finish": now, "requests": [job.summary() for job in jobs], "trace": trace}
