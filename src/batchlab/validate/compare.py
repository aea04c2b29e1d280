"""Predicted beside measured: figures, signed errors, and how much an error of the step time is amplified."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from batchlab.metrics.latency import PERCENTILES, figures
from batchlab.simulate import Run
from batchlab.validate.recorded import Recorded
from batchlab.validate.replay import Replay, Scaled, replay

FIGURES = ("mean", *(f"p{percent}" for percent in PERCENTILES))
METRICS = {
    "ttft": "TTFT from arrival",
    "ttft_queued": "TTFT from queued_ts",
    "tpot": "TPOT",
    "e2e": "E2E from arrival",
}
"""Metric -> its name. vLLM sets queued_ts when the engine takes a request in, between two steps: a TTFT that is counted
from there leaves out the wait for the step that was running."""
STEP_CHANGE = 0.01


def samples(run: Recorded | Replay, output: Sequence[int]) -> dict[str, list[float]]:
    """The samples of each metric, s; TPOT of requests with two tokens or more."""
    last = list(zip(run.last, run.first, output, strict=True))
    return {
        "ttft": [first - sent for first, sent in zip(run.first, run.sent, strict=True)],
        "ttft_queued": [first - queued for first, queued in zip(run.first, run.queued, strict=True)],
        "tpot": [(end - first) / (tokens - 1) for end, first, tokens in last if tokens > 1],
        "e2e": [end - sent for end, sent in zip(run.last, run.sent, strict=True)],
    }


def compared(run: Recorded, found: Replay) -> dict[str, Any]:
    """Measured, predicted and signed error of each metric and figure, of throughput, and of the state over time."""
    output = run.requests.field("output")
    measured, predicted = (samples(one, output) for one in (run, found))
    metrics: dict[str, Any] = {}
    for name in METRICS:
        pair = figures(measured[name]), figures(predicted[name])
        if pair[0]["count"]:
            metrics[name] = {figure: _cell(pair[0][figure], pair[1][figure]) for figure in FIGURES}
    spans = max(run.last), max(found.last)
    tokens = sum(output)
    throughput = {
        "requests_per_s": _cell(*(len(output) / span for span in spans)),
        "output_tokens_per_s": _cell(*(tokens / span for span in spans)),
    }
    return {"latency_s": metrics, "throughput": throughput, "over_time": over_time(run, found)}


def over_time(run: Recorded, found: Replay) -> dict[str, dict[str, float]]:
    """Means of running, waiting and KV % at the recorded moments, and the mean absolute error."""
    states = [found.state_at(row["t"]) for row in run.series]
    of: dict[str, tuple[Callable[[Any], float], Callable[[Any], float]]] = {
        "running": (lambda row: row["running"], lambda state: state.running),
        "waiting": (lambda row: row["waiting"], lambda state: state.waiting),
        "kv_cache_pct": (lambda row: row["kv_cache_pct"], lambda state: 100 * state.kv_used),
    }
    recorded_kv = any(row["kv_cache_pct"] for row in run.series)
    if not recorded_kv or any(state.kv_used is None for state in states):
        del of["kv_cache_pct"]
    table = {}
    for name, (measured, predicted) in of.items() if states else ():
        pairs = [(measured(row), predicted(state)) for row, state in zip(run.series, states, strict=True)]
        table[name] = {
            "measured_mean": sum(m for m, _ in pairs) / len(pairs),
            "predicted_mean": sum(p for _, p in pairs) / len(pairs),
            "mean_absolute_error": sum(abs(p - m) for m, p in pairs) / len(pairs),
        }
    return table


def amplification(run: Run, recorded: Recorded) -> dict[str, dict[str, float]]:
    """By how many % each metric's mean and P99 move if all steps take 1 % longer: half the way from -1 to +1 %."""
    output = recorded.requests.field("output")
    ends = []
    for factor in (1 - STEP_CHANGE, 1 + STEP_CHANGE):
        found = replay(replace(run, cost=Scaled(run.cost, factor)), (), recorded.ranks, recorded.lockstep)
        ends.append({name: figures(values) for name, values in samples(found, output).items()})
    low, high = ends
    moved = {}
    for name in METRICS:
        if low[name]["count"]:
            moved[name] = {
                figure: 100 * (high[name][figure] - low[name][figure]) / (high[name][figure] + low[name][figure])
                for figure in ("mean", "p99")
                if high[name][figure] > 0
            }
    return moved


def _cell(measured: float, predicted: float) -> dict[str, float | None]:
    error = 100 * (predicted / measured - 1) if measured > 0 else None
    return {"measured": measured, "predicted": predicted, "error_pct": error}
