"""Cases of the first worked example: decode and prefill lists, whole-run figures."""

from typing import Any

from batchlab.conform.compare import Difference, compare, compare_steps
from batchlab.errors import InputError
from batchlab.events import Event, Iteration
from batchlab.metrics.fold import Summary
from batchlab.metrics.result import RequestResult
from batchlab.scenario import build
from batchlab.simulation import Run, simulate
from batchlab.units import counted


def run_case(case: dict[str, Any]) -> tuple[str, Difference | None]:
    """A one-line detail, and the first difference."""
    expected = case["expected"]
    if "error" not in expected and not isinstance(expected["trace"], list):
        raise InputError(None, "expected.trace", expected["trace"], "must be a list")
    try:
        got = replay(_run(case))
    except InputError as error:
        if "error" not in expected:
            return "refused", Difference("configuration", "accepted", f"refused: {error}")
        return f"refused as it must be: {error}", None
    if "error" in expected:
        return "", Difference("configuration", f"refused: {expected['error']}", "accepted")
    detail = f"{counted(len(got['trace']), 'iteration')}, {counted(len(got['requests']), 'request')}"
    found = compare_steps(expected["trace"], got["trace"], "iteration")
    return detail, found or compare({**expected, "trace": None}, {**got, "trace": None}, "")


def _run(case: dict[str, Any]) -> Run:
    limits = dict(case["limits"])
    run = {"max_iterations": limits.pop("max_iterations")} if "max_iterations" in limits else {}
    document = {
        "engine": {"policy": "decode-first", **limits},
        "cost": {"model": "unit"},
        "run": run,
        "workload": {"requests": case["requests"]},
    }
    return build(document).runs[0]


def replay(run: Run) -> dict[str, Any]:
    """Run it, and say the result in the example's own shape."""
    summary = Summary()
    trace: list[dict[str, Any]] = []

    def record(event: Event) -> None:
        if isinstance(event, Iteration):
            trace.append(_record(event))

    end = simulate(run, [summary, record])
    return {
        "termination": end.termination,
        "trace": trace,
        "requests": {result.request.id: _result(result) for result in summary.results},
        "max_queue_length": summary.max_queue_length,
        "preemptions": summary.tally.preemptions,
        "rejections": sum(summary.tally.rejections.values()),
        "unused_budget": [record["unused_budget"] for record in trace],
    }


def _record(event: Iteration) -> dict[str, Any]:
    return {
        "iteration": event.iteration,
        "decode": [id for id, phase, _ in event.scheduled if phase == "decode"],
        "prefill": [[id, tokens] for id, phase, tokens in event.scheduled if phase == "prefill"],
        "prefill_emitted": event.prefill_done,
        "preempted": [preemption.id for preemption in event.preempted],
        "rejected": [rejection.id for rejection in event.rejected],
        "completed": event.completed,
        "queue": event.queue,
        "active": event.active,
        "unused_budget": event.unused,
    }


def _result(result: RequestResult) -> dict[str, Any]:
    return {
        "first_output": result.first_iteration,
        "completed": result.completed_iteration,
        "preemptions": result.preemptions,
        "result": result.result,
    }
