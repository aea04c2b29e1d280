"""Writes docs/accuracy-roofline.md: the cost model `roofline` beside measured times of real engines.

Run: .venv/bin/python docs/accuracy_roofline.py FOLDER

FOLDER holds the measurements, which are not part of this repository: splitwise/perf_model.csv, sarathi-yi-34b/prefill.csv,
decode.csv and hybrid.csv, distserve-a100/profiler-a100-80g.*.json and max_num_tokens.csv, each as its project publishes it.
"""

import csv
import json
import math
import random
import sys
from collections import defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path
from statistics import fmean, median
from typing import Any, NamedTuple

from batchlab import Summary, simulate
from batchlab.catalog import llm_names
from batchlab.core.work import Work
from batchlab.costs.roofline import Roofline
from batchlab.scenario import build

OUTPUT = Path(__file__).parent / "accuracy-roofline.md"
FITTED = {
    "compute_efficiency": (0.1, 1.0),
    "bandwidth_efficiency": (0.1, 1.0),
    "allreduce_us": (1.0, 1000.0),
    "step_us": (10.0, 100_000.0),
}
"""What calibration may change, and its bounds."""
BARE = {"allreduce_us": 0.0, "step_us": 0.0}


class Point(NamedTuple):
    """One measured step, or the mean of equal ones."""

    source: str
    gpu: str
    llm: str
    tensor_parallel: int
    kind: str
    label: str
    work: Work
    ns: float


def step(prefills: Iterable[tuple[int, int]] = (), decodes: int = 0, context: float = 0) -> Work:
    """What a step computes: prefills (tokens, computed before), and so many decodes of equal context."""
    work = Work()
    work.chunks = list(prefills)
    work.prefill_tokens = sum(tokens for tokens, _ in work.chunks)
    work.prefill_context = sum(tokens + before for tokens, before in work.chunks)
    work.decode_tokens = decodes
    work.contexts = [round(context)] * decodes
    work.context_tokens = work.prefill_context + sum(work.contexts)
    work.samples = len(work.chunks) + decodes
    return work


def splitwise(folder: Path) -> list[Point]:
    """Medians over repeats; a decode has the mean context of the tokens it is the mean of."""
    groups: dict[tuple[str, ...], list[tuple[float, float]]] = defaultdict(list)
    names = ("model", "hardware", "tensor_parallel", "prompt_size", "batch_size", "token_size")
    for row in rows(folder / "splitwise/perf_model.csv"):
        groups[tuple(row[name] for name in names)].append((float(row["prompt_time"]), float(row["token_time"])))
    gpus = {"a100-80gb": "a100-80-sxm", "h100-80gb": "h100-sxm"}  # not the power-capped H100, which is another GPU
    found = []
    for (model, hardware, tensor, *sizes), times in groups.items():
        if hardware not in gpus:
            continue
        prompt, batch, output = (int(float(size)) for size in sizes)
        llm = {"llama2-70b": "llama-2-70b"}.get(model, model)
        setup = ("Splitwise", gpus[hardware], llm, int(tensor))
        label = f"prompt {prompt}, batch {batch}, output {output}"
        first, each = (median(column) * 1e6 for column in zip(*times, strict=True))
        if output == 128:  # the same prefill again with every other length of output
            found.append(Point(*setup, "prefill", label, step([(prompt, 0)] * batch), first))
        found.append(Point(*setup, "decode", label, step(decodes=batch, context=prompt + output / 2), each))
    return found


def sarathi(folder: Path) -> list[Point]:
    """Yi-34B on two A100 joined by NVLink. The context of its decodes is not recorded: 1,024 is supposed."""
    setup = ("Sarathi-Serve", "a100-80-sxm", "yi-34b", 2)
    found = []
    for row in rows(folder / "sarathi-yi-34b/prefill.csv"):
        tokens = int(row["batch_num_tokens"])
        if tokens != 256:  # the first batch of all, a warm-up
            found.append(
                Point(*setup, "prefill", str(tokens), step([(tokens, 0)]), 1e9 * float(row["batch_execution_time"]))
            )
    for row in rows(folder / "sarathi-yi-34b/decode.csv"):
        batch = int(row["batch_num_tokens"])
        work = step(decodes=batch, context=1024)
        found.append(Point(*setup, "decode", str(batch), work, 1e9 * float(row["batch_execution_time"])))
    for row in rows(folder / "sarathi-yi-34b/hybrid.csv"):
        prefill, decodes = int(row["batch_num_prefill_tokens"]), int(row["batch_num_decode_tokens"])
        work = step([(prefill, 0)] if prefill else [], decodes, 1024)
        kind = "mixed" if prefill and decodes else "prefill" if prefill else "decode"
        found.append(Point(*setup, kind, f"{prefill}+{decodes}", work, 1e6 * float(row["batch_execution_time"])))
    return found


def distserve(folder: Path) -> list[Point]:
    """A grid out of the published fits: prefill ms = a + b tokens + c tokens^2, decode ms = a + b contexts + c batch."""
    found = []
    for engine in ("distserve", "vllm"):
        fits = json.loads((folder / f"distserve-a100/profiler-a100-80g.{engine}.json").read_text())
        for model, by_tensor in fits.items():
            for tensor, fit in by_tensor.items():
                setup = (f"DistServe's fit, {engine}", "a100-80-sxm", model.removeprefix("facebook/"), int(tensor))
                a, b, c = fit["prefill"]
                for tokens in (256, 512, 1024, 2048):
                    ms = a + b * tokens + c * tokens**2
                    found.append(Point(*setup, "prefill", str(tokens), step([(tokens, 0)]), ms * 1e6))
                for batch in (1, 8, 32, 128):
                    small = batch < fit["decoding_large_small_bs_threshold"]
                    a, b, c = fit["decoding_smallbs" if small else "decoding_largebs"]
                    for context in (256, 1024):
                        ms = a + b * batch * context + c * batch
                        label = f"batch {batch}, context {context}"
                        found.append(Point(*setup, "decode", label, step(decodes=batch, context=context), ms * 1e6))
    return found


def rows(path: Path) -> list[dict[str, str]]:
    with path.open(encoding="utf-8") as file:
        return list(csv.DictReader(file))


def errors(points: Iterable[Point], settings: Mapping[str, Any]) -> list[float]:
    """Signed error of each point, as a share: 0.1 says 10 % too long."""
    models: dict[tuple[Any, ...], Roofline] = {}
    found = []
    for p in points:
        key = (p.gpu, p.llm, p.tensor_parallel)
        if key not in models:
            models[key] = Roofline(gpu=p.gpu, llm=p.llm, tensor_parallel=p.tensor_parallel, **settings)
        found.append(models[key].duration(p.work) / p.ns - 1)
    return found


def calibrated(points: list[Point]) -> dict[str, float]:
    """Settings that make the mean absolute log error least: coordinate descent with ever smaller factors."""

    def badness(settings: Mapping[str, float]) -> float:
        return fmean(abs(math.log1p(error)) for error in errors(points, settings))

    best = {"compute_efficiency": 0.6, "bandwidth_efficiency": 0.8, "allreduce_us": 48.0, "step_us": 130.0}
    least, factor = badness(best), 4.0
    while factor > 1.01:
        improved = False
        for name, (low, high) in FITTED.items():
            for times in (factor, 1 / factor):
                tried = best | {name: min(high, max(low, best[name] * times))}
                if (now := badness(tried)) < least - 1e-9:
                    best, least, improved = tried, now, True
        if not improved:
            factor = math.sqrt(factor)
    return best


def percentile(values: list[float], share: float) -> float:
    """Linear between the two nearest ranks."""
    ordered = sorted(values)
    at = share * (len(ordered) - 1)
    low = math.floor(at)
    return ordered[low] + (at - low) * (ordered[min(low + 1, len(ordered) - 1)] - ordered[low])


def cells(found: list[float]) -> str:
    """P10, P50, P90 of the signed errors and the mean of the absolute ones, in %."""
    signed = " | ".join(f"{100 * percentile(found, share):+.0f}" for share in (0.1, 0.5, 0.9))
    return f"{len(found)} | {signed} | {100 * fmean(map(abs, found)):.0f}"


def by(points: list[Point], *names: str) -> dict[tuple[Any, ...], list[Point]]:
    groups: dict[tuple[Any, ...], list[Point]] = defaultdict(list)
    for p in points:
        groups[tuple(getattr(p, name) for name in names)].append(p)
    return groups


def possible(p: Point) -> bool:
    """Whether the GPUs' peaks allow this time at all; if not, the step was not what its label says."""
    peak = {"compute_efficiency": 1.0, "bandwidth_efficiency": 1.0, "link_efficiency": 1.0} | BARE
    return errors([p], peak)[0] <= 0


def half(points: list[Point]) -> tuple[list[Point], list[Point]]:
    """Two halves by chance, the same at every run."""
    shuffled = list(points)
    random.Random(2026).shuffle(shuffled)
    return shuffled[: len(shuffled) // 2], shuffled[len(shuffled) // 2 :]


def steps_table(points: list[Point]) -> str:
    lines = [
        "| source | GPU | model | step | n | P10 | P50 | P90 | mean abs | without the two fixed times |",
        "| --- | --- | --- | --- | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    for key, group in by(points, "source", "gpu", "llm", "kind").items():
        bare = 100 * fmean(map(abs, errors(group, BARE)))
        lines.append(f"| {' | '.join(key)} | {cells(errors(group, {}))} | {bare:.0f} |")
    everything = 100 * fmean(map(abs, errors(points, BARE)))
    lines.append(f"| all | | | | {cells(errors(points, {}))} | {everything:.0f} |")
    return "\n".join(lines)


def calibration_table(points: list[Point]) -> str:
    names = " | ".join(FITTED)
    lines = [
        f"| source | GPU | model | {names} | n | P10 | P50 | P90 | mean abs | same points, defaults |",
        f"| --- | --- | --- |{' ---: |' * (len(FITTED) + 6)}",
    ]
    held_out: list[float] = []
    fits: dict[tuple[str, ...], dict[str, float]] = {}
    for key, group in by(points, "source", "gpu", "llm").items():
        fitting, checking = half(group)
        fits[key] = calibrated(fitting)
        found = errors(checking, fits[key])
        held_out += found
        values = " | ".join(f"{fits[key][name]:.3g}" for name in FITTED)
        default = 100 * fmean(map(abs, errors(checking, {})))
        lines.append(f"| {' | '.join(key)} | {values} | {cells(found)} | {default:.0f} |")
    lines.append(f"| all |{' |' * (2 + len(FITTED))} {cells(held_out)} | |")
    return "\n".join(lines)


def transfer_table(points: list[Point]) -> str:
    """What was calibrated on one GPU, used on the other; Splitwise has the same engine and models on both."""
    lines = [
        "| model | calibrated on | used on | n | P10 | P50 | P90 | mean abs |",
        "| --- | --- | --- |" + " ---: |" * 5,
    ]
    groups = by([p for p in points if p.source == "Splitwise"], "llm", "gpu")
    for (llm, gpu), group in groups.items():
        (other,) = (key for key in groups if key[0] == llm and key[1] != gpu)
        lines.append(f"| {llm} | {gpu} | {other[1]} | {cells(errors(groups[other], calibrated(group)))} |")
    return "\n".join(lines)


def runs_table(folder: Path) -> str:
    """Whole runs of vLLM 0.19.0, simulated from their arrivals and lengths alone."""
    lines = [
        "| run | KV blocks | TTFT | TPOT | E2E latency |",
        "| --- | --- | ---: | ---: | ---: |",
    ]
    for name, gpu, seats, measured in (
        ("rtx4090", "rtx-4090", 256, 2588),
        ("rtxpro6000", "rtx-pro-6000", 128, None),
    ):
        requests = folder / f"vllm-0.19-{name}-llama-3.1-8b" / "requests.jsonl"
        truth = measured_latencies(requests)
        for blocks in (None, measured) if measured else (None,):
            count, found = simulated_latencies(requests, gpu, seats, blocks)
            shown = " | ".join(off(ours, real) for ours, real in zip(found, truth, strict=True))
            kind = "as measured" if blocks else "by the formula"
            lines.append(f"| Llama-3.1-8B on {gpu} | {count:,} {kind} | {shown} |")
    return "\n".join(lines)


def off(ours: list[float], real: list[float]) -> str:
    """Errors of the mean and of the P99, in %."""
    mean, tail = fmean(ours) / fmean(real), percentile(ours, 0.99) / percentile(real, 0.99)
    return f"{100 * (mean - 1):+.0f}, {100 * (tail - 1):+.0f}"


def measured_latencies(requests: Path) -> list[list[float]]:
    """TTFT, TPOT and end-to-end latency in ns. Arrivals are of another clock: the least delay to the queue joins them."""
    entries = [json.loads(line) for line in requests.read_text().splitlines()]
    offset = min(e["queued_ts"] - e["arrival_time"] for e in entries)
    first = [e["first_token_ts"] - e["arrival_time"] - offset for e in entries]
    whole = [e["last_token_ts"] - e["arrival_time"] - offset for e in entries]
    each = [
        (e["last_token_ts"] - e["first_token_ts"]) / (e["output_toks"] - 1) for e in entries if e["output_toks"] > 1
    ]
    return [[1e9 * value for value in values] for values in (first, each, whole)]


def simulated_latencies(requests: Path, gpu: str, seats: int, blocks: int | None) -> tuple[int, list[list[float]]]:
    """The usable KV blocks, and TTFT, TPOT and end-to-end latency in ns."""
    engine: dict[str, Any] = {"policy": "vllm", "max_num_seqs": seats, "max_num_batched_tokens": 2048}
    engine |= {"async_scheduling": True, "max_model_len": 32768}
    engine |= {"gpu_memory_utilization": 0.9} if blocks is None else {"num_gpu_blocks": blocks}
    columns = {"arrival": "arrival_time", "prompt": "input_toks", "output": "output_toks"}
    document = {
        "engine": engine,
        "cost": {"model": "roofline", "gpu": gpu, "llm": "llama-3.1-8b"},
        "workload": {"file": requests.name, "format": "jsonl", "columns": columns, "time_unit": "s", "sort": True},
    }
    (run,) = build(document, folder=requests.parent).runs
    summary = Summary()
    simulate(run, [summary])
    results = [r for r in summary.results if r.first_time is not None and r.completed_time is not None]
    assert len(results) == len(summary.results), "a request without a result"
    first = [float(r.first_time - r.request.arrival) for r in results]
    whole = [float(r.completed_time - r.request.arrival) for r in results]
    each = [(r.completed_time - r.first_time) / (r.emitted - 1) for r in results if r.emitted > 1]
    assert run.limits.num_gpu_blocks is not None
    return run.limits.num_gpu_blocks + 1, [first, each, whole]


CAPACITIES = [  # tokens of KV memory
    ("RTX 4090, a vLLM 0.19.0 at its start", "rtx-4090", "llama-3.1-8b", 1, 2048, 2588 * 16),
    ("vLLM's paper", "a100-40", "opt-13b", 1, 2560, 15_700),
    ("vLLM's paper", "a100-40", "opt-66b", 4, 2560, 9_700),
    ("vLLM's paper", "a100-80-sxm", "opt-175b", 8, 2560, 60_100),
]
"""vLLM of then took at most 2560 tokens in a step."""


def memory_table(folder: Path) -> str:
    lines = [
        "| source | GPU | model | TP | tokens stated | formula at 0.9 | error, % | at 0.95 | error, % |",
        "| --- | --- | --- |" + " ---: |" * 6,
    ]
    listed = [
        (
            "DistServe",
            "a100-80-sxm",
            row["model"].removeprefix("facebook/"),
            int(row["tp"]),
            2560,
            int(row["max_num_tokens"]),
        )
        for row in rows(folder / "distserve-a100/max_num_tokens.csv")
        if row["pp"] == "1" and row["model"].removeprefix("facebook/") in llm_names()
    ]
    for source, gpu, llm, tensor, tokens, stated in CAPACITIES + listed:
        model = Roofline(gpu=gpu, llm=llm, tensor_parallel=tensor)
        ours = [16 * model.memory(share, tokens).blocks(16) for share in (0.9, 0.95)]
        shown = " | ".join(f"{one:,} | {100 * (one / stated - 1):+.1f}" for one in ours)
        lines.append(f"| {source} | {gpu} | {llm} | {tensor} | {stated:,} | {shown} |")
    return "\n".join(lines)


def decodes_by_tensor(points: list[Point]) -> str:
    """Median error of Splitwise's decodes for each number of GPUs."""
    decodes = [p for p in points if p.source == "Splitwise" and p.llm == "llama-2-70b" and p.kind == "decode"]
    groups = by(decodes, "gpu", "tensor_parallel")
    return ", ".join(
        f"{100 * percentile(errors(groups[key], {}), 0.5):+.0f} on {key[1]} x {key[0]}" for key in sorted(groups)
    )


def page(folder: Path) -> str:
    points = splitwise(folder) + sarathi(folder) + distserve(folder)
    used = [p for p in points if possible(p)]
    return PAGE.format(
        points=len(points),
        impossible=len(points) - len(used),
        steps=steps_table(used),
        calibration=calibration_table(used),
        transfer=transfer_table(used),
        runs=runs_table(folder),
        by_tensor=decodes_by_tensor(used),
        objective=Roofline(gpu="a100-80-sxm", llm="yi-34b", tensor_parallel=2).duration(step(decodes=32, context=4096))
        / 1e6,
        memory=memory_table(folder),
    )


PAGE = """# How wrong is `roofline`?

Made by `.venv/bin/python docs/accuracy_roofline.py FOLDER` from published measurements, which are not part of this repository.
Errors are signed, in %: +10 says that the model's time is 10 % too long. P10, P50 and P90 are over the points of a row; *mean abs*
is the mean of the errors without their sign.

- [Single steps, nothing fitted](#single-steps-nothing-fitted)
- [Calibrated on half of the points](#calibrated-on-half-of-the-points)
- [From one GPU to another](#from-one-gpu-to-another)
- [Whole runs](#whole-runs)
- [KV memory](#kv-memory)

## Single steps, nothing fitted

{points} points; {impossible} of them, Splitwise's prefills of 64 prompts at tensor parallelism 2, are left out: at the peaks of
the GPUs such a step takes longer than was measured, so no such step ran. Splitwise's are medians over repeats, its power-capped
H100 is not used; Sarathi-Serve's decodes are of unrecorded context, taken as 1,024, and its prefill of 256 tokens, the first
batch of all, is left out; DistServe publishes fitted coefficients, out of which a grid is made. All of these engines are of 2023
and 2024, before CUDA graphs and asynchronous scheduling took the host out of a decode's time. The last column is the mean
absolute error with `allreduce_us = 0` and `step_us = 0`.

{steps}

Prefills come out better than decodes, and decodes are nearly always predicted too short. The median error of Splitwise's decodes
of llama-2-70b by number of GPUs: {by_tensor}.
The more GPUs share a model the less bytes decide; fixed times do, and those of an engine of then are not in the defaults.
Sarathi-Serve's decode table disagrees with its own paper, whose objective of 0.2 s is five decodes of batch 32 at a context of 4k,
so 40 ms for one; the table says 88 ms, the model {objective:.1f} ms.

## Calibrated on half of the points

For each source, GPU and model the four settings are fitted to a random half of its points (least mean absolute log error) and
judged on the other half.

{calibration}

Many of Splitwise's decodes are batches of one that differ in the length of the output only, so that a random half knows much of
the other: these rows flatter. Single settings mean little: they make up for each other, and where one stands at its bound (1 for an efficiency, 1 and 10 for
the fixed times) the form of the model is wrong rather than the number.

## From one GPU to another

Splitwise has the same engine and models on two GPUs. Calibrated on all points of one, used on the other:

{transfer}

Calibrate on your own GPU: nothing here allows to expect that its efficiencies hold on another.

## Whole runs

vLLM 0.19.0 serving Llama-3.1-8B, 300 ShareGPT requests at 10 a second, predicted from the arrivals, the lengths and the settings
of the server; two signed errors each: of the mean, and of the P99. Nothing is fitted. The run on the 4090 is short of KV memory.
The server found 7.6 % of the prompt tokens in its prefix cache, which is not predicted: the texts are not known.

{runs}

Too slow on one GPU and too fast on the other, with the same efficiencies, by about the same amount. TTFT is worse than TPOT
because near saturation an error of the step's time adds up in the queue.

## KV memory

Tokens of KV memory that a server found room for, and what the formula says for `gpu_memory_utilization` 0.9 and 0.95. The 4090's
server had 0.9; `runtime_gib = 1.0` and `visible_memory = 0.98` are round numbers close to what that start shows, so the first
row is no test. The paper does not state its share, and DistServe's table looks computed rather than measured (two GPUs hold the
same in either kind of parallelism); for both 0.95 fits.

{memory}
"""

if __name__ == "__main__":
    OUTPUT.write_text(page(Path(sys.argv[1])), encoding="utf-8")
