"""batchlab report."""

import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import click

from batchlab import compare as comparing
from batchlab.cli.answers import SeveralWords
from batchlab.cli.notes import note, note_cut
from batchlab.cli.progress import ended_bar, progress
from batchlab.cli.scenario_options import Changes, scenario_options
from batchlab.errors import BatchlabError, InputError, StalledError, one_line
from batchlab.files import encodable, whole_file
from batchlab.simulation import simulate
from batchlab.units import counted

MOST_RUNS = comparing.MOST_VARIANTS
ENDINGS = (".html", ".htm")


@dataclass(frozen=True)
class Asked:
    """What the options ask of every run."""

    slo: str | None
    goodput: tuple[str, ...]

    @property
    def each_gap(self) -> bool:
        """Whether runs have to keep each gap between tokens. Raises InputError."""
        from batchlab.metrics.objectives import parse

        return self.slo is not None and parse(self.slo).each_gap


@dataclass
class Found:
    """What the inputs hold. share: how many runs the page will have. ended: whether all of them came to their end."""

    share: int = 1
    runs: list[Any] = field(default_factory=list)
    sweeps: list[Any] = field(default_factory=list)
    capacities: list[Any] = field(default_factory=list)
    ended: bool = True
    told: set[str] = field(default_factory=set)
    """What was said of runs that did not come to their end: of the same run twice only once."""


@click.command(cls=SeveralWords)
@click.argument("runs", nargs=-1, required=True, type=click.Path(), metavar="RUN...")
@click.option("--output", "-o", type=click.Path(), required=True, metavar="FILE", help="Page to write (HTML).")
@scenario_options(several=True)
@click.option("--slo", metavar="OBJECTIVES", help="What must hold: 'ttft:p99<=500ms,itl:p99<=50ms'.")
@click.option(
    "--goodput",
    multiple=True,
    metavar="METRIC:MS ...",
    help="Count requests that meet all of these: ttft:500 tpot:50.  [default: those of a scenario's classes]",
)
def report(
    runs: tuple[str, ...],
    output: str,
    changes: Changes,
    slo: str | None,
    goodput: tuple[str, ...],
) -> None:
    """Write one HTML page about RUNs. It opens in a browser without a network.

    A RUN is a trace; a scenario (.toml), which is run, in all variants that --policy and --set name, as `compare` does;
    a sweep's table (.parquet); or what `capacity --json` printed (.json). Exits with 1 if a run did not come to its end
    or an objective of --slo is missed.
    """
    from batchlab.metrics.answers import missed
    from batchlab.report.page import check_installed, render

    check_installed()
    _refuse_output(output, (*runs, *([] if changes.workload is None else [changes.workload])))
    asked = Asked(slo, goodput)
    scenarios = [run for run in dict.fromkeys(runs) if run.endswith(".toml")]
    if not scenarios:
        changes.refuse("is for a scenario (.toml), and no RUN is one")
    plans = {run: comparing.plan(run, *changes.variants(run), changes.workload) for run in scenarios}
    found = Found(sum(len(plans[run].variants) if run in plans else 1 for run in runs))
    if found.share > MOST_RUNS:
        raise InputError(None, None, None, f"{found.share:,} runs are too many for a page: at most {MOST_RUNS}")
    with whole_file(output) as file:
        for run in runs:
            _take(run, plans.get(run), asked, found)
        if not (found.runs or found.sweeps or found.capacities):
            raise InputError(None, None, None, "no run of these could begin: nothing to report")
        documents = [one.document() for one in found.runs]
        page = encodable(render(documents, found.sweeps, found.capacities))
        file.write(page)
    _say(output, len(page.encode()), documents, found)
    if not found.ended or any(missed(document["answers"]) for document in documents):
        sys.exit(1)


def _say(output: str, size: int, documents: Sequence[dict[str, Any]], found: Found) -> None:
    """What was written, and which objectives are missed."""
    from batchlab.metrics.answers import undecided
    from batchlab.report import words

    capacities = len(found.capacities)
    parts = [(len(documents), "run"), (len(found.sweeps), "table")]
    held = [counted(count, noun) for count, noun in parts if count]
    held += [f"{capacities} {'capacity' if capacities == 1 else 'capacities'}"] if capacities else []
    note(f"wrote {output} ({', '.join(held)}, {size / 1e6:.1f} MB)")
    for document in documents:
        for line in undecided(document["answers"]):
            note(f"{document['name']}: {line}")
        for one in document["answers"].get("objectives", ()):
            if not one["met"]:
                share = one["objective"].startswith("attainment")
                value = words.share(one["value"]) if share else words.time(one["value"], document["unit"])
                note(f"{document['name']}: missed {one['objective']}: {value}")


def _take(path: str, plan: comparing.Comparison | None, asked: Asked, found: Found) -> None:
    """Read or run one of the inputs."""
    from batchlab.report import saved

    if plan is not None:
        for variant in plan.variants:
            _run(variant, plan, asked, found)
        for line in plan.notes:
            note(line)
    elif path.endswith(".parquet"):
        found.sweeps.append(saved.sweep(path))
    elif path.endswith(".json"):
        found.capacities.append(saved.capacity(path))
    else:
        _read(path, asked, found)


def _run(variant: comparing.Variant, plan: comparing.Comparison, asked: Asked, found: Found) -> None:
    """One variant of a scenario. One that its policy refuses is left out; one that stalls is told up to there."""
    from batchlab.metrics.answers import goals_of, question
    from batchlab.report.recording import Recorded, Recorder

    goals = goals_of(variant.run.requests)
    what = question(variant.run.cost.unit, asked.slo, asked.goodput, None, targets_of=goals)
    facts = variant.facts
    chosen = ("policy", *variant.given)  # other settings may differ because of these
    apart = [key for key in comparing.differing(plan.variants) if key in facts and key in chosen]
    settings = ", ".join(
        f"{name} = {comparing.said(key, facts[key])}" for key, name in comparing.endings(apart).items()
    )
    name = one_line(settings or plan.title or plan.name)
    shown = {key: one_line(comparing.said(key, value)) for key, value in facts.items()}
    recorder = Recorder(found.share, asked.each_gap)
    recorded = Recorded(name, recorder, {"scenario": plan.name, **shown}, what)
    try:
        with progress(variant.run) as observers:
            end = simulate(variant.run, [recorder, *observers])
        found.ended &= end.termination == "all_terminal"
    except StalledError as error:
        recorded.ending = "stalled"
        _fail(name, str(error), recorded, found)
    except BatchlabError as error:
        if isinstance(error, InputError) and error.file is None and error.place in variant.given:
            error.file, error.place = f"--set {error.place}", None
        recorded.ending = "failed"
        _fail(name, str(error), recorded, found)
    recorded.notes += variant.run.remarks()
    if recorder.began:
        found.runs.append(recorded)


def _fail(name: str, reason: str, recorded: Any, found: Found) -> None:
    line = f"{name}: {reason}"
    if line not in found.told:
        note(line)
    found.told.add(line)
    recorded.notes.append(reason)
    found.ended = False


def _read(path: str, asked: Asked, found: Found) -> None:
    """A trace."""
    from batchlab.metrics.answers import question
    from batchlab.metrics.objectives import ATTAINMENT, parse
    from batchlab.report.recording import Recorded, Recorder, read, said_header

    if asked.slo is not None and not asked.goodput:
        for objective in parse(asked.slo).objectives:
            if objective.metric == ATTAINMENT:
                expected = (
                    f"needs --goodput ttft:500 tpot:50: {one_line(path)} is a trace, which has no targets of classes"
                )
                raise InputError("--slo", None, objective.text, expected)
    recorder = Recorder(found.share, asked.each_gap)
    with ended_bar("reading") as observers:
        read(path, [recorder, *observers])
    header, end = recorder.summary.header, recorder.summary.end
    assert header is not None
    recorded = Recorded(one_line(Path(path).name), recorder, {"trace": one_line(path), **said_header(header)})
    recorded.question = question(header.clock["unit"], asked.slo, asked.goodput, None)
    live = header.recorded is not None  # a recorder in a running engine writes no end line
    if live:
        recorded.ending = "recorded"
    elif end is None:
        recorded.notes.append(
            "The trace has no end line: the run was killed, or the file was cut. This is up to there."
        )
        note_cut(path)
    found.ended &= live or (end is not None and end.termination == "all_terminal")
    found.runs.append(recorded)


def _refuse_output(output: str, inputs: Sequence[str]) -> None:
    if output.startswith("/dev/"):
        return
    if os.path.realpath(output) in {os.path.realpath(path) for path in inputs}:
        raise InputError(output, None, None, "would overwrite an input")
    if output and not output.lower().endswith(ENDINGS):
        raise InputError(output, None, None, "a page is written as .html")
