"""One run of a scenario with some settings changed, as a row of figures."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

from batchlab.core.tally import RESULTS
from batchlab.errors import BatchlabError, InputError
from batchlab.metrics.fold import Summary
from batchlab.metrics.latency import PERCENTILES, latencies
from batchlab.metrics.objectives import ATTAINMENT, Objective, Objectives, parse
from batchlab.scenario import load
from batchlab.simulate import Run, simulate

POLICY = "engine.policy"
FINISHED = "all_terminal"
Row = dict[str, Any]


@dataclass(frozen=True)
class Trial:
    """What to run. overrides: values by dotted key; `engine.policy` among them runs that policy instead of the file's.

    slo: objectives as text, None without any.
    """

    scenario: str
    overrides: Mapping[str, Any] = field(default_factory=dict)
    workload: str | None = None
    slo: str | None = None


def parse_slo(text: str) -> Objectives:
    """Objectives that runs of any scenario can be held to. Raises InputError."""
    found = parse(text)
    for objective in found.objectives:
        if objective.metric == ATTAINMENT:
            expected = "attainment needs targets for each request; give percentiles, such as ttft:p90<=500ms"
            raise InputError("--slo", None, objective.text, expected)
    return found


def percentiles_for(slo: str | None) -> list[Fraction]:
    """The usual percentiles, and those that the objectives speak of."""
    wanted = () if slo is None else parse_slo(slo).percentiles()
    return sorted({*map(Fraction, PERCENTILES), *wanted})


def checked(summary: Summary, slo: str) -> list[tuple[Objective, float | None, bool]]:
    """Each objective with the value found in a run that has ended, and whether it is met. Raises InputError."""
    assert summary.header is not None, "the run has not begun"
    figures = latencies(summary.tally, summary.column("arrival"), percentiles_for(slo))
    return parse_slo(slo).check(figures, summary.header.clock["unit"])


def run_of(trial: Trial) -> Run:
    """The checked run. Raises InputError, also where the scenario names several policies."""
    overrides = dict(trial.overrides)
    policy = overrides.pop(POLICY, None)
    if policy is not None and not isinstance(policy, str):
        raise InputError(f"--set {POLICY}", None, policy, "must be the name of one policy")
    runs = load(trial.scenario, overrides, () if policy is None else (policy,), trial.workload).runs
    if len(runs) > 1:
        names = ", ".join(run.engine for run in runs)
        raise InputError(trial.scenario, POLICY, None, f"names several ({names}): choose with --set {POLICY}=NAME")
    return runs[0]


def row_of(trial: Trial) -> Row:
    """The figures of a run under the names of its summary, with dots; what stops this run becomes its `error`.

    Times are in `unit`. With an slo there is `met`, and `slo.NAME` with the value of each figure that it names.
    """
    try:
        run = run_of(trial)
        summary = Summary()
        simulate(run, [summary])
        return figures_of(summary, trial.slo)
    except (BatchlabError, MemoryError) as error:
        return {"error": str(error) or "out of memory"}


def figures_of(summary: Summary, slo: str | None) -> Row:
    """The row of a run that has ended. Raises InputError for objectives that do not fit its clock."""
    document = summary.document(with_requests=False)
    ending = document["termination"]
    row: Row = {
        "error": None if ending == FINISHED else f"the run did not come to its end: {ending}",
        "engine": document["engine"],
        "unit": document["unit"],
        "termination": ending,
        "iterations": document["iterations"],
        "time": document["time"],
    }
    row |= {f"results.{name}": document["results"].get(name, 0) for name in RESULTS}
    row |= {
        f"{metric}.{name}": float(value) if isinstance(value, int) and name != "count" else value
        for metric, figures in document["latency"].items()
        for name, value in figures.items()
        if name != "error"
    }
    row |= {name: document["throughput"][name] for name in ("output_tokens", "request_rate", "output_token_rate")}
    totals = document["totals"]
    totals["rejections"] = sum(totals["rejections"].values())
    row |= {f"totals.{name}": value for name, value in totals.items()}
    if slo is not None:
        found = checked(summary, slo)
        row["met"] = ending == FINISHED and all(met for _, _, met in found)
        row |= {f"slo.{objective.figure}": value for objective, value, _ in found}
    return row
