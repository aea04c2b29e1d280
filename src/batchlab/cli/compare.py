"""batchlab compare."""

import sys
from typing import Any

import click

from batchlab import compare as comparing
from batchlab.cli.documents import print_json
from batchlab.cli.notes import note
from batchlab.cli.progress import progress
from batchlab.cli.scenario_options import Changes, scenario_options
from batchlab.cli.side_by_side import print_comparison


@click.command()
@click.argument("scenario", type=click.Path())
@scenario_options(several=True)
@click.option("--token-budget", metavar="N,...", help="Short for --set engine.max_num_batched_tokens=N,...")
@click.option("--chunk-size", metavar="N,...", help="Short for --set engine.prefill_chunk=N,...")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document instead of a table.")
def compare(
    scenario: str,
    changes: Changes,
    token_budget: str | None,
    chunk_size: str | None,
    as_json: bool,
) -> None:
    """Run a SCENARIO file in several variants and print them side by side.

    The variants are all combinations of the values given: policies outermost, then the keys in the order given. Exits
    with 1 if a variant was refused by its policy, stalled or stopped at its iteration limit.
    """
    shorts = {"engine.max_num_batched_tokens": token_budget, "engine.prefill_chunk": chunk_size}
    plan = comparing.plan(scenario, *changes.variants(scenario, shorts), changes.workload)
    outcomes = []
    for variant in plan.variants:
        with progress(variant.run) as observers:
            outcomes.append(comparing.run_variant(variant, observers))
    if as_json:
        print_json(document(plan, outcomes))
    else:
        print_comparison(plan, outcomes)
    remarks = dict.fromkeys(line for variant in plan.variants for line in variant.run.remarks())
    for line in (*plan.notes, *comparing.warnings(plan.variants), *remarks):
        note(line)
    if not all(variant.run.inline for variant in plan.variants):  # of a few requests each has a row
        for line in comparing.unlike(outcomes):
            note(line)
        from batchlab.cli.large import note_unshared

        note_unshared(variant.run for variant in plan.variants)
    if not all(outcome.finished for outcome in outcomes):
        sys.exit(1)


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
