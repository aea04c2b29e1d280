"""Random but repeatable runs that reach what decode-first and three-modes loads do not: KV blocks, clients who give up.

The same seed always gives the same run.
"""

from random import Random
from typing import Any

from batchlab.clients.request import Request, TokenIdentity
from batchlab.clients.retry import Backoff
from batchlab.core.limits import Limits
from batchlab.costs.linear import Linear
from batchlab.costs.unit import Unit
from batchlab.order import QueueOrder
from batchlab.policies.decode_first import DecodeFirst
from batchlab.policies.vllm import Vllm
from batchlab.simulation import Run


def vllm_run(seed: int) -> Run:
    """Any settings, a pool of any size, prompts that may begin alike."""
    rng = Random(f"vllm {seed}")
    block_size = rng.choice([1, 2, 3, 4, 8])
    longest = rng.choice([None, None, 30, 60])
    blocks = max(rng.choice([6, 10, 16, 40]), -(-(longest or 0) // block_size))
    seats = rng.choice([1, 2, 3, 5, 8])
    limits = Limits(
        max_num_seqs=seats,
        max_num_batched_tokens=seats + rng.choice([0, 1, 4, 10, 60]),
        num_gpu_blocks=blocks,
        block_size=block_size,
        enable_prefix_caching=rng.random() < 0.5,
        max_model_len=longest,
    )
    policy = Vllm(
        long_prefill_token_threshold=rng.choice([0, 0, 2, 5]),
        long_prefill_token_threshold_adaptive=rng.random() < 0.3,
        enable_chunked_prefill=rng.random() < 0.85,
        scheduling_policy=rng.choice(["fcfs", "priority"]),
        watermark=rng.choice([0.0, 0.0, 0.05, 0.3]),
        scheduler_reserve_full_isl=rng.random() < 0.7,
        async_scheduling=rng.random() < 0.4,
        max_num_queued_reqs=rng.choice([None, None, 4, 8]),
        max_num_queued_tokens=rng.choice([None, None, 40]),
        victim=rng.choice([None, None, "last-admitted", "priority", "most-remaining", "least-computed"]),
        preemption_mode=rng.choice(["recompute", "recompute", "keep", "swap"]),
    )
    return any_run(rng, policy, limits, "vllm", alike=True)


def decode_first_run(seed: int) -> Run:
    """A short queue that may shed, in any order, and clients who come again or give up."""
    rng = Random(f"shed {seed}")
    seats = rng.choice([1, 2, 3])
    limits = Limits(
        max_num_seqs=seats,
        max_num_batched_tokens=seats + rng.choice([0, 2, 9]),
        max_queue=rng.choice([0, 1, 2, 3, 6]),
        shed=rng.random() < 0.7,
    )
    order = rng.choice(["arrival", "priority", "priority"])
    queue = QueueOrder(order, rng.choice([None, 2, 9]) if order == "priority" else None)
    policy = DecodeFirst(
        prefill_chunk=rng.choice([1, 3, 20]),
        priority_preemption=rng.random() < 0.6,
        arrivals_first=rng.random() < 0.6,
    )
    return any_run(rng, policy, limits, "decode-first", queue)


def any_run(
    rng: Random, policy: Any, limits: Limits, engine: str, queue: QueueOrder | None = None, alike: bool = False
) -> Run:
    """Requests, a clock, and what becomes of late and rejected ones."""
    counted = rng.random() < 0.7
    cost = Unit(idle=rng.choice(["jump", "step"])) if counted else Linear(prefill_token=2, decode_token=3, unit="ns")
    scale = 1 if counted else 9
    requests = [_request(rng, index, scale, alike) for index in range(rng.choice([3, 8, 14, 20]))]
    inline = rng.random() < 0.8
    return Run(
        policy=policy,
        limits=limits,
        cost=cost,
        requests=requests,
        max_iterations=rng.choice([4, 11, 25]) if rng.random() < 0.1 else 5000,
        engine=engine,
        inline=inline,
        queue=queue or QueueOrder(),
        retry=Backoff(rng.choice([2, 3, 5]), rng.choice([1, 3, 8]) * scale, rng.choice([1, 2]))
        if rng.random() < 0.5
        else None,
        deadlines=rng.choice(["keep", "drop"]),
    )


def _request(rng: Random, index: int, scale: int, alike: bool) -> Request:
    arrival = rng.choice([0, 0, 1, 3, rng.randint(0, 30)]) * scale
    prompt, output = rng.choice([1, 2, 5, 9, 17, 24]), rng.choice([1, 2, 3, 8, 20])
    tokens = None
    if alike:
        shared = rng.randint(0, prompt)
        runs = [(rng.randint(0, 2), 0, shared), (100 + index, 0, prompt - shared)]
        tokens = TokenIdentity(tuple(run for run in runs if run[2]), 500 + index)
    return Request(
        id=f"r{index}",
        arrival=arrival,
        prompt=prompt,
        output=output,
        max_tokens=output + rng.choice([0, 0, 1, 6]),
        priority=rng.randint(0, 3),
        deadline=rng.choice([4, 15, 40]) * scale if rng.random() < 0.3 else None,
        cancel_at=arrival + rng.choice([0, 1, 6, 20]) * scale if rng.random() < 0.25 else None,
        sent=rng.randint(0, 9) if rng.random() < 0.2 else None,
        tokens=tokens,
    )
