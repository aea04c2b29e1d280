"""batchlab capacity."""

import contextlib
import itertools
import sys
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import click
from rich.console import Console

from batchlab.cli.answers import SeveralWords, within
from batchlab.cli.columns import print_folded
from batchlab.cli.documents import print_json
from batchlab.cli.large import conditions, milliseconds, note_unshared
from batchlab.cli.notes import note
from batchlab.cli.progress import counted_bar
from batchlab.cli.scenario_options import Changes, scenario_options
from batchlab.cli.tables import console, percent, say
from batchlab.clients.columns import Columns
from batchlab.errors import InputError
from batchlab.metrics.objectives import ATTAINMENT, parse
from batchlab.plan import capacity as finding
from batchlab.plan.binding import FACTOR, Told, binding, gain
from batchlab.plan.pool import cores
from batchlab.plan.probe import Probe
from batchlab.plan.trial import Trial, run_of, targets_told
from batchlab.units import counted

GOODPUT = (
    "goodput: requests within {}, over the time to the end of the last: less than came, even where all are; "
    "attainment: their share of all{}"
)
NO_OBJECTIVE = ", no objective here: --slo 'attainment>=90%' makes it one"
RUNS = 10
"""That a search takes: some until it is missed (or met), and six or so of bisection."""


@click.command(cls=SeveralWords)
@click.argument("scenario", type=click.Path())
@click.option("--slo", required=True, metavar="OBJECTIVES", help="What to meet: 'ttft:p99<=500ms,itl:p99<=50ms'")
@click.option(
    "--goodput",
    multiple=True,
    metavar="METRIC:MS ...",
    help="Targets of each request: ttft:500 tpot:50.  [default: those of the classes, else --slo]",
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
        raise InputError("--gpu-price", None, gpu_price, "must be a number above 0 and below 1e9")
    trial = Trial(scenario, changes.fixed(scenario), changes.workload, slo, goodput)
    if requests is not None:
        finding.refuse_count(trial, requests)
        trial = replace(trial.with_settings({finding.COUNT: requests}), options={finding.COUNT: "--requests"})
    if gpu_price is not None and (unit := run_of(trial).cost.unit) != "ns":
        raise InputError("--gpu-price", None, gpu_price, f"needs a clock with seconds: this one counts in {unit}s")
    with _told(requests) as done:
        found = finding.find(trial, seeds, jobs or cores(), done)
    cost = None if gpu_price is None else finding.token_cost(found, gpu_price)
    if as_json:
        print_json(finding.document(found, trial, cost))
    else:
        _print(found, cost, _of_goodput(found, trial))
    for line in found.run.notes:
        note(line)
    if found.answer.met is None:
        sys.exit(1)
    for remark in found.answer.met.remarks:
        note(f"at this rate {remark}")


@contextlib.contextmanager
def _told(requests: int | None) -> Iterator[Told]:
    """How far it is: a bar, or where stderr is no terminal a line as each round of searches begins."""
    if sys.stderr.isatty():
        with counted_bar("capacity") as done:
            yield done
        return
    runs = f"about {counted(RUNS, 'run')}" + ("" if requests is None else f" of {counted(requests, 'request')}")
    rounds = itertools.chain(("load{} as it is", "change{} of one thing alone"), itertools.repeat("change{} more"))

    def begun(ready: int, of: int) -> None:
        if ready == 0:
            note(f"searching {of} {next(rounds).format('s' if of > 1 else '')}, {runs} each")

    yield begun


def _of_goodput(found: finding.Capacity, trial: Trial) -> str:
    """What goodput and attainment are of, and whether the answer rests on them."""
    told = targets_told(trial, found.run)
    asked = any(one.metric == ATTAINMENT for one in parse(found.slo).objectives)
    own = trial.goodput or "targets_of_groups" in told
    return GOODPUT.format(within(told, found.run.cost.unit), NO_OBJECTIVE if own and not asked else "")


def _print(found: finding.Capacity, cost: dict[str, Any] | None, goodput: str) -> None:
    out = console()
    unit = found.run.cost.unit
    per = "s" if unit == "ns" else unit
    for line in conditions(found.run):
        say(out, line)
    note_unshared([found.run])
    answer = found.answer
    if answer.sample.scaled:
        own = f"{_three(answer.sample.rate)} {found.of}/{per}"
        say(out, f"the trace's times are stretched, all by one factor, so that its bursts stay; by itself it has {own}")
        if missing := finding.PARTS + 1 - len(found.found):
            are = "is" if missing == 1 else "are"
            say(out, f"{missing} of its {finding.PARTS} parts {are} left out: nobody comes then, or all at once")
    _say_answer(out, found, cost)
    out.print()
    samples = _samples(found, unit, f"{found.of}/{per}")
    print_folded(out, samples, tuple(samples)[1:-1])
    say(out, goodput)
    out.print()
    changes = _changes(found, f"{found.of}/{per}")
    print_folded(out, changes, tuple(changes)[1:5])
    for caveat in found.caveats_of_changes:
        say(out, f"uncertain: {caveat}")
    say(out, f"binds: {binding(answer, found.changes)}")


def _say_answer(out: Console, found: finding.Capacity, cost: dict[str, Any] | None) -> None:
    """The capacity and how sure it is, what it was found with, and what it costs."""
    unit = found.run.cost.unit
    per = "s" if unit == "ns" else unit
    low, high = found.interval
    over = finding.over([one.sample.name for one in found.found])
    between = f", {_three(low)} to {_three(high)} over {over}" if over else ""
    uncertain = ", UNCERTAIN" if found.caveats else ""
    at = found.answer.met or found.answer.missed
    if found.answer.met is None:
        say(out, f"no rate meets {found.slo}{uncertain}; at {_rate(at)} {found.of}/{per}, the lowest tried:")
    else:
        say(out, f"capacity {_three(found.answer.rate)} {found.of}/{per}{uncertain}{between}, at {found.slo}")
    for caveat in found.caveats:
        say(out, f"uncertain: {caveat}")
    if at is not None and at.requests:
        span = f"{at.span / 1e9:,.0f} s" if unit == "ns" else f"{at.span:,} {unit}s"
        say(
            out,
            f"{counted(at.requests, 'request')} a run, {_lasting(found, span)} at that rate ({_came(found, at)}); "
            f"prompt mean {at.prompt_mean:,.1f}, output mean {at.output_mean:,.1f} tokens",
        )
    if found.answer.unbound:
        say(out, f"at that rate {finding.NO_MISS}")
    if found.answer.sample.scaled and over and not low <= found.answer.rate <= high:
        say(
            out,
            "the whole trace is not within what its parts take: each has a rate of its own, and less time for a queue",
        )
    if cost is not None:
        say(out, _of_tokens(found, cost))


def _waits(found: finding.Capacity) -> bool:
    """Whether only the first turns of sessions come at the rate; the others follow answers, some after the last."""
    return isinstance(found.run.requests, Columns) and found.run.requests.waits


def _lasting(found: finding.Capacity, span: str) -> str:
    return f"of sessions that begin within {span}" if _waits(found) else span


def _came(found: finding.Capacity, probe: Probe) -> str:
    """The rate as it was drawn, which chance makes a little different from the one asked for."""
    per = "s" if found.run.cost.unit == "ns" else found.run.cost.unit
    how = "in the long run, later turns counted" if _waits(found) else "that came"
    return f"{_three(probe.offered)} requests/{per} {how}"


def _of_tokens(found: finding.Capacity, cost: dict[str, Any]) -> str:
    met = found.answer.met
    uncertain = ", UNCERTAIN" if found.caveats else ""
    gpus = f"{cost['gpus']} GPU{'s' if cost['gpus'] > 1 else ''} at {cost['gpu_price']:g} an hour"
    if met is None:
        return f"{gpus}: no cost of tokens, as no rate meets the objectives"
    return (
        f"{gpus}{uncertain}: {cost['per_million_output_tokens']:.3g} per million output tokens, "
        f"{cost['per_million_tokens']:.3g} per million of prompt and output, "
        f"at {_came(found, met) if _waits(found) else f'the {_came(found, met)}'}"
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
    good = [None if probe is None else probe.goodput for probe in probes]
    columns[f"goodput (requests/{'s' if unit == 'ns' else unit})"] = [
        "-" if value is None else f"{_three(value)}" for value in good
    ]
    if ATTAINMENT not in columns:
        shares = [None if probe is None else probe.attainment for probe in probes]
        columns[ATTAINMENT] = ["-" if share is None else percent(share) for share in shares]
    missed_at = "missed" if found.answer.met is None else "one step above: missed"
    columns[missed_at] = [_misses(one.missed, unit) for one in found.found]
    return columns


def _misses(probe: Probe | None, unit: str) -> str:
    return "-" if probe is None else ", ".join(_miss(probe, figure, unit) for figure in probe.missed) or "-"


def _miss(probe: Probe, figure: str, unit: str) -> str:
    value = probe.values.get(figure)
    return figure if value is None else f"{figure} {_value(figure, value, unit)}"


def _changes(found: finding.Capacity, rate: str) -> dict[str, list[str]]:
    """A row a change. Of the step time, which is no setting, a share."""
    unit = found.run.cost.unit
    rates = ["refused" if one.rate is None else f"{_three(one.rate)}" if one.rate else "none" for one in found.changes]
    columns = {
        "changed alone": [one.name for one in found.changes],
        "from": [f"{one.before or 1:,}" for one in found.changes],
        "to": [f"{one.after:,}" if one.after else f"1/{FACTOR}" for one in found.changes],
        rate: rates,
        "change": [gain(found.answer, one) for one in found.changes],
    }
    if any(one.missed is not None for one in found.changes):
        columns["missed"] = [_misses(one.missed, unit) for one in found.changes]
    return columns


def _three(value: float) -> str:
    """Three digits, or all before the point."""
    return f"{value:,.0f}" if value >= 999.5 else f"{value:,.3g}"


def _rate(probe: Probe | None) -> str:
    return "-" if probe is None else _three(probe.rate)


def _value(figure: str, value: float | None, unit: str) -> str:
    if value is None:
        return "-"
    if figure == ATTAINMENT:
        return percent(value)
    return milliseconds(value) if unit == "ns" else f"{value:,.2f}"
