"""What recording costs a real vLLM, for each step of its scheduler.

    ./check vllm                                             # once: makes the environment
    PYTHONPATH=src .venv-vllm/bin/python benchmarks/recorder.py

vLLM's scheduler is driven without a model, in turn as it is and recorded, at several numbers of requests. A step's
cost is the median over its steps; the recorder's own is the difference of the quickest rounds, which other programs
have disturbed least. Beside it stands a step of a tiny model.
"""

import os
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "vllm"))

import serving

STEPS = 400
ROUNDS = 3
PROMPT = 64


def step_times(engine: Any, size: int, with_model: bool) -> list[float]:
    """us of each step in which `size` requests decode; without the model, of its scheduler alone."""
    from vllm import SamplingParams
    from vllm.v1.outputs import ModelRunnerOutput

    steps = STEPS if not with_model else 60
    sampling = SamplingParams(max_tokens=steps + 60, ignore_eos=True)
    for number in range(size):
        prompt = {"prompt_token_ids": [3 + (number + place) % 1990 for place in range(PROMPT)]}
        engine.add_request(f"r{time.monotonic_ns()}", prompt, sampling)
    core = engine.engine_core.engine_core
    scheduler = core.scheduler
    times: list[float] = []
    while len(times) < steps:
        start = time.perf_counter()
        if with_model:
            engine.step()
        else:
            plan = scheduler.schedule()
            ids = list(plan.num_scheduled_tokens)
            tokens = [[7] if not scheduler.requests[name].is_prefill_chunk else [] for name in ids]
            scheduler.update_from_output(
                plan, ModelRunnerOutput(ids, {name: place for place, name in enumerate(ids)}, tokens)
            )
        took = time.perf_counter() - start
        if len(scheduler.running) == size and not any(r.is_prefill_chunk for r in scheduler.running):
            times.append(took * 1e6)
    names = list(scheduler.requests)
    core.abort_requests(names)
    if with_model:
        engine.step()
    else:
        scheduler.schedule()
    return times


def median_of_rounds(rounds: list[float]) -> str:
    """A median, and how far the rounds lie apart."""
    return f"{statistics.median(rounds):7.0f} ({min(rounds):.0f} to {max(rounds):.0f})"


def main() -> None:
    """Print a line for each number of requests."""
    os.environ["VLLM_LOGGING_LEVEL"] = "ERROR"
    with tempfile.TemporaryDirectory() as folder:
        model = serving.make_model(Path(folder, "model"))
        settings = {"max_num_seqs": 256, "max_num_batched_tokens": 4096, "max_model_len": 640}
        settings |= {"num_gpu_blocks_override": 6000}
        found: dict[tuple[int, str], list[float]] = {}
        for round in range(ROUNDS):
            for name, scheduler in (("plain", None), ("recorded", serving.RECORDING)):
                trace = Path(folder, f"{round}.jsonl") if scheduler else None
                with serving.engine(model, trace, scheduler, **settings) as engine:
                    for size in (1, 8, 64, 256):
                        times = step_times(engine, size, with_model=False)
                        found.setdefault((size, name), []).append(statistics.median(times))
        print("us a step, median (lowest and highest of the rounds)")
        print("requests  scheduler as it is      recorded               the recorder's own")
        for size in (1, 8, 64, 256):
            plain, recorded = found[size, "plain"], found[size, "recorded"]
            own = min(recorded) - min(plain)
            print(f"{size:8} {median_of_rounds(plain):22} {median_of_rounds(recorded):22} {own:7.0f}")
        with serving.engine(model, None, None, **settings) as engine:
            took = statistics.median(step_times(engine, 8, with_model=True))
            print(f"a step of a tiny model with 8 requests: {took:,.0f} us")


if __name__ == "__main__":
    main()
