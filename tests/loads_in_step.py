"""Small, nasty, repeatable runs for the quick path and the plain one: the same seed always gives the same run.

Budgets of a token, blocks of one token or of seven, pools in which hardly anything fits, crowds that come at once, long
silences, all lengths the same. The policies are the built-in ones, vllm above all, and those of users, who use every
verb in any order and write down what they see: two runs of one seed have to see the same.
"""

import json
from dataclasses import dataclass, replace
from random import Random
from typing import Any

import numpy as np
from laws_runs import POLICIES, document_for, make_run
from users_in_step import any_user

from batchlab.clients.columns import Columns
from batchlab.clients.request import Request, TokenIdentity
from batchlab.clients.retry import Backoff
from batchlab.core.limits import Limits
from batchlab.core.work import Work
from batchlab.costs.base import CostModel
from batchlab.costs.linear import Linear
from batchlab.costs.unit import Unit
from batchlab.order import QueueOrder
from batchlab.policies.vllm import Vllm
from batchlab.settings import LATEST
from batchlab.simulation import Run

ENOUGH = 4000  # iterations: no run needs more, but for the few with outputs longer than the calendar of ends


def any_run(seed: int, in_flight: bool = False) -> Run:
    """The run of a seed. What its policy saw, if it writes that down, is in `run.policy.saw`.

    in_flight: whoever can has two steps in flight; else a few have.
    """
    rng = Random(f"in step {seed}")
    if rng.random() < 0.2:
        return built_in(rng, seed)
    cost = any_cost(rng)
    sizes = Sizes.any(rng, cost)
    users = rng.random() < 0.5
    limits = any_limits(rng, sizes, users)
    policy = any_user(rng, seed) if users else any_vllm(rng, limits, in_flight)
    if in_flight:
        policy.steps_in_flight = 2
    requests = any_requests(rng, sizes, limits)
    clients = rng.choice([1, 2, 5]) if rng.random() < 0.07 else None
    return Run(
        policy=policy,
        limits=limits,
        cost=cost,
        requests=requests,
        max_iterations=rng.choice([1, 2, 5, 20, 100]) if rng.random() < 0.15 else sizes.iterations,
        inline=False,
        queue=any_order(rng) if users else QueueOrder(),
        retry=Backoff(rng.choice([2, 4]), rng.choice([1, 3]) * sizes.step, rng.choice([1, 2]))
        if rng.random() < 0.15
        else None,
        deadlines=rng.choice(["keep", "drop"]),
        clients=clients,
        think_time=0 if clients is None else rng.choice([0, 1, 7 * sizes.step]),
    )


def built_in(rng: Random, seed: int) -> Run:
    """A run of the laws, whose policies are all built-in ones and one that does odd things; perhaps in columns."""
    policy = rng.choice(POLICIES)
    run = replace(make_run(json.loads(document_for(policy, seed)), seed), inline=False)
    plain = all(r.deadline is None and r.cancel_at is None and r.tokens is None for r in run.requests)
    if plain and run.requests and rng.random() < 0.6:
        return replace(run, requests=in_columns(run.requests))
    return run


def in_columns(requests: Any) -> Columns:
    names = ("arrival", "prompt", "output", "max_tokens", "priority")
    columns = [np.array([getattr(r, name) for r in requests], np.int64) for name in names]
    return Columns(*columns, ids=[r.id for r in requests])


# Clocks and sizes


class EveryPart:
    """A cost model of a user: looks at every sum of a step, and at single requests if it asks for them."""

    unit = "ns"
    idle = "jump"

    def __init__(self, details: tuple[str, ...]) -> None:
        self.details = details

    def duration(self, work: Work) -> int:
        total = 3 + 5 * work.prefill_tokens + 2 * work.decode_tokens + work.context_tokens // 2 + work.prefill_context
        total += 7 * work.samples + 11 * work.moved_blocks + work.padding_tokens
        return total + sum(tokens * before for tokens, before in work.chunks) + sum(work.contexts) % 5

    def describe(self) -> dict[str, Any]:
        return {"model": "every part", "details": list(self.details)}


def any_cost(rng: Random) -> CostModel:
    kind = rng.choice(["ints", "ints", "floats", "floats", "unit", "unit", "own", "details", "huge"])
    if kind == "unit":
        return Unit(idle=rng.choice(["step", "jump"]))
    if kind in ("own", "details"):
        return EveryPart(("chunks", "contexts") if kind == "details" else rng.choice([(), ("chunks",)]))
    unit = rng.choice(["ns", "cost unit"])
    if kind == "huge" and rng.random() < 0.3:
        return Linear(unit, per_iteration=2**40, prefill_token=2**39, context_token=rng.choice([0, 2**40]))
    if kind == "ints":
        whole = [rng.choice(some) for some in ([1, 100, 5000], [0, 3, 27], [0, 1, 15], [0, 0, 1, 4], [0, 7])]
        return Linear(unit, *whole)
    parts = [rng.choice(some) for some in ([0.1, 99.5, 1e6 / 3], [0, 0.1, 1.25], [0, 0.3, 7.5], [0, 0, 0.01], [0, 1.5])]
    return Linear(unit, *parts)


@dataclass
class Sizes:
    """How large things are in a run."""

    step: int  # about the length of an iteration
    count: int
    prompt: int
    output: int
    iterations: int

    @classmethod
    def any(cls, rng: Random, cost: CostModel) -> "Sizes":
        work = Work()
        work.prefill_tokens, work.decode_tokens, work.context_tokens = 8, 3, 60
        step = 1 if isinstance(cost, Unit) else cost.duration(work)
        if rng.random() < 0.004:  # round the calendar, perhaps more than once
            return cls(step, rng.randint(1, 5), 9, rng.choice([4095, 4096, 4097, 9000]), 20_000)
        count = rng.choice([rng.randint(1, 3), rng.randint(2, 12), rng.randint(2, 12), rng.randint(8, 30)])
        return cls(step, count, rng.choice([1, 4, 10, 40, 120]), rng.choice([1, 2, 4, 10, 30, 60]), ENOUGH)


# Limits


def any_limits(rng: Random, sizes: Sizes, users: bool) -> Limits:
    block_size = rng.choice([1, 2, 4, 7, 16, 16])
    longest = sizes.prompt + sizes.output
    seats = rng.choice([1, 2, 3, 5, 8, 20, 64])
    budget = seats + rng.choice([0, 0, 1, 3, 8, 64, 2000])
    cut = rng.choice([None, None, None, None, longest, longest // 2 + 2, rng.randint(2, 12)])
    needed = -(-(longest if cut is None else min(longest, cut)) // block_size)
    extra = [-needed // 2, -1, 0, 0, 1, 2, needed // 2, needed, 3 * needed, 10_000]
    blocks: int | None = max(1, needed + rng.choice(extra))
    if rng.random() < 0.2:
        blocks = None
    if not users:
        if blocks is not None and cut is not None:
            blocks = max(blocks, -(-cut // block_size))  # else vllm does not start
        caching = blocks is not None and rng.random() < 0.25
        return Limits(seats, budget, None, False, blocks, block_size, caching, cut)
    return Limits(
        max_num_seqs=rng.choice([None, seats, seats, seats]),
        max_num_batched_tokens=rng.choice([None, budget, budget, rng.choice([1, 2, 5])]),
        max_queue=rng.choice([None, None, None, 0, 1, 3, 8]),
        shed=rng.random() < 0.3,
        num_gpu_blocks=blocks,
        block_size=block_size,
        enable_prefix_caching=blocks is not None and rng.random() < 0.2,
        max_model_len=cut,
        track_blocks=blocks is not None and rng.random() < 0.05,
    )


def any_order(rng: Random) -> QueueOrder:
    order = rng.choice(["arrival", "arrival", "priority"])
    return QueueOrder(order, rng.choice([None, 1, 50]) if order == "priority" else None)


# Requests


def any_requests(rng: Random, sizes: Sizes, limits: Limits) -> Any:
    """In columns, or as a list, which may hold more: deadlines, cancellations, time stamps, which tokens they are."""
    count = sizes.count
    arrival = any_arrivals(rng, sizes)
    prompt = [rng.randint(1, sizes.prompt) for _ in range(count)]
    output = [rng.randint(1, sizes.output) for _ in range(count)]
    if rng.random() < 0.25:
        prompt = [sizes.prompt] * count
    if rng.random() < 0.25:
        output = [sizes.output] * count
    slack = rng.choice([0, 0, 3, 20])
    most = [tokens + rng.randint(0, slack) for tokens in output]
    level = [rng.randint(0, 3) for _ in range(count)] if rng.random() < 0.5 else None
    if rng.random() < 0.4:
        columns = [np.array(column, np.int64) for column in (arrival, prompt, output, most)]
        ids = [f"r{count - n}" for n in range(count)] if rng.random() < 0.3 else None
        numbers = np.arange(count, dtype=np.int64) + 7 if ids is None and rng.random() < 0.3 else None
        return Columns(*columns, None if level is None else np.array(level, np.int64), ids, numbers)
    more = rng.random() < 0.4
    rows = zip(arrival, prompt, output, most, level or [1] * count, strict=True)
    found = [Request(f"r{count - n}", *row) for n, row in enumerate(rows)]
    if more:
        found = [patience(rng, sizes, r) for r in found]
    if limits.enable_prefix_caching and rng.random() < 0.9:
        found = [alike(rng, n, r) for n, r in enumerate(found)]
    return found


def any_arrivals(rng: Random, sizes: Sizes) -> list[int]:
    gap = sizes.step * rng.choice([0, 0.01, 0.3, 1, 1, 5, 40])
    crowd = rng.choice([0.15, 0.15, 0.8])  # how many come with the one before
    now = rng.choice([0, 0, 0, 12_345]) if sizes.step > 1 else rng.choice([0, 0, 9])
    if sizes.step > 1 and rng.random() < 0.01:  # in the last moments that the clock counts
        now = LATEST - int(gap) * sizes.count - sizes.step * rng.choice([0, 1, 5, 20])
    times = []
    for _ in range(sizes.count):
        if rng.random() > crowd:
            now += int(rng.expovariate(1) * gap)
        times.append(max(0, min(now, LATEST)))
    kind = rng.choice(["sorted", "sorted", "sorted", "shuffled", "reversed"])
    if kind == "shuffled":
        rng.shuffle(times)
    return times[::-1] if kind == "reversed" else times


def patience(rng: Random, sizes: Sizes, r: Request) -> Request:
    """A client who may give up, or has a clock of its own."""
    after = rng.choice([0, 1, 4, 20]) * sizes.step
    return replace(
        r,
        deadline=rng.choice([1, 3, 15, 60]) * sizes.step if rng.random() < 0.3 else None,
        cancel_at=r.arrival + after if rng.random() < 0.3 and r.arrival + after < LATEST else None,
        sent=rng.randint(0, 9) if rng.random() < 0.2 else None,
    )


def alike(rng: Random, index: int, r: Request) -> Request:
    """A prompt that may begin as others do."""
    shared = rng.choice([0, r.prompt // 2, r.prompt])
    runs = [(rng.randint(0, 1), 0, shared), (100 + index, 0, r.prompt - shared)]
    return replace(r, tokens=TokenIdentity(tuple(run for run in runs if run[2]), 500 + index))


# vLLM


class Picky(Vllm):
    """With a door of one's own: sends the longest away and lets the urgent sit down at once."""

    def on_arrival(self, seq: Any, view: Any, batch: Any) -> None:
        if seq.prompt_tokens + seq.max_tokens > 70:
            batch.reject(seq, "too long for us")
        elif seq.priority > 0 or batch.admit(seq):
            super().on_arrival(seq, view, batch)


class Moody(Vllm):
    """With a plan of one's own: every fourth time decodes alone, whoever comes."""

    turns = 0

    def plan(self, view: Any, batch: Any) -> Any:
        self.turns += 1
        if self.turns % 4 == 0 and view.decoding and batch.decode_all() is None:
            return "a quiet step"
        return super().plan(view, batch)


def any_vllm(rng: Random, limits: Limits, in_flight: bool) -> Vllm:
    """Half of them as they come, so that they coast."""
    if rng.random() < 0.35:
        return Vllm(scheduling_policy=rng.choice(["fcfs", "fcfs", "priority"]), async_scheduling=in_flight)
    kind = rng.choice([Vllm, Vllm, Vllm, Vllm, Picky, Moody])
    return kind(
        long_prefill_token_threshold=rng.choice([0, 0, 1, 5, 16]),
        long_prefill_token_threshold_adaptive=rng.random() < 0.3,
        enable_chunked_prefill=rng.random() < 0.85,
        scheduling_policy=rng.choice(["fcfs", "fcfs", "priority"]),
        watermark=rng.choice([0.0, 0.0, 0.05, 0.3]),
        scheduler_reserve_full_isl=rng.random() < 0.6,
        async_scheduling=rng.random() < 0.1 or in_flight,
        max_num_queued_reqs=rng.choice([0, 2, 8]) if rng.random() < 0.15 else None,
        max_num_queued_tokens=rng.choice([5, 40, 300]) if rng.random() < 0.15 else None,
        victim=rng.choice([None, None, "last-admitted", "priority", "most-remaining", "least-computed"]),
        preemption_mode=rng.choice(["recompute", "recompute", "keep", "swap"]),
    )
