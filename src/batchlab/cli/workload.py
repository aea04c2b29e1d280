"""batchlab workload."""

import os
from pathlib import Path
from typing import Any

import click
from rich.markup import escape

from batchlab.cli.columns import print_folded, table_of
from batchlab.cli.documents import print_json
from batchlab.cli.tables import console, percent, say
from batchlab.clients.source import refuse_no_file
from batchlab.clients.written import WorkloadTable
from batchlab.errors import InputError, one_line
from batchlab.scenario import load
from batchlab.settings import parse_setting, validate
from batchlab.units import NS_IN_MS, NS_IN_S, counted

COLUMNS = "such as arrival=at,prompt=in,output=out"
FIGURES = ("mean", "min", "p50", "p90", "p95", "p99", "max")
CLASS_FIGURES = {"requests": "requests", "share": "share", "prompt_mean": "prompt mean", "output_mean": "output mean"}


@click.group()
def workload() -> None:
    """Look at a workload without running anything."""


@workload.command()
@click.argument("path", metavar="FILE|SCENARIO", type=click.Path())
@click.option("--format", "form", metavar="NAME", help="What FILE is: azure, mooncake, csv, parquet, ...")
@click.option("--columns", metavar="OURS=THEIRS,...", help="FILE's names for arrival, prompt, output and so on.")
@click.option("--time-unit", metavar="UNIT", help="Unit of FILE's times: s, ms, us, ns, timestamp or unit.")
@click.option(
    "--set", "settings", multiple=True, metavar="KEY=VALUE", help="Any other setting of [workload] or SCENARIO."
)
@click.option("--workload", "other", type=click.Path(), metavar="FILE", help="Workload file instead of the scenario's.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document instead of tables.")
def describe(
    path: str,
    form: str | None,
    columns: str | None,
    time_unit: str | None,
    settings: tuple[str, ...],
    other: str | None,
    as_json: bool,
) -> None:
    """Requests, rate, burstiness, lengths and shared prompts of a workload FILE, or of a SCENARIO (a .toml file).

    For a FILE, --set takes the keys of [workload], such as sort=true or transform.rate_scale=2.
    """
    given = dict(parse_setting(setting) for setting in settings)
    own = {"--format": form, "--columns": columns, "--time-unit": time_unit}
    if path.endswith(".toml"):
        for option, value in own.items():
            if value is not None:
                raise InputError(option, None, value, "only for a workload file; in a scenario use --set workload...")
        loaded = load(path, given, workload=other, check=False).runs[0]
        requests, unit = loaded.requests, loaded.cost.unit
    else:
        if other is not None:
            raise InputError("--workload", None, other, "only for a scenario; name the workload file itself")
        requests, unit = _read(path, own, given)
    from batchlab.clients.columns import Columns  # numpy takes time to import
    from batchlab.clients.describe import columns_of, figures, shared_runs

    found = figures(columns_of(requests), unit)
    if not isinstance(requests, Columns):
        found["shared"] = shared_runs(requests)
    if as_json:
        print_json(found)
    else:
        _print(path, found)


def _read(path: str, own: dict[str, str | None], settings: dict[str, Any]) -> tuple[Any, str]:
    """The requests of a workload file, and the unit of their times."""
    if os.path.isdir(path):  # before its format is asked for
        refuse_no_file(Path(path), "a workload file, or a scenario (.toml),")
    document: dict[str, Any] = {"file": path}
    for key, value in settings.items():
        *tables, last = key.removeprefix("workload.").split(".")
        table = document
        for name in tables:
            table = table.setdefault(name, {})
            if not isinstance(table, dict):
                raise InputError(f"--set {key}", None, None, "must be a key of [workload], such as transform.sample")
        table[last] = value
    if own["--format"] is not None:
        document["format"] = own["--format"]
    if own["--time-unit"] is not None:
        document["time_unit"] = own["--time-unit"]
    if own["--columns"] is not None:
        pairs = [pair.partition("=") for pair in own["--columns"].split(",")]
        if not all(ours and equals and theirs for ours, equals, theirs in pairs):
            raise InputError("--columns", None, own["--columns"], f"must be {COLUMNS}")
        document["columns"] = {ours: theirs for ours, _, theirs in pairs}
    unit = "cost unit" if document.get("time_unit") == "unit" else "ns"
    try:
        return validate(WorkloadTable, document, "workload").columns_of(Path(), unit), unit
    except InputError as error:
        raise _of_option(error, own, document) from error.__cause__


def _of_option(error: InputError, own: dict[str, str | None], document: dict[str, Any]) -> InputError:
    """An error about what an option says names the option, and one about what no option says the file."""
    for option, given in own.items():
        key = option[2:].replace("-", "_")
        place = f"workload.{key}"
        if error.file is None and error.place is not None and f"{error.place}.".startswith(f"{place}."):
            rest = error.place[len(place) + 1 :] or None
            if given is not None:
                return InputError(option, rest, error.value, error.expected)
            if key not in document:
                needed = f"is missing: {COLUMNS}" if key == "columns" else error.expected
                return InputError(document["file"], option, error.value, needed)
    return error


def _print(path: str, found: dict[str, Any]) -> None:
    out = console()
    source = found.get("source") or {}
    out.print(f"[bold]{escape(one_line(source.get('file') or path))}[/bold]")
    for step in found.get("steps", ()):
        say(out, one_line(step))
    out.print()
    for label, value in _arrivals(found, found["unit"]):
        say(out, f"{label:<14}{value}")
    out.print()
    rows = []
    for name in ("prompt", "output"):
        values = found[name]
        rows.append((name, *(_number(values[figure]) for figure in FIGURES), f"{values['total']:,}"))
    print_folded(out, table_of(("tokens", *FIGURES, "total"), rows), (*FIGURES, "total"))
    if found["classes"] is not None:
        out.print()
        classes = [
            (
                escape(one_line(one["name"])),
                f"{one['requests']:,}",
                percent(one["share"]),
                _number(one["prompt_mean"]),
                _number(one["output_mean"]),
            )
            for one in found["classes"]
        ]
        figures = tuple(CLASS_FIGURES.values())
        print_folded(out, table_of(("class", *figures), classes), figures)
    if "max_tokens_rule" in found:
        out.print()
        say(out, one_line(found["max_tokens_rule"]))


def _arrivals(found: dict[str, Any], unit: str) -> list[tuple[str, str]]:
    """What there is to say of arrivals and shared prompts, by line."""
    in_ns = unit == "ns"
    span = found["span"]
    later = found["requests"] - found["arrivals"]
    waiting = f", of which {later:,} are turns sent after the answer before them" if later else ""
    lines = [("requests", f"{found['requests']:,}{waiting}")]
    lines.append(("span", _span(span) if in_ns else f"{span:,} {unit}s"))
    if found["request_rate"] is None:
        lines.append(("rate", "none: all arrive at once"))
    else:
        peak = "" if found["peak_per_minute"] is None else f"; {found['peak_per_minute']:,} in the busiest minute"
        lines.append(
            ("rate", f"{found['request_rate']:,.4g} {found['rate_of']}/{'s' if in_ns else unit} in the mean{peak}")
        )
        lines.append(("gaps", f"CV {found['cv_of_gaps']:.3f}{_like(found['burstiness'])}"))
    lines.append(("prompt/output", f"{found['prompt_to_output']:,.3g}"))
    shared = found["shared"]
    if shared is None:
        lines.append(("shared", "not known: the source does not say which prompts begin alike"))
    else:
        sessions = (
            "" if shared["sessions"] in (None, found["requests"]) else f", {counted(shared['sessions'], 'session')}"
        )
        lines.append(("shared", f"{percent(shared['share'])} of the prompt tokens came before{sessions}"))
    return lines


def _like(burstiness: float | None) -> str:
    """What the variation of the gaps amounts to."""
    if burstiness is None:
        return " (constant)"
    return f", as a gamma process of burstiness {burstiness:.3g}; Poisson has 1"


def _span(ns: int) -> str:
    return f"{ns / NS_IN_S:,.3f} s" if ns >= NS_IN_S else f"{ns / NS_IN_MS:,.6g} ms"


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:,.1f}".removesuffix(".0")
