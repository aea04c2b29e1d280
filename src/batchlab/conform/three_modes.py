"""Cases of the second worked example: static, continuous and chunked on one load, time in cost units."""

from typing import Any

from batchlab.conform.compare import Difference, compare, compare_steps
from batchlab.errors import InputError
from batchlab.events import Event, Iteration
from batchlab.metrics.fold import Summary
from batchlab.policies import find, settings_of
from batchlab.scenario import build
from batchlab.simulation import Run, simulate
from batchlab.units import counted

MODES = ("static", "continuous", "chunked")


def run_case(case: dict[str, Any]) -> tuple[str, Difference | None]:
    """A one-line detail, and the first difference over the modes."""
    _require_tables(case)
    details = []
    for mode, expected in case["expected"].items():
        refused = "error" in expected
        try:
            got = replay(_run(case, mode))
        except InputError as error:
            if not refused:
                return "", Difference(f"{mode}: configuration", "accepted", f"refused: {error}")
            details.append(f"{mode} refused as it must be")
            continue
        if refused:
            return "", Difference(f"{mode}: configuration", f"refused: {expected['error']}", "accepted")
        found = compare_steps(expected["trace"], got["trace"], f"{mode}: iteration")
        found = found or compare_steps(expected["requests"], got["requests"], f"{mode}: request")
        found = found or compare({**expected, "trace": 0, "requests": 0}, {**got, "trace": 0, "requests": 0}, mode)
        if found:
            return "", found
        details.append(f"{mode} {counted(len(got['trace']), 'iteration')}")
    return ", ".join(details), None


def _require_tables(case: dict[str, Any]) -> None:
    for place, value in [("cost", case.get("cost", {})), *((f"expected.{m}", e) for m, e in case["expected"].items())]:
        if not isinstance(value, dict):
            raise InputError(None, place, value, "must be an object")
        for name in ("trace", "requests") if place != "cost" and "error" not in value else ():
            if not isinstance(value.get(name), list):
                raise InputError(None, f"{place}.{name}", value.get(name), "must be a list")


def _run(case: dict[str, Any], mode: str) -> Run:
    others = {name for other in MODES for name in settings_of(find(other))} - {*settings_of(find(mode))}
    document = {
        "engine": {
            "policy": mode,
            **{key: value for key, value in case["limits"].items() if key not in others},
        },
        "cost": {"model": "linear", "unit": "cost unit", **case.get("cost", {})},
        "workload": {"requests": case["requests"]},
    }
    return build(document).runs[0]


def replay(run: Run) -> dict[str, Any]:
    """Run it, and say the result in the example's own shape."""
    summary = Summary()
    trace: list[dict[str, Any]] = []

    def record(event: Event) -> None:
        if isinstance(event, Iteration):
            actions = [f"{id}:{phase}:{tokens}" for id, phase, tokens in event.scheduled]
            trace.append({"start": event.start, "end": event.end, "actions": actions})

    end = simulate(run, [summary, record])
    requests = [
        {
            "name": result.request.id,
            "ttft": result.since_arrival(result.first_time),
            "e2e": result.since_arrival(result.completed_time),
            "max_itl": result.max_itl,
            "output_times": result.output_times,
        }
        for result in summary.results
    ]
    return {"finish": end.time, "requests": requests, "trace": trace}
