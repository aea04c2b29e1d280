"""Loads for an engine in this process, step by step, and what has to hold of their recordings."""

import random
from pathlib import Path
from typing import Any

import serving
from vllm import SamplingParams

from batchlab.conform.recorded import run_recording
from batchlab.trace.verify import verify


def drive(
    engine: Any, requests: int, seed: int, shared: bool = False, aborts: float = 0, longest: int = 60, ranks: int = 1
) -> dict[str, str]:
    """Random requests, most of them under way together. Returns the finish reason of all that got one.

    shared: prompts begin alike. aborts: how often a client gives up, one in two of them while a step is under way.
    """
    rng = random.Random(seed)
    core = engine.engine_core.engine_core
    base = [rng.randrange(3, serving.WORDS) for _ in range(300)]
    arrivals = [0]
    while len(arrivals) < requests:
        arrivals.append(arrivals[-1] + rng.choice((0, 0, 1, 2, 3, 5, 8)))
    reasons: dict[str, str] = {}
    there: list[str] = []
    step = number = 0
    while number < requests or engine.has_unfinished_requests():
        while number < requests and (arrivals[number] <= step or not engine.has_unfinished_requests()):
            prompt = [rng.randrange(3, serving.WORDS) for _ in range(rng.randint(1, 250))]
            if shared:
                alike = rng.randint(0, len(prompt))
                prompt[:alike] = base[:alike]
            sampling = SamplingParams(
                max_tokens=rng.randint(1, longest), ignore_eos=rng.random() < 0.7, temperature=rng.choice((0, 1))
            )
            there.append(f"r{number}")
            engine.add_request(
                there[-1], {"prompt_token_ids": prompt}, sampling, priority=rng.randrange(ranks) if ranks > 1 else 0
            )
            number += 1
        if there and rng.random() < aborts:
            gone = there.pop(rng.randrange(max(0, len(there) - 12), len(there)))
            if rng.random() < 0.5:
                engine.abort_request([gone])
            else:  # as the server's input thread does it: vLLM looks between the model's run and its tokens
                core.aborts_queue.put([name for name in core.scheduler.requests if name.rpartition("-")[0] == gone])
                engine.output_processor.abort_requests([gone], internal=False)
        for output in engine.step():
            if output.finished:
                reasons[output.request_id] = output.outputs[0].finish_reason
        step += 1
    return reasons


def holds(trace: Path) -> str:
    """The recording verifies, and our policy decides the same at every step. Returns what it holds, in a line."""
    report = verify(trace)
    assert report.ok, [str(violation) for violation in report.violations[:3]]
    detail, difference = run_recording(trace)
    assert difference is None, str(difference)
    return detail


def count(trace: Path, text: str) -> int:
    """How often a text stands in the recording."""
    return trace.read_text().count(text)
