"""Predicted beside measured: figures, signed errors, and how much an error of the step time is amplified."""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

from batchlab.metrics.latency import PERCENTILES, figures
from batchlab.simulation import Run
from batchlab.units import NS_IN_S
from batchlab.validate.recorded import Recorded
from batchlab.validate.replay import Replay, Scaled, check_served, replay

FIGURES = ("mean", *(f"p{percent}" for percent in PERCENTILES))
METRICS = {
    "ttft": "TTFT from arrival",
    "ttft_queued": "TTFT from queued_ts",
    "tpot": "TPOT",
    "e2e": "E2E from arrival",
    "itl": "ITL",
}
"""Metric -> its name. vLLM sets queued_ts when the engine takes a request in, between two steps: a TTFT that is counted
from there leaves out the wait for the step that was running."""
STEP_CHANGE = 0.01


def samples(one: Recorded | Replay, output: Sequence[int], picked: Sequence[bool]) -> dict[str, list[float]]:
    """The samples of each metric, s, of the requests picked; TPOT of those with two tokens or more."""
    chosen = [place for place, taken in enumerate(picked) if taken]
    sent, queued, first, last = (
        [times[place] for place in chosen] for times in (one.sent, one.queued, one.first, one.last)
    )
    tokens = [output[place] for place in chosen]
    return {
        "ttft": [f - s for f, s in zip(first, sent, strict=True)],
        "ttft_queued": [f - q for f, q in zip(first, queued, strict=True)],
        "tpot": [(e - f) / (n - 1) for e, f, n in zip(last, first, tokens, strict=True) if n > 1],
        "e2e": [e - s for e, s in zip(last, sent, strict=True)],
    }


def _completed(run: Recorded, found: Replay) -> list[bool]:
    """Which requests got their last token in both."""
    return [math.isfinite(one) and math.isfinite(other) for one, other in zip(run.last, found.last, strict=True)]


def _told(run: Recorded, metrics: Iterable[str]) -> list[str]:
    """Those of the metrics that the run has measured."""
    return [name for name in metrics if name != "ttft_queued" or run.taken_in]


def compared(run: Recorded, found: Replay) -> dict[str, Any]:
    """Measured, predicted and signed error of each metric and figure, of throughput, and of the state over time.

    Raises InputError where the simulation refuses a request that was served, or completes none of these.
    """
    check_served(run, found)
    output, both = run.output, _completed(run, found)
    measured, predicted = (samples(one, output, both) for one in (run, found))
    metrics: dict[str, Any] = {}
    for name in _told(run, measured):
        pair = figures(measured[name]), figures(predicted[name])
        if pair[0]["count"]:
            metrics[name] = {figure: _cell(pair[0][figure], pair[1][figure]) for figure in FIGURES}
    if run.itl is not None and found.itl is not None and run.itl["count"] and found.itl["count"]:
        metrics["itl"] = {f: _cell(run.itl[f] / NS_IN_S, found.itl[f] / NS_IN_S) for f in FIGURES}
    requests, tokens = sum(both), sum(n for n, taken in zip(output, both, strict=True) if taken)
    spans = [max(end for end, taken in zip(one.last, both, strict=True) if taken) for one in (run, found)]
    throughput = {
        "requests_per_s": _cell(*(requests / span for span in spans)),
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
    ends = []
    for factor in (1 - STEP_CHANGE, 1 + STEP_CHANGE):
        found = replay(replace(run, cost=Scaled(run.cost, factor)), (), recorded.ranks, recorded.lockstep)
        values = samples(found, recorded.output, _completed(recorded, found))
        ends.append({name: figures(of) for name, of in values.items()})
    low, high = ends
    moved = {}
    for name in _told(recorded, low):
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
