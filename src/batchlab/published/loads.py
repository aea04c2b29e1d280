"""The loads behind published results, made again by their rules or from their published figures."""

import math
import random
from functools import cache

from batchlab.clients.request import Request
from batchlab.units import NS_IN_S


@cache
def anyscale_outputs(cap: int) -> tuple[int, ...]:
    """The output lengths of Anyscale's benchmark, its very numbers: seed 0xCADE, a length above the cap drawn again.

    The benchmark draws the 1,000 prompts of 512 tokens first. A length of 0 is sent as 1.
    """
    import numpy  # takes time to import

    source = random.Random(0xCADE)
    for _ in range(1000):
        source.randint(512, 512)
    for _ in range(1000 * 512):
        source.randint(10, 50_000)
    generator = numpy.random.RandomState(source.randint(0, 1_000_000))
    lengths: list[int] = []
    while len(lengths) < 1000:
        drawn = round(generator.exponential(scale=128))
        if drawn <= cap:
            lengths.append(max(1, drawn))
    return tuple(lengths)


def anyscale(cap: int) -> list[Request]:
    """Its 1,000 requests, all at time 0."""
    return [Request(str(i), 0, 512, length, length) for i, length in enumerate(anyscale_outputs(cap))]


def orca(rate: float, count: int, seed: int) -> list[Request]:
    """Orca's synthetic requests: prompt U{32..512}, output U{1..128}, Poisson. rate 0: all at time 0."""
    source = random.Random(seed)
    time = 0.0
    requests = []
    for i in range(count):
        time += source.expovariate(rate) if rate else 0.0
        prompt, output = source.randint(32, 512), source.randint(1, 128)
        requests.append(Request(str(i), round(time * NS_IN_S), prompt, output, output))
    return requests


def sharegpt4(rate: float, count: int, seed: int) -> list[Request]:
    """Sarathi-Serve's sharegpt4 by its published medians and P90s: log-normal, 8,192 tokens together at most."""
    source = random.Random(seed)
    time = 0.0
    requests = []
    for i in range(count):
        time += source.expovariate(rate)
        total = prompt = output = 0
        while not (prompt and output and total <= 8192):
            prompt, output = _by_median_and_p90(source, 1730, 5696), _by_median_and_p90(source, 415, 834)
            total = prompt + output
        requests.append(Request(str(i), round(time * NS_IN_S), prompt, output, output))
    return requests


def _by_median_and_p90(source: random.Random, median: float, p90: float) -> int:
    return round(source.lognormvariate(math.log(median), math.log(p90 / median) / 1.2816))


def sharegpt(
    rate: float, seconds: float, seed: int, prompt_cv: float, output_cv: float, longest: int = 2048
) -> list[tuple[int, int, int]]:
    """ShareGPT by its published means, (arrival in ns, prompt, output): prompts log-normal, outputs gamma, Poisson."""
    source = random.Random(seed)
    variance = math.log(1 + prompt_cv**2)
    shape = 1 / output_cv**2
    time = 0.0
    found: list[tuple[int, int, int]] = []
    while True:
        time += source.expovariate(rate)
        if time > seconds:
            return found
        drawn = source.lognormvariate(math.log(161.31) - variance / 2, math.sqrt(variance))
        prompt = min(max(1, round(drawn)), longest // 2)
        output = min(max(1, round(source.gammavariate(shape, 337.99 / shape))), longest - prompt)
        found.append((round(time * NS_IN_S), prompt, output))
