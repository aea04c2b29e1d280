"""batchlab validate."""

import math
import os
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from rich.console import Console

from batchlab import costs, policies
from batchlab.cli.columns import print_folded, table_of
from batchlab.cli.documents import print_json
from batchlab.cli.notes import note
from batchlab.cli.progress import progress
from batchlab.cli.tables import console, say, settings_line
from batchlab.errors import InputError, nearest
from batchlab.policies import settings_of
from batchlab.settings import parse_setting
from batchlab.simulation import Run
from batchlab.units import counted

if TYPE_CHECKING:
    from batchlab.validate.recorded import Recorded

JUDGED = ("mean", "p99")
BOUNDED = ("ttft", "tpot", "itl", "e2e")
LONG = {"tpot": math.inf, "itl": math.inf, "ttft": 0.1, "ttft_queued": 0.1, "e2e": 0.1}
"""Means from so many seconds on are shown in s, shorter ones in ms."""


@click.command()
@click.argument("run", type=click.Path())
@click.option("--cost", required=True, type=click.Path(), metavar="FILE", help="TOML file with the [cost] section.")
@click.option(
    "--workload",
    type=click.Path(),
    metavar="FILE",
    help="Planned arrivals instead of the measured ones: CSV with arrival_time_ns, input_toks and output_toks, or a "
    "Mooncake trace (.jsonl), whose block hashes feed the prefix cache.",
)
@click.option(
    "--set", "settings", multiple=True, metavar="KEY=VALUE", help="An engine setting: --set num_gpu_blocks=9000"
)
@click.option(
    "--within",
    "bounds",
    multiple=True,
    metavar="[METRIC=]PERCENT",
    help="Exit with 1 if mean or P99 of ttft, tpot, itl or e2e misses by more: --within 3% --within ttft=5%",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document instead of tables.")
def validate(
    run: str, cost: str, workload: str | None, settings: tuple[str, ...], bounds: tuple[str, ...], as_json: bool
) -> None:
    """Replay a measured RUN of vLLM and print what is predicted beside what was measured.

    RUN is a folder with requests.jsonl and meta.json, and timeseries.csv if there is one, or a trace (.jsonl) with real
    times that a recorder in the engine wrote. The engine gets the settings recorded there. Measured arrivals are the
    load, unless --workload has others.
    """
    from batchlab.validate.compare import amplification, compared  # numpy takes time to import
    from batchlab.validate.replay import prepare, replay

    allowed = parse_bounds(bounds)
    measured = _read(Path(run), workload)
    changed = engine_settings(settings, measured)
    prepared = prepare(measured, costs.load(Path(cost)), changed)
    with progress(prepared) as observers:
        found = replay(prepared, observers, measured.ranks, measured.lockstep)
    remarks = prepared.remarks()
    document: dict[str, Any] = {
        "run": run,
        "requests": len(measured.requests),
        "vllm_version": measured.vllm_version,
        "rules": prepared.policy.rules,
        "engine": prepared.settings | {name: getattr(prepared.limits, name) for name in ("max_num_seqs",)},
        "cost": prepared.cost.describe(),
        **compared(measured, found),
        "steps": found.steps,
        "preemptions": found.preemptions,
        "cached_tokens": found.cached_tokens,
        "amplification_pct_per_pct": amplification(prepared, measured),
        "notes": [*measured.notes, *_simulated_note(measured), *_version_note(measured.rules, prepared), *remarks],
    }
    missed = judge(document, allowed)
    if bounds:
        document["missed"] = missed
    if as_json:
        print_json(document)
    else:
        _print(document, prepared, measured.rules)
    for line in document["notes"]:
        note(line)
    for line in missed:
        note(line)
    if missed:
        sys.exit(1)


def _simulated_note(measured: "Recorded") -> list[str]:
    if not measured.simulated:
        return []
    return [
        "this trace is batchlab's own: what is called measured was simulated, so no engine's times are compared here"
    ]


def _read(run: Path, workload: str | None) -> "Recorded":
    from batchlab.validate.recorded import recorded
    from batchlab.validate.traced import traced

    if run.suffix != ".jsonl" and not os.path.isdir(run):
        expected = "a folder with requests.jsonl and meta.json expected, or a trace (.jsonl)"
        raise InputError(run, None, None, expected)
    if os.path.isdir(run):
        return recorded(run, None if workload is None else Path(workload))
    if workload is not None:
        raise InputError("--workload", None, workload, "has no use beside a trace, which has its own arrivals")
    return traced(run)


def engine_settings(given: tuple[str, ...], measured: "Recorded") -> dict[str, Any]:
    """The [engine] settings of --set options, with or without the section's name. Raises InputError."""
    settings = {key.removeprefix("engine."): value for key, value in map(parse_setting, given)}
    policy = measured.engine.get("policy", "vllm")
    known = settings_of(policies.find(policy)) if settings else ()
    for key in settings:
        if key not in known:
            raise InputError("--set", key, None, f"no setting of policy {policy}{nearest(key, known)}")
    return settings


def parse_bounds(given: tuple[str, ...]) -> dict[str, float]:
    """Metric -> the error in percent that is allowed. Raises InputError."""
    allowed: dict[str, float] = {}
    for text in sorted(given, key=lambda bound: "=" in bound):  # what is said of one metric counts
        match = re.fullmatch(r"(?:([a-z0-9]+)=)?([0-9]+(?:\.[0-9]+)?) ?%", text)
        if match is None or (match[1] and match[1] not in BOUNDED):
            like = nearest(text.partition("=")[0], BOUNDED)
            expected = f"must be as 3% or ttft=5%; metrics: {', '.join(BOUNDED)}{like}"
            raise InputError("--within", None, text, expected)
        for name in [match[1]] if match[1] else BOUNDED:
            allowed[name] = float(match[2])
    return allowed


def judge(document: dict[str, Any], allowed: dict[str, float]) -> list[str]:
    """A line for each figure that misses by more than is allowed."""
    missed = []
    for name, most in allowed.items():
        for figure in JUDGED:
            cell = document["latency_s"].get(name, {}).get(figure)
            if cell is not None and (cell["error_pct"] is None or abs(cell["error_pct"]) > most):
                shown = "no measured value" if cell["error_pct"] is None else f"{cell['error_pct']:+.2f} %"
                missed.append(f"{name} {figure}: {shown}, allowed {most:g} %")
    return missed


def _version_note(served_by: str | None, run: Run) -> list[str]:
    rules = str(getattr(run.policy, "rules", "custom"))
    if served_by is None:
        return [f"which version served the run is not recorded; the rules are of {rules}"]
    return [] if served_by == rules else [f"the run is of {served_by}, the rules are of {rules}"]


def _print(document: dict[str, Any], run: Run, served_by: str | None) -> None:
    from batchlab.validate.compare import FIGURES, METRICS

    out = console()
    of = "" if served_by is None else f" of {served_by}"
    say(out, f"{document['run']}: {counted(document['requests'], 'request')}{of}")
    say(out, settings_line(run))
    out.print()
    heads = [figure.upper() if figure != "mean" else figure for figure in FIGURES]
    rows: list[tuple[str, ...]] = []
    for name, cells in document["latency_s"].items():
        scale, unit = (1, "s") if cells["mean"]["measured"] >= LONG[name] else (1000, "ms")
        rows.append((METRICS[name], f"measured {unit}", *(f"{scale * cells[f]['measured']:,.3f}" for f in FIGURES)))
        rows.append(("", f"predicted {unit}", *(f"{scale * cells[f]['predicted']:,.3f}" for f in FIGURES)))
        rows.append(("", "error %", *(_signed(cells[f]["error_pct"]) for f in FIGURES)))
    print_folded(out, table_of(("", " ", *heads), rows), tuple(heads), repeated=2)
    out.print()
    _print_throughput(out, document)
    out.print()
    if document["over_time"]:
        _print_over_time(out, document["over_time"])
        out.print()
    moved = document["amplification_pct_per_pct"]
    parts = [
        f"{METRICS[name]} {of['mean']:+.1f} % (P99 {of['p99']:+.1f} %)" for name, of in moved.items() if "p99" in of
    ]
    say(out, f"1 % more step time moves the means: {', '.join(parts)}")
    say(
        out,
        f"{counted(document['steps'], 'step')}, {counted(document['preemptions'], 'preemption')}, "
        f"{document['cached_tokens']:,} tokens from the prefix cache",
    )


def _print_throughput(out: Console, document: dict[str, Any]) -> None:
    heads = ("measured", "predicted", "error %")
    rows = [
        (
            name.replace("_per_", "/").replace("_", " "),
            f"{cell['measured']:,.3f}",
            f"{cell['predicted']:,.3f}",
            _signed(cell["error_pct"]),
        )
        for name, cell in document["throughput"].items()
    ]
    print_folded(out, table_of(("throughput", *heads), rows), heads)


def _print_over_time(out: Console, table: dict[str, dict[str, float]]) -> None:
    heads = ("measured mean", "predicted mean", "mean absolute error")
    columns: dict[str, list[str]] = {"over time": [name.replace("_pct", " %").replace("_", " ") for name in table]}
    for head, values in zip(heads, zip(*(of.values() for of in table.values()), strict=True), strict=True):
        columns[head] = [f"{value:,.2f}" for value in values]
    print_folded(out, columns, heads)


def _signed(value: float | None) -> str:
    return "-" if value is None else f"{value:+.2f}"
