"""Small, nasty, repeatable loads for the engines: settings by the engine's own names, and requests.

The same seed always gives the same load. Ties, bursts, gaps, one seat, pools in which hardly anything fits, budgets
that cut prompts anywhere. No load lets a request wait for ever, such as one whose prompt is above a token limit of an
engine that chunks nothing: the rules do not say what becomes of it.
"""

from random import Random
from typing import Any

Load = tuple[dict[str, Any], list[dict[str, Any]]]
Requests = list[dict[str, Any]]


def static_padding(seed: int) -> Load:
    rng = Random(f"static {seed}")
    requests = some_requests(rng)
    longest = max(request["prompt"] for request in requests)
    settings = {
        "max_num_seqs": rng.choice([1, 2, 2, 3, 4, 8]),
        "max_num_batched_tokens": longest + rng.choice([0, 0, 1, 3, 9, 100]),
        "padding": rng.choice(["none", "batch", "all"]),
    }
    return settings, requests


def fastertransformer(seed: int) -> Load:
    rng = Random(f"fastertransformer {seed}")
    return {"max_bs": rng.choice([1, 2, 2, 3, 4, 8, 20])}, some_requests(rng)


def orca(seed: int) -> Load:
    rng = Random(f"orca {seed}")
    requests = some_requests(rng)
    needs = [need(request) for request in requests]
    settings = {
        "max_bs": rng.choice([1, 2, 2, 3, 4, 8]),
        "n_slots": rng.choice([max(needs), max(needs) + 3, 2 * max(needs), sum(needs), max(1, max(needs) - 1)]),
        "n_workers": rng.choice([1, 1, 1, 2, 3, 4]),
    }
    return settings, requests


def sarathi(seed: int) -> Load:
    rng = Random(f"sarathi {seed}")
    seats = rng.choice([1, 2, 2, 3, 4, 8])
    return {"max_num_seqs": seats, "token_budget": seats + rng.choice([0, 0, 1, 2, 3, 5, 9, 40])}, some_requests(rng)


def vllm_v0(seed: int) -> Load:
    rng = Random(f"vllm-v0 {seed}")
    requests = some_requests(rng, growing=rng.random() < 0.6)
    block_size = rng.choice([1, 2, 3, 4, 8])
    most = max(request["prompt"] + request["output"] for request in requests)
    in_blocks = -(-most // block_size)
    seats = rng.choice([1, 2, 3, 4, 8])
    settings = {
        "max_num_seqs": seats,
        "max_num_batched_tokens": max(most, seats) + rng.choice([0, 0, 1, 5, 40]),
        "block_size": block_size,
        "num_gpu_blocks": max(1, in_blocks + rng.choice([-3, -2, -1, 0, 0, 1, 1, 2, 4, 9])),
        "watermark": 0.01,
        "preemption_mode": rng.choice(["recompute", "swap"]),
    }
    if rng.random() < 0.4:  # with a watermark that is felt everything must fit beside it, or it might wait for ever
        settings["watermark"] = rng.choice([0.1, 0.2, 0.34])
        settings["num_gpu_blocks"] = blocks = 2 * in_blocks + rng.choice([0, 1, 2, 5])
        beside = blocks - int(settings["watermark"] * blocks)
        if rng.random() < 0.3:  # one that does not
            rng.choice(requests)["prompt"] = block_size * beside + rng.randint(1, block_size)
    elif rng.random() < 0.1:  # the real watermark is felt from 100 blocks on
        settings |= {"block_size": 1, "num_gpu_blocks": max(100, most + 1) + rng.choice([0, 1, 7])}
    return settings, requests


def tensorrt_llm(seed: int) -> Load:
    rng = Random(f"tensorrt-llm {seed}")
    requests = some_requests(rng, growing=rng.random() < 0.5)
    tokens_per_block = rng.choice([1, 2, 3, 4, 8])
    most = max(request["prompt"] + request["output"] for request in requests)
    fullest = max(need(request) for request in requests)
    policy = rng.choice(["GUARANTEED_NO_EVICT", "MAX_UTILIZATION", "MAX_UTILIZATION", "STATIC_BATCH"])
    unit = rng.choice([None, None, 1, 2, 3, 4, 5])
    chunked = rng.random() < 0.65
    if chunked:
        least = unit or tokens_per_block
    elif policy == "MAX_UTILIZATION":
        least = most  # a paused one comes back with its output as part of its prompt
    else:
        least = max(request["prompt"] for request in requests)
    settings = {
        "max_batch_size": rng.choice([1, 2, 2, 3, 4, 8]),
        "max_num_tokens": rng.choice([None, least, least, least + 1, least + 2, least + 5, least + 17]),
        "tokens_per_block": tokens_per_block,
        "num_blocks": max(1, -(-fullest // tokens_per_block) + rng.choice([-2, -1, 0, 0, 1, 1, 2, 4, 9, 40])),
        "capacity_scheduler_policy": policy,
        "enable_chunked_context": chunked,
        "context_chunking_policy": rng.choice(["FIRST_COME_FIRST_SERVED", "EQUAL_PROGRESS"]),
        "chunk_unit_size": unit,
    }
    return settings, requests


def triton(seed: int) -> Load:
    """Times lie on a coarse grid, so that arrivals, ends of steps, windows and deadlines meet."""
    rng = Random(f"triton {seed}")
    requests = some_requests(rng)
    levels = rng.choice([0, 0, 1, 2, 3])
    for request in requests:
        request["arrival"] = request["arrival"] * rng.choice([500, 1000, 1000]) + rng.choice([0, 0, 0, 0, 1, 999])
        request["priority"] = rng.randint(-1, levels + 1)
        if rng.random() < 0.4:
            request["deadline"] = rng.choice([1, 500, 1000, 2000, 3000, 8000])
    biggest = rng.choice([1, 2, 3, 4, 8])
    settings = {
        "max_batch_size": biggest,
        "preferred_batch_size": sorted(rng.sample(range(1, biggest + 1), rng.randint(0, min(2, biggest)))),
        "max_queue_delay_microseconds": rng.choice([0, 0, 1, 2, 3, 5, 20]),
        "priority_levels": levels,
        "default_priority_level": rng.randint(1, levels) if levels else 0,
        "default_queue_policy": queue_policy(rng),
        "priority_queue_policy": {n: queue_policy(rng) for n in range(1, levels + 1) if rng.random() < 0.4},
        "cost": {
            "per_iteration": rng.choice([0, 500, 1000, 1000]),
            "prefill_token": rng.choice([1, 100, 500]),
            "decode_token": rng.choice([1, 100, 500]),
        },
    }
    return settings, requests


def queue_policy(rng: Random) -> dict[str, Any]:
    return {
        "timeout_action": rng.choice(["REJECT", "DELAY"]),
        "default_timeout_microseconds": rng.choice([0, 0, 1, 2, 3, 5, 10]),
        "allow_timeout_override": rng.random() < 0.5,
        "max_queue_size": rng.choice([0, 0, 0, 1, 2, 3, 5]),
    }


def need(request: dict[str, Any]) -> int:
    return int(request["prompt"] + request["max_tokens"])


def some_requests(rng: Random, growing: bool = False) -> Requests:
    """Up to twelve, short; `growing`: their memory is mostly for output.

    In a quarter of the loads the engine is told a larger limit than the true output.
    """
    count = rng.choice([1, 2, 3, 3, 4, 5, 6, 8, 10, 12])
    slack = rng.choice([0, 0, 0, 4])
    numbers = list(range(1, count + 1))
    if rng.random() < 0.5:
        numbers.reverse()  # neither the order of the input nor that of the arrivals
    requests = []
    rows = zip(numbers, arrivals(rng, count), lengths(rng, count, growing), strict=True)
    for number, arrival, (prompt, output) in rows:
        limit = output + rng.randint(0, slack)
        requests.append(
            {"id": f"r{number}", "arrival": arrival, "prompt": prompt, "output": output, "max_tokens": limit}
        )
    return requests


def arrivals(rng: Random, count: int) -> list[int]:
    kind = rng.choice(["together", "bursts", "spread", "dense", "gaps"])
    if kind == "together":
        times = [rng.choice([0, 0, 3])] * count
    elif kind == "bursts":
        instants = [rng.randint(0, 9) for _ in range(rng.randint(1, 3))]
        times = [rng.choice(instants) for _ in range(count)]
    elif kind == "spread":
        times = [rng.randint(0, 3 * count) for _ in range(count)]
    elif kind == "dense":
        times = [rng.randint(0, max(1, count // 2)) for _ in range(count)]
    else:
        times = [rng.choice([0, 5])]
        while len(times) < count:
            times.append(times[-1] + rng.choice([0, 0, 1, 2, 15, 60]))
    order = rng.choice(["sorted", "sorted", "shuffled", "reversed"])
    times.sort(reverse=order == "reversed")
    if order == "shuffled":
        rng.shuffle(times)
    return times


def lengths(rng: Random, count: int, growing: bool) -> list[tuple[int, int]]:
    kind = "long outputs" if growing else rng.choice(["equal", "tiny", "mixed", "mixed", "mixed", "long outputs"])
    if kind == "equal":
        return [(rng.randint(1, 9), rng.randint(1, 6))] * count
    if kind == "tiny":
        return [(rng.randint(1, 2), rng.randint(1, 2)) for _ in range(count)]
    if kind == "long outputs":
        return [(rng.randint(1, 5), rng.randint(3, 16)) for _ in range(count)]
    return [(rng.choice([1, 2, 3, 4, 5, 7, 8, 12, 20]), rng.choice([1, 1, 2, 3, 4, 6, 9])) for _ in range(count)]
