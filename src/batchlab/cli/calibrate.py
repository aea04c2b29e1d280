"""batchlab calibrate."""

import dataclasses
import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from batchlab.cli.columns import plain_table, print_folded, table_of
from batchlab.cli.documents import print_json
from batchlab.cli.notes import note
from batchlab.cli.progress import status
from batchlab.cli.tables import console, say
from batchlab.cli.validate import engine_settings
from batchlab.errors import InputError
from batchlab.files import whole_file
from batchlab.units import counted

if TYPE_CHECKING:
    from batchlab.calibrate.fit import Errors, Floats

TOTAL_OFF = 5
"""From so many % on the sum of all predictions is said to be off, by itself."""


@click.command()
@click.argument("data", type=click.Path())
@click.option("-o", "--output", required=True, type=click.Path(), metavar="FILE", help="TOML file to write.")
@click.option(
    "--model",
    type=click.Choice(["linear", "table"]),
    default="linear",
    show_default=True,
    help="table: no fit, the steps themselves; a CSV file whose steps are all combinations of a few sizes.",
)
@click.option("--set", "settings", multiple=True, metavar="KEY=VALUE", help="An engine setting, for a run folder.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document instead of a table.")
def calibrate(data: str, output: str, model: str, settings: tuple[str, ...], as_json: bool) -> None:
    """Fit a linear cost to measured DATA and write it as a [cost] section, with the range it was fitted in.

    DATA is a CSV file of measured steps, a trace (.jsonl) whose clock is a real one in ns, or the folder of a served
    run (requests.jsonl and meta.json), as for `validate`. Every fifth step or request is held out; the errors printed
    are of these. The coefficients written are, for steps, fitted to all of them, for a run, to the others. A table has
    no fit: its errors are of each step taken from its neighbours.
    """
    source = Path(data)
    target = Path(output).resolve()
    if target == source.resolve() or (target.parent == source.resolve() and os.path.exists(target)):
        raise InputError(output, None, None, "would overwrite the data")
    if not os.path.isdir(source) and settings:
        raise InputError("--set", None, None, "only for the folder of a served run")
    with whole_file(output) as file:  # opened first: what cannot be written must not cost the fit
        if model == "table":
            document = _table(source, Path(output))
        else:
            document = _from_run(source, settings) if os.path.isdir(source) else _from_steps(source)
        file.write(toml(document))
    if as_json:
        print_json(document)
    else:
        _print(document, output)
    for line in document["notes"]:
        note(line)


def _from_steps(source: Path) -> dict[str, Any]:
    from batchlab.calibrate.fit import errors, fit, held_out
    from batchlab.calibrate.steps import read_steps

    features, times, notes = read_steps(source)
    held = held_out(len(times))
    partial = fit(features[~held], times[~held])
    found = {"step": errors(features[held] @ partial, times[held])} if held.any() else {}
    if not held.any():
        notes.append(f"{len(times)} steps are too few to hold any out: the error is not known")
    return _document(source, "steps", len(times), fit(features, times), features, found, notes)


def _table(source: Path, output: Path) -> dict[str, Any]:
    """The steps as they are; the error is that of each one where it is taken from its neighbours on one axis."""
    import numpy as np

    from batchlab.calibrate.fit import errors
    from batchlab.costs.grid import left_out
    from batchlab.costs.table import COLUMNS, Table, read_steps

    if os.path.isdir(source) or source.suffix == ".jsonl":
        raise InputError(source, None, None, "--model table takes a CSV file of measured steps")
    cost = Table(str(source))
    points = read_steps(source, cost.tolerance)
    found = {}
    for name, pairs in zip(COLUMNS, left_out(points), strict=True):
        if pairs:
            predicted, measured = np.array(pairs).T
            found[f"between {name}"] = errors(predicted, measured)
    fitted = {name: [axis[0], axis[-1]] for name, axis in zip(COLUMNS, cost.grid.axes, strict=True) if axis[-1]}
    return {
        "data": source.name,
        "fitted_to": "steps",
        "count": len(points),
        "cost": {"model": "table", "file": os.path.relpath(source, output.parent)},
        "fitted": fitted,
        "held_out_errors_pct": {name: dataclasses.asdict(of) for name, of in found.items()},
        "notes": [] if found else ["no size has three steps in a row: the error between them is not known"],
    }


def _from_run(source: Path, settings: tuple[str, ...]) -> dict[str, Any]:
    from batchlab.calibrate.served import ROUNDS, fit_served
    from batchlab.validate.recorded import recorded

    run = recorded(source)
    if run.ranks > 1:
        raise InputError(
            source,
            "data_parallel_size",
            run.ranks,
            "must be 1: the steps of engines that wait for each other cannot be told apart",
        )
    with status("simulating") as tell:
        found = fit_served(
            run, engine_settings(settings, run), lambda rounds: tell(f"simulation {rounds} of at most {ROUNDS}")
        )
    notes = list(run.notes)
    if not found.settled:
        notes.append(f"the fit had not settled after {found.rounds} simulations")
    if not found.errors:
        notes.append(f"{len(run.requests)} requests are too few to hold any out: the error is not known")
    return _document(source, "requests", len(run.requests), found.coefficients, found.steps, found.errors, notes)


def _document(
    source: Path,
    unit: str,
    count: int,
    coefficients: "Floats",
    features: "Floats",
    found: "dict[str, Errors]",
    notes: list[str],
) -> dict[str, Any]:
    from batchlab.calibrate.fit import NAMES, not_told_apart
    from batchlab.costs.linear import MOST, RANGED

    if coefficients.max() > MOST:
        name = NAMES[int(coefficients.argmax())]
        raise InputError(source, None, f"{coefficients.max():.3g} ns", f"too long a time for {name}: is time_us in us?")
    if tied := not_told_apart(features):
        told = f"the steps do not tell {', '.join(tied)} apart: other values fit as well, and the error says nothing"
        notes = [*notes, f"{told} of steps of other sizes"]
    notes = [
        *notes,
        *(_unmeasured(name, of) for name, of in found.items() if of.left_out),
        *(_off_in_total(name, of.total, of.bias) for name, of in found.items() if abs(of.total or 0.0) > TOTAL_OFF),
    ]
    return {
        "data": source.name,
        "fitted_to": unit,
        "count": count,
        "cost": {"model": "linear", "unit": "ns", **dict(zip(NAMES, map(float, coefficients), strict=True))},
        "fitted": {name: [float(c.min()), float(c.max())] for name, c in zip(RANGED, features.T[1:4], strict=True)},
        "held_out_errors_pct": {name: dataclasses.asdict(of) for name, of in found.items()},
        "notes": notes,
    }


def _unmeasured(name: str, of: "Errors") -> str:
    """Of whom there is no relative error: all tokens were read in the same moment."""
    held = counted(of.count + of.left_out, "request")
    return f"{name} was measured as 0 for {of.left_out:,} of {held} held out: they have no relative error"


def _off_in_total(name: str, total: float | None, signed: float | None) -> str:
    """What it means that the held-out steps, or a latency of the held-out requests, are off in their sum."""
    assert total is not None and signed is not None
    short = f"{abs(total):.1f} % too {'short' if total < 0 else 'long'}"
    if name != "step":
        return f"the mean {name} of the requests held out comes out {short}"
    bias = f"the bias, {signed:+.1f} %, counts a short step as much as a long one"
    latencies = "mean latencies predicted with this cost too, those with a queue by more"
    return f"all held-out steps together come out {short}, and {latencies}; {bias}"


def toml(document: dict[str, Any]) -> str:
    """The file: where it comes from, and the [cost] section."""
    source = f"{document['count']:,} {document['fitted_to']} of {json.dumps(document['data'])[1:-1]}"
    linear = document["cost"]["model"] == "linear"
    lines = [f"# Fitted to {source}, no coefficient below 0." if linear else f"# The {source}."]
    for name, of in document["held_out_errors_pct"].items():
        if not of["count"]:
            lines.append(
                f"# Held out, {of['left_out']:,}: {name} was measured as 0, so by how many % it is off is not known."
            )
            continue
        lines.append(
            f"# Held out, {of['count']:,}: {name} is off by {of['mean']:.1f} % on average (P95 {of['p95']:.1f} %, "
            f"bias {of['bias']:+.1f} %), all of it together by {of['total']:+.1f} %."
        )
    lines += ["", "[cost]"]
    for key, value in document["cost"].items():
        lines.append(f"{key} = {json.dumps(value) if isinstance(value, str) else f'{value:.6g}'}")
    if linear:
        ranges = ", ".join(f"{name} = [{low:.0f}, {high:.0f}]" for name, (low, high) in _outward(document["fitted"]))
        lines.append(f"fitted = {{ {ranges} }}")
    return "\n".join([*lines, ""])


def _outward(fitted: dict[str, list[float]]) -> list[tuple[str, tuple[float, float]]]:
    """The ranges, whole numbers at least as wide."""
    return [(name, (float(low // 1), float(-(-high // 1)))) for name, (low, high) in fitted.items()]


def _cell(error: float | None, sign: str = "") -> str:
    return "-" if error is None else f"{error:{sign}.2f}"


def _print(document: dict[str, Any], output: str) -> None:
    out = console()
    model = document["cost"]["model"]
    say(out, f"{model} cost from {document['count']:,} {document['fitted_to']} of {document['data']}, in {output}")
    out.print()
    if model == "linear":
        shown = plain_table("", "us", numeric=("us",))
        for name, value in document["cost"].items():
            if not isinstance(value, str):
                shown.add_row(name, f"{value / 1000:,.{4 if value > 100 or not value else 7}f}")
        out.print(shown)
        out.print()
    heads = ("held out", "total %", "bias %", "mean %", "P50 %", "P95 %", "worst %")
    rows = []
    for name, of in document["held_out_errors_pct"].items():
        signed = (_cell(of[key], "+") for key in ("total", "bias"))
        rows.append((name, f"{of['count']:,}", *signed, *(_cell(of[key]) for key in ("mean", "p50", "p95", "worst"))))
    print_folded(out, table_of(("error of", *heads), rows), heads)
    out.print()
    ranges = ", ".join(f"{name} {low:,.0f} to {high:,.0f}" for name, (low, high) in _outward(document["fitted"]))
    say(out, f"measured range: {ranges}; a run that leaves it says so")
