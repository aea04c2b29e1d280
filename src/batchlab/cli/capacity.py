"""batchlab capacity."""

import sys
from dataclasses import replace
from typing import Any

import click
from rich.console import Console

from batchlab.cli.answers import SeveralWords
from batchlab.cli.documents import print_json
from batchlab.cli.large import milliseconds
from batchlab.cli.notes import note
from batchlab.cli.progress import counted_bar
from batchlab.cli.scenario_options import Changes, scenario_options
from batchlab.cli.tables import console, percent, print_folded, say, settings_line
from batchlab.errors import InputError
from batchlab.metrics.objectives import ATTAINMENT
from batchlab.plan import capacity as finding
from batchlab.plan.pool import cores
from batchlab.plan.probe import Probe
from batchlab.plan.trial import Trial, run_of

COUNT = "workload.generate.num_prompts"
FEW = 1000
"""Of fewer requests a P99 is the matter of less than ten."""

SHORT = 20
"""A load that lasts less than so many times a request's mean E2E is all beginning and end."""


@click.command(cls=SeveralWords)
@click.argument("scenario", type=click.Path())
@click.option("--slo", required=True, metavar="OBJECTIVES", help="What to meet: 'ttft:p99<=500ms,itl:p99<=50ms'")
@click.option(
    "--goodput",
    multiple=True,
    metavar="METRIC:MS ...",
    help="Targets of each request, for --slo 'attainment>=90%': ttft:500 tpot:50",
)
@scenario_options()
@click.option(
    "--requests", type=click.IntRange(2), metavar="N", help="Short for --set workload.generate.num_prompts=N."
)
@click.option(
    "--seeds", type=click.IntRange(1, 1000), default=5, show_default=True, metavar="N", help="Generated loads."
)
@click.option("--gpu-price", type=float, metavar="PRICE", help="Of one GPU for an hour: prints the cost of tokens.")
@click.option("--jobs", type=click.IntRange(1), metavar="N", help="Processes to run in.  [default: all cores]")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document instead of tables.")
def capacity(
    scenario: str,
    slo: str,
    goodput: tuple[str, ...],
    changes: Changes,
    requests: int | None,
    seeds: int,
    gpu_price: float | None,
    jobs: int | None,
    as_json: bool,
) -> None:
    """Find the highest request rate at which a SCENARIO meets objectives, and what binds there.

    The load is generated, or a trace whose times are stretched. A run whose queue grows does not meet them, nor one of
    which more than 1 % of the requests are not completed. Exits with 1 if no rate meets them.
    """
    if gpu_price is not None and not 0 < gpu_price < 1e9:
        raise InputError("--gpu-price", None, gpu_price, "must be a number above 0")
    trial = Trial(scenario, changes.fixed(scenario), changes.workload, slo, goodput)
    if requests is not None:
        finding.refuse_count(trial, requests)
        trial = replace(trial.with_settings({COUNT: requests}), options={COUNT: "--requests"})
    if gpu_price is not None and (unit := run_of(trial).cost.unit) != "ns":
        raise InputError("--gpu-price", None, gpu_price, f"needs a clock with seconds: this one counts in {unit}s")
    with counted_bar("capacity") as done:
        found = finding.find(trial, seeds, jobs or cores(), done)
    cost = None if gpu_price is None else finding.token_cost(found, gpu_price)
    if as_json:
        print_json(finding.document(found, trial, cost))
    else:
        _print(found, cost)
    if found.answer.met is None:
        sys.exit(1)
    _notes(found.answer.met)


def _notes(met: Probe) -> None:
    """Where the runs are too short for what is said of them, and what their cost model has to say."""
    for remark in met.remarks:
        note(f"at this rate {remark}")
    if met.requests < FEW:
        note(f"{met.requests:,} requests a run: a P99 is decided by fewer than {FEW // 100} of them")
    if met.span < SHORT * met.e2el:
        note(f"the load lasts less than {SHORT} times a request's mean E2E: not steady; give more requests")


def _print(found: finding.Capacity, cost: dict[str, Any] | None) -> None:
    out = console()
    unit = found.run.cost.unit
    per = "s" if unit == "ns" else unit
    say(out, settings_line(found.run))
    answer = found.answer
    if answer.sample.scaled:
        own = f"{answer.sample.rate:,.3g} {found.of}/{per}"
        say(out, f"the trace's times are stretched, all by one factor, so that its bursts stay; by itself it has {own}")
    if answer.met is None:
        say(out, f"no rate meets {found.slo}; at {_rate(answer.missed)} {found.of}/{per}, the lowest tried:")
    else:
        _say_answer(out, found, answer.met, cost)
    out.print()
    samples = _samples(found, unit, f"{found.of}/{per}")
    print_folded(out, samples, tuple(samples)[1:-1])
    out.print()
    changes = _changes(found, f"{found.of}/{per}")
    print_folded(out, changes, tuple(changes)[1:])
    say(out, f"binds: {finding.binding(found)}")


def _say_answer(out: Console, found: finding.Capacity, met: Probe, cost: dict[str, Any] | None) -> None:
    unit = found.run.cost.unit
    per = "s" if unit == "ns" else unit
    low, high = found.interval
    over = f"{len(found.found) - 1} parts of the trace" if found.answer.sample.scaled else f"{len(found.found)} seeds"
    between = f", {low:,.3g} to {high:,.3g} over {over}" if len(found.found) > 1 else ""
    say(out, f"capacity {found.answer.rate:,.3g} {found.of}/{per}{between}, at {found.slo}")
    span = f"{met.span / 1e9:,.0f} s" if unit == "ns" else f"{met.span:,} {unit}s"
    say(
        out,
        f"{met.requests:,} requests a run, {span} at that rate; "
        f"prompt mean {met.prompt_mean:,.1f}, output mean {met.output_mean:,.1f} tokens",
    )
    if found.answer.missed is None:
        say(out, "the search ended there without a miss: the objectives do not bind")
    if cost is not None:
        say(
            out,
            f"{cost['gpus']} GPU{'s' if cost['gpus'] > 1 else ''} at {cost['gpu_price']:g} an hour: "
            f"{cost['per_million_output_tokens']:.3g} per million output tokens, "
            f"{cost['per_million_tokens']:.3g} per million of prompt and output",
        )


def _samples(found: finding.Capacity, unit: str, rate: str) -> dict[str, list[str]]:
    """A row a sample: what was found at its capacity, and what was missed one step above."""
    probes = [one.met or one.missed for one in found.found]
    names = list(next((probe.values for probe in probes if probe is not None and probe.values), {}))
    mark = " (ms)" if unit == "ns" else ""
    columns = {"": [one.sample.name for one in found.found], rate: [_rate(probe) for probe in probes]}
    for name in names:
        values = [None if probe is None else probe.values.get(name) for probe in probes]
        heading = f"{name}{'' if name == ATTAINMENT else mark}"
        columns[heading] = [_value(name, value, unit) for value in values]
    columns["goodput"] = [
        "-" if probe is None or probe.goodput is None else f"{probe.goodput:,.3g}" for probe in probes
    ]
    missed_at = "missed" if found.answer.met is None else "one step above: missed"
    columns[missed_at] = [_misses(one.missed, unit) for one in found.found]
    return columns


def _misses(probe: Probe | None, unit: str) -> str:
    return "-" if probe is None else ", ".join(_miss(probe, figure, unit) for figure in probe.missed) or "-"


def _miss(probe: Probe, figure: str, unit: str) -> str:
    value = probe.values.get(figure)
    return figure if value is None else f"{figure} {_value(figure, value, unit)}"


def _changes(found: finding.Capacity, rate: str) -> dict[str, list[str]]:
    """A row a limit. Of the step time, which is no setting, a share."""
    rates = ["refused" if one.rate is None else f"{one.rate:,.3g}" if one.rate else "none" for one in found.changes]
    return {
        "changed alone": [one.name for one in found.changes],
        "from": [f"{one.before or 1:,}" for one in found.changes],
        "to": [f"{one.after:,}" if one.after else f"1/{finding.FACTOR}" for one in found.changes],
        rate: rates,
        "change": [finding.gain(found, one) for one in found.changes],
    }


def _rate(probe: Probe | None) -> str:
    return "-" if probe is None else f"{probe.rate:,.3g}"


def _value(figure: str, value: float | None, unit: str) -> str:
    if value is None:
        return "-"
    if figure == ATTAINMENT:
        return percent(value)
    return milliseconds(value) if unit == "ns" else f"{value:,.2f}"
