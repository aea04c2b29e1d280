"""One run of a scenario with some settings changed, as a row of figures."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import Any

from batchlab.clients.columns import Columns
from batchlab.core.tally import RESULTS
from batchlab.errors import BatchlabError, InputError, SettingError
from batchlab.files import read_toml
from batchlab.metrics.answers import goals_of, targets_by_group, written
from batchlab.metrics.fold import Summary
from batchlab.metrics.latency import PERCENTILES, latencies
from batchlab.metrics.objectives import (
    ATTAINMENT,
    Objective,
    Objectives,
    Targets,
    good_in_groups,
    goodput,
    goodput_of,
    parse,
)
from batchlab.plan import attained
from batchlab.plan.grid import Grid, combinations, size_of
from batchlab.policies import find, limits_given
from batchlab.scenario import load, override
from batchlab.simulation import Run, simulate

REMARKS = "remarks"
POLICY = "engine.policy"
RATE = "workload.generate.request_rate"
FINISHED = "all_terminal"
MOST_TRIED = 300
"""Combinations in which a value is looked at, before it is called wrong in all of them."""
Row = dict[str, Any]


@dataclass(frozen=True)
class Trial:
    """What to run. overrides: values by dotted key; `engine.policy` among them runs that policy instead of the file's.

    slo: objectives as text, None without any. goodput: targets for each request, as texts; none: those of the
    objectives. options: key -> the option that gave its value where that is not --set, for errors to name.
    """

    scenario: str
    overrides: Mapping[str, Any] = field(default_factory=dict)
    workload: str | None = None
    slo: str | None = None
    goodput: tuple[str, ...] = ()
    options: Mapping[str, str] = field(default_factory=dict)

    def with_settings(self, overrides: Mapping[str, Any]) -> Trial:
        """The same with more settings changed."""
        return replace(self, overrides={**self.overrides, **overrides})


def parse_slo(text: str, goodput: Collection[Any] = ()) -> Objectives:
    """Objectives that runs can be held to. goodput: targets; `attainment` needs some. Raises InputError."""
    found = parse(text)
    for objective in found.objectives:
        if objective.metric == ATTAINMENT and not goodput:
            expected = "attainment needs targets for each request: --goodput ttft:500 tpot:50"
            raise InputError("--slo", None, objective.text, expected)
    return found


def summary_for(slo: str | None) -> Summary:
    """A summary that knows exactly what these objectives are about."""
    return Summary(each_gap=slo is not None and parse(slo).each_gap)


def percentiles_for(slo: str | None) -> list[Fraction]:
    """The usual percentiles, and those that the objectives speak of."""
    wanted = () if slo is None else parse(slo).percentiles()
    return sorted({*map(Fraction, PERCENTILES), *wanted})


@dataclass(frozen=True)
class Judged:
    """A run that has ended beside its objectives.

    found: each objective with its value and whether it is met. attained: each one's figure -> its share (see
    `attained`). good: what `goodput` counts, of the requests that meet all targets; None without targets.
    """

    found: list[tuple[Objective, float | None, bool]]
    attained: dict[str, float | None]
    good: dict[str, Any] | None


def targets_for(trial: Trial, goals: Mapping[str | None, str], unit: str) -> tuple[Targets, dict[str | None, Targets]]:
    """What each request is held to: targets for all, or of each class. Raises InputError.

    Those of `goodput` go before those that the classes state, and these before the bounds of the objectives.
    """
    if goals and not trial.goodput:
        return {}, targets_by_group(goals, unit)
    objectives = () if trial.slo is None else parse(trial.slo).objectives
    return attained.targets_of(objectives, trial.goodput, unit), {}


def targets_told(trial: Trial, run: Run) -> dict[str, Any]:
    """The same as JSON: `targets`, or `targets_of_groups`; nothing without any. Raises InputError."""
    targets, of_groups = targets_for(trial, goals_of(run.requests), run.cost.unit)
    if of_groups:
        return {"targets_of_groups": {name or "": written(own) for name, own in of_groups.items()}}
    return {"targets": written(targets)} if targets else {}


def judge(summary: Summary, trial: Trial, goals: Mapping[str | None, str]) -> Judged:
    """A run that has ended beside the objectives and targets of its trial. Raises InputError.

    goals: what its workload states for its classes, which counts where the trial has no targets for all.
    """
    assert summary.header is not None, "the run has not begun"
    unit, arrival = summary.header.clock["unit"], summary.column("arrival")
    objectives = () if trial.slo is None else parse_slo(trial.slo, trial.goodput or goals).objectives
    targets, targets_of = targets_for(trial, goals, unit)
    good = goodput(summary.tally, arrival, targets, unit) if targets else None
    if targets_of:
        met = good_in_groups(summary.tally, arrival, summary.groups(), targets_of)
        good = goodput_of(met, summary.tally, arrival, unit)
    figures = {**latencies(summary.tally, arrival, percentiles_for(trial.slo))}
    share = {} if good is None else {ATTAINMENT: good["attainment"]}
    found = Objectives(tuple(objectives)).check({**figures, **share}, unit)
    return Judged(found, attained.shares(objectives, summary.tally, arrival), good)


def run_of(trial: Trial) -> Run:
    """The checked run. Raises InputError, also where the scenario names several policies."""
    overrides = dict(trial.overrides)
    policy = overrides.pop(POLICY, None)
    _find_policy(policy, trial.options)
    try:
        runs = load(trial.scenario, overrides, () if policy is None else (policy,), trial.workload).runs
    except InputError as error:
        raise named(error, trial.options) from error.__cause__
    if len(runs) > 1:
        names = ", ".join(run.engine for run in runs)
        raise InputError(trial.scenario, POLICY, None, f"names several ({names}): choose with --set {POLICY}=NAME")
    return runs[0]


def named(error: InputError, options: Mapping[str, str]) -> InputError:
    """An error about a setting, with the option that gave it: `--grid KEY` where a scenario says `--set KEY`."""
    option, _, place = (error.file or "").partition(" ")
    for key, given_by in options.items():
        if option == "--set" and _is_within(place, key):
            error.file = f"{given_by} {place}"
            break
    return error


def refuse_bad_values(trial: Trial, values: Grid) -> None:
    """A value that no run can have is a slip, not a result; its option is among the trial's. Raises InputError.

    A value that is only wrong beside others, such as a token budget below the seats, is none.
    """
    for key, some in values.items():
        for value in some:
            if _is_about(_error_of(trial.with_settings({key: value})), trial, key):
                _refuse_everywhere(trial, values, key, value)
            if value != value:  # NaN, of which a policy of one's own may say nothing
                raise InputError(f"{trial.options.get(key, '--set')} {key}", None, value, "must be a number")


def _refuse_everywhere(trial: Trial, values: Grid, key: str, value: Any) -> None:
    """Raise InputError unless there is a run with this value that nothing is wrong with; those in which something else
    is say nothing of it."""
    refusal = None
    for error in _errors_in(trial, {**values, key: [value]}):
        if error is None:
            return
        if refusal is None and _is_about(error, trial, key):
            refusal = error
    if refusal is not None:
        raise refusal


def _errors_in(trial: Trial, grid: Grid) -> Iterator[InputError | None]:
    """What is wrong with each combination; of very many with those in which one value is not its key's first, which
    finds what one other value decides, and with some of the rest."""
    looked_at: list[dict[str, Any]] = []
    if size_of(grid) > MOST_TRIED:
        first = {key: some[0] for key, some in grid.items()}
        looked_at = [first, *({**first, key: value} for key, some in grid.items() for value in some[1:])]
        yield from (_error_of(trial.with_settings(settings)) for settings in looked_at)
    seen = {repr(settings) for settings in looked_at}
    rest = (settings for settings in combinations(grid, MOST_TRIED) if repr(settings) not in seen)
    yield from (_error_of(trial.with_settings(settings)) for settings in rest)


def refuse_shared(trial: Trial, values: Grid) -> None:
    """What is wrong with the scenario whatever these values are is no result of a combination. Raises InputError."""
    errors = _errors_in(trial, values)
    shared = next(errors)
    if shared is not None and all(str(error) == str(shared) for error in errors):
        raise shared


def _is_about(error: InputError | None, trial: Trial, key: str) -> bool:
    """Whether it is this key's value that is wrong, and not only beside another's."""
    if isinstance(error, SettingError) and error.beside is not None:
        return False
    option, _, place = ("" if error is None else error.file or "").partition(" ")
    return option == trial.options.get(key, "--set") and _is_within(place, key)


def _is_within(place: str, key: str) -> bool:
    return place == key or place.startswith((f"{key}.", f"{key}["))


def _error_of(trial: Trial) -> InputError | None:
    """What is wrong with a run, as far as the scenario and its policies' checks say it."""
    overrides = dict(trial.overrides)
    policy = overrides.pop(POLICY, None)
    try:
        _find_policy(policy, trial.options)
        load(trial.scenario, overrides, () if policy is None else (policy,), trial.workload)
    except InputError as error:
        return named(error, trial.options)
    except BatchlabError:  # a policy of one's own, whose rows will say what is wrong with it
        return None
    return None


def _find_policy(policy: Any, options: Mapping[str, str]) -> None:
    option = f"{options.get(POLICY, '--set')} {POLICY}"
    if policy is not None and not isinstance(policy, str):
        raise InputError(option, None, policy, "must be the name of one policy")
    try:
        if policy is not None:
            find(policy)
    except InputError as error:
        raise error if error.file is not None else InputError(option, None, policy, error.expected) from None


def document_of(trial: Trial) -> dict[str, Any]:
    """The scenario as it is written, with what is changed. Raises InputError where it cannot be read."""
    document, _ = read_toml(trial.scenario)
    override(document, trial.overrides)
    return document


def settings_of(run: Run) -> dict[str, Any]:
    """The settings of [engine] that a run has, by their own names, as a scenario would give them."""
    limits = limits_given(type(run.policy), vars(run.limits))
    return {key: value for key, value in (limits | dict(run.settings)).items() if value is not None}


def load_of(run: Run) -> dict[str, Any]:
    """Where the requests of a run come from, how many there are, and their mean lengths, as far as they are known."""
    columns = run.requests
    if not isinstance(columns, Columns):
        return {"requests": len(columns)}
    return {
        "source": None if columns.origin is None else columns.origin.lines()[0],
        "requests": len(columns),
        "prompt_mean": float(columns.prompt.mean()),
        "output_mean": float(columns.output.mean()),
    }


def rate_of(run: Run) -> str:
    """What a request rate counts: `requests`, or `sessions` where some are turns of them."""
    return "sessions" if isinstance(run.requests, Columns) and run.requests.has_turns else "requests"


def common(run: Run, varied: Collection[str]) -> dict[str, Any]:
    """What runs have in common that differ in the keys `varied`, of one of them: policy, settings, step times and load.

    `rate_of`: what a request rate counts. Left out is what these keys change, and the KV blocks that follow from the
    memory of the GPU.
    """
    settings, cost, load = settings_of(run), dict(run.cost.describe()), load_of(run)
    if "gpu_memory_utilization" in settings:
        settings.pop("num_gpu_blocks", None)
    if any(key.startswith("workload.") for key in varied):
        load.pop("source", None)
    if any(key.startswith("workload.") and key != RATE for key in varied):
        load = {}
    for key in varied:
        section, _, name = key.partition(".")
        {"engine": settings, "cost": cost}.get(section, {}).pop(name, None)
    several = POLICY in varied
    shaped = any(name in key for key in varied for name in ("turns", "classes", "workload.file"))
    return {
        "policy": None if several else run.engine,
        "engine": {} if several else settings,
        "cost_model": {} if "cost.model" in varied or "cost.gpu" in varied or "cost.llm" in varied else cost,
        "load": load,
        "rate_of": None if shaped else rate_of(run),
    }


def row_of(trial: Trial) -> Row:
    """The figures of a run under the names of its summary, with dots; what stops this run becomes its `error`.

    Times are in `unit`. With an slo there is `met`, `slo.NAME` with the value of each figure that it names, and
    `attained.NAME` with the share within it; with targets, `goodput` and `attainment`. What is to be said of
    settings and step times stands in `remarks`.
    """
    try:
        run = run_of(trial)
        summary = summary_for(trial.slo)
        simulate(run, [summary])
        remarks = run.remarks()
        return figures_of(summary, trial, goals_of(run.requests)) | ({REMARKS: "; ".join(remarks)} if remarks else {})
    except (BatchlabError, MemoryError) as error:
        return {"error": str(error) or "out of memory"}


def figures_of(summary: Summary, trial: Trial, goals: Mapping[str | None, str]) -> Row:
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
    judged = judge(summary, trial, goals)
    if trial.slo is not None:
        row["met"] = ending == FINISHED and all(met for _, _, met in judged.found)
        row |= {f"slo.{objective.figure}": value for objective, value, _ in judged.found}
        row |= {f"attained.{figure}": share for figure, share in judged.attained.items()}
    if judged.good is not None:
        row |= {name: judged.good[name] for name in ("goodput", "attainment")}
    return row
