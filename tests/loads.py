"""Random but repeatable cases for the schedulers, in the shape of the recorded examples without `expected`.

The same seed always gives the same case. Every decode-first case is a valid configuration. In about a
quarter of the three-modes cases some prompt is longer than the budget, so the unchunked modes must refuse.
"""

from random import Random
from typing import Any

PRIORITY_POOLS: list[list[int | str]] = [
    ["high", "normal"],
    [0, 1, 2, 3],
    [-2, "high", "normal", 7],
    [1, "normal"],
    [0, 1, 2, 3, 4, 5, 6, 7],
]
NEVER = 20_000  # an iteration limit that no generated load reaches


def decode_first_case(seed: int) -> dict[str, Any]:
    rng = Random(f"decode-first {seed}")
    storm = rng.random() < 0.4
    limits = decode_first_limits(rng, storm)
    count = rng.randint(1, 16)
    arrivals = storm_arrivals(rng, count) if storm else any_arrivals(rng, count)
    priorities = storm_priorities(rng, arrivals) if storm else any_priorities(rng, count)
    lengths = any_lengths(rng, count)
    requests = []
    rows = zip(names(rng, count), arrivals, priorities, lengths, strict=True)
    for name, arrival, priority, (prompt, output) in rows:
        request = {"id": name, "arrival": arrival, "priority": priority, "prompt": prompt, "output": output}
        requests.append(request)
    note = "urgent bursts onto full seats" if storm else "mixed load"
    return {"name": f"decode-first-random-{seed}", "note": note, "limits": limits, "requests": requests}


def three_modes_case(seed: int) -> dict[str, Any]:
    rng = Random(f"three-modes {seed}")
    budget = rng.choice([1, 2, 3, 4, 5, 8, 13, 16, 40, 500])
    limits = {
        "max_num_seqs": rng.choice([1, 1, 2, 3, 4, 8, budget, budget + 3]),
        "max_num_batched_tokens": budget,
        "prefill_chunk": any_chunk(rng, budget),
    }
    cost = {"prefill_token": rng.choice([1, 1, 2, 3, 7]), "decode_token": rng.choice([1, 2, 2, 5, 11])}
    count = rng.randint(1, 14)
    oversized = rng.random() < 0.25
    requests = []
    rows = zip(names(rng, count), any_arrivals(rng, count), any_lengths(rng, count), strict=True)
    for name, arrival, (prompt, output) in rows:
        if not oversized:
            prompt = min(prompt, budget)
        requests.append({"id": name, "arrival": arrival, "prompt": prompt, "output": output})
    if oversized and budget < 500:
        rng.choice(requests)["prompt"] = budget + rng.choice([1, 1, 2, budget])
    note = "some prompt may exceed the budget" if oversized else "every prompt fits the budget"
    name = f"three-modes-random-{seed}"
    return {"name": name, "note": note, "limits": limits, "cost": cost, "requests": requests}


def decode_first_limits(rng: Random, storm: bool) -> dict[str, Any]:
    seats = rng.choice([1, 1, 2, 2, 3, 4, 6])
    budget = seats + rng.choice([0, 0, 1, 2, 4, 10, 100])
    limits: dict[str, Any] = {
        "max_num_seqs": seats,
        "max_queue": rng.choice([1, 2, 3, 5, 50] if storm else [0, 0, 1, 2, 3, 50]),
        "max_num_batched_tokens": budget,
        "prefill_chunk": any_chunk(rng, budget),
        "max_iterations": rng.choice([1, 2, 3, 5, 8, 13]) if rng.random() < 0.2 else NEVER,
        "priority_preemption": storm or rng.random() < 0.6,
    }
    arrivals_first = rng.choice([None, True, False])  # None: left out, the default holds
    if arrivals_first is not None:
        limits["arrivals_first"] = arrivals_first
    return limits


def any_chunk(rng: Random, budget: int) -> int:
    return rng.choice([1, 1, 2, 3, 4, budget, budget + 1, 1_000_000])


def names(rng: Random, count: int) -> list[str]:
    """Names whose alphabetical order is neither the input order nor the numerical one."""
    numbers = list(range(1, count + 1))
    if rng.random() < 0.5:
        numbers.reverse()
    return [f"r{number}" for number in numbers]


def any_arrivals(rng: Random, count: int) -> list[int]:
    kind = rng.choice(["together", "bursts", "spread", "dense", "gaps"])
    if kind == "together":
        arrivals = [rng.choice([0, 0, 3])] * count
    elif kind == "bursts":
        instants = [rng.randint(0, 12) for _ in range(rng.randint(1, 3))]
        arrivals = [rng.choice(instants) for _ in range(count)]
    elif kind == "spread":
        arrivals = [rng.randint(0, 5 * count) for _ in range(count)]
    elif kind == "dense":
        arrivals = [rng.randint(0, max(1, count // 2)) for _ in range(count)]
    else:
        arrivals = gap_arrivals(rng, count)
    return reorder(rng, arrivals)


def gap_arrivals(rng: Random, count: int) -> list[int]:
    arrivals = []
    now = rng.choice([0, 0, 6])
    for _ in range(count):
        arrivals.append(now)
        now += rng.choice([0, 0, 1, 2, 30, 150])
    return arrivals


def reorder(rng: Random, arrivals: list[int]) -> list[int]:
    order = rng.choice(["sorted", "sorted", "shuffled", "reversed"])
    arrivals = sorted(arrivals, reverse=order == "reversed")
    if order == "shuffled":
        rng.shuffle(arrivals)
    return arrivals


def storm_arrivals(rng: Random, count: int) -> list[int]:
    """A few instants close together, several requests in each: what comes later finds the seats taken."""
    instants = sorted(rng.randint(0, 6) for _ in range(rng.randint(1, 4)))
    return reorder(rng, [rng.choice(instants) for _ in range(count)])


def storm_priorities(rng: Random, arrivals: list[int]) -> list[int]:
    """The later the more urgent, mostly; inside one instant the input order makes some more urgent too."""
    priorities = []
    for position, arrival in enumerate(arrivals):
        urgent = -arrival if rng.random() < 0.8 else rng.randint(-6, 3)
        priorities.append(urgent - (position % 3 if rng.random() < 0.4 else 0))
    return priorities


def any_priorities(rng: Random, count: int) -> list[int | str]:
    pool = rng.choice(PRIORITY_POOLS)
    return [rng.choice(pool) for _ in range(count)]


def any_lengths(rng: Random, count: int) -> list[tuple[int, int]]:
    """Pairs of prompt and output; `equal` makes all remaining work tie at first, `swapped` ties the sums."""
    kind = rng.choice(["equal", "swapped", "mixed", "mixed", "tiny"])
    if kind == "equal":
        return [(rng.randint(1, 9), rng.randint(1, 6))] * count
    if kind == "swapped":
        total = rng.randint(2, 12)
        prompts = [rng.randint(1, total - 1) for _ in range(count)]
        return [(prompt, total - prompt) for prompt in prompts]
    if kind == "tiny":
        return [(rng.randint(1, 2), rng.randint(1, 2)) for _ in range(count)]
    prompts = [rng.choice([1, 2, 3, 4, 6, 7, 12, 40]) for _ in range(count)]
    return [(prompt, rng.choice([1, 1, 2, 3, 5, 9, 45])) for prompt in prompts]
