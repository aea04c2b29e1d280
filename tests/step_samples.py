"""A load whose one long step everybody feels, with and without asynchronous scheduling, and when that step runs."""

from batchlab.scenario import build
from batchlab.simulation import Run

MS = 1_000_000
LONG = 4000
"""Prompt tokens of the long step; beside it A decodes once."""
TIME = 1 * MS + LONG * 50_000 + 100_000
"""What it takes by the cost model below: 201.1 ms. All other steps take at most 2 ms."""


def one_long_step(asynchronous: bool) -> Run:
    """A decodes from 2 ms on, "long" comes at 6 ms."""
    engine = {"policy": "vllm", "max_num_seqs": 4, "max_num_batched_tokens": 4096, "async_scheduling": asynchronous}
    cost = {"model": "linear", "unit": "ns", "per_iteration": MS, "prefill_token": 50_000, "decode_token": 100_000}
    requests = [
        {"id": "A", "arrival": 0, "prompt": 20, "output": 9},
        {"id": "long", "arrival": 6 * MS, "prompt": LONG, "output": 4},
    ]
    return build({"engine": engine, "cost": cost, "workload": {"requests": requests}}).runs[0]


BEGINS = {False: 6_400_000, True: 7_500_000}
"""When it begins: A's prefill takes 2 ms, each decode 1.1 ms. The first plan after 6 ms is made at 2 + 4 * 1.1 =
6.4 ms; with asynchronous scheduling the step that was planned before runs until 7.5 ms.
"""
