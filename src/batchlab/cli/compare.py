"""batchlab compare."""

import sys
from typing import Any

import click

from batchlab import compare as comparing
from batchlab.cli.documents import print_json
from batchlab.cli.progress import progress
from batchlab.cli.run import cost_remarks, note, parse_setting
from batchlab.cli.side_by_side import print_comparison
from batchlab.errors import InputError


@click.command()
@click.argument("scenario", type=click.Path())
@click.option(
    "--policy",
    "--mode",
    "engines",
    multiple=True,
    metavar="NAME,...",
    help="Policies to compare instead of the file's: names with commas, or FILE.py:CLASS.",
)
@click.option(
    "--set",
    "settings",
    multiple=True,
    metavar="KEY=VALUE,...",
    help="Values of a setting to compare: --set engine.prefill_chunk=3,6. A request goes by its id: "
    "--set workload.requests.D.arrival=2,10",
)
@click.option("--token-budget", metavar="N,...", help="Short for --set engine.max_num_batched_tokens=N,...")
@click.option("--chunk-size", metavar="N,...", help="Short for --set engine.prefill_chunk=N,...")
@click.option("--workload", type=click.Path(), metavar="FILE", help="Workload file instead of the scenario's.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document instead of a table.")
def compare(
    scenario: str,
    engines: tuple[str, ...],
    settings: tuple[str, ...],
    token_budget: str | None,
    chunk_size: str | None,
    workload: str | None,
    as_json: bool,
) -> None:
    """Run a SCENARIO file in several variants and print them side by side.

    The variants are all combinations of the values given: policies outermost, then the keys in the order given. Exits
    with 1 if a variant was refused by its policy, stalled or stopped at its iteration limit.
    """
    given = [setting.partition("=") for setting in settings]
    shorts = (("engine.max_num_batched_tokens", token_budget), ("engine.prefill_chunk", chunk_size))
    given += [(key, "=", value) for key, value in shorts if value is not None]
    values = parse_values(given)
    names = [name for option in engines for name in split_values(option) if name]
    _refuse_repeated("--policy", names)
    if "engine.policy" in values:
        if names:
            raise InputError("--set engine.policy", None, None, "--policy says it too: give one of them")
        names = [str(name) for name in values.pop("engine.policy")]
    plan = comparing.plan(scenario, values, names, workload)
    outcomes = []
    for variant in plan.variants:
        with progress(variant.run) as observers:
            outcomes.append(comparing.run_variant(variant, observers))
    if as_json:
        print_json(document(plan, outcomes))
    else:
        print_comparison(plan, outcomes)
    remarks = dict.fromkeys(line for variant in plan.variants for line in cost_remarks(variant.run))
    for line in (*plan.notes, *comparing.warnings(plan.variants), *remarks):
        note(line)
    if not all(outcome.finished for outcome in outcomes):
        sys.exit(1)


def parse_values(given: list[tuple[str, str, str]], option: str = "--set") -> dict[str, list[Any]]:
    """The values of each key, from texts parted at their first `=`. Raises InputError, which names the option."""
    values: dict[str, list[Any]] = {}
    for key, equals, text in given:
        parsed = [parse_setting(f"{key}{equals}{part}", option) for part in split_values(text)]
        name = parsed[0][0]
        if name in values:
            raise InputError(f"{option} {name}", None, None, "given twice: name all its values at once, with commas")
        values[name] = [value for _, value in parsed]
        _refuse_repeated(f"{option} {name}", values[name])
    return values


def _refuse_repeated(option: str, values: list[Any]) -> None:
    """The same value twice is a slip; its columns would be the same."""
    seen: list[str] = []
    for value in values:
        if repr(value) in seen:
            raise InputError(option, None, value, "given twice")
        seen.append(repr(value))


def split_values(text: str) -> list[str]:
    """The parts of a text between its commas, but not those within quotes, brackets or braces."""
    parts = [""]
    quote = ""
    depth = 0
    escaped = False
    for char in text:
        if quote:
            quote = quote if escaped or char != quote else ""
            escaped = not escaped and char == "\\" and quote == '"'
        elif char in "\"'":
            quote = char
        elif char in "[{":
            depth += 1
        elif char in "]}":
            depth -= 1
        elif char == "," and depth == 0:
            parts.append("")
            continue
        parts[-1] += char
    return parts


def document(plan: comparing.Comparison, outcomes: list[comparing.Outcome]) -> dict[str, Any]:
    """The comparison for JSON: what all have in common, then each variant with what sets it apart."""
    differing = comparing.differing(plan.variants)
    return {
        "scenario": plan.name,
        "common": comparing.common(plan.variants),
        "variants": [
            {
                "settings": {key: value for key, value in outcome.variant.facts.items() if key in differing},
                "ending": outcome.ending,
                "reason": outcome.reason,
                "summary": outcome.document,
            }
            for outcome in outcomes
        ],
        "notes": plan.notes,
        "warnings": comparing.warnings(plan.variants),
    }
