"""batchlab conform."""

import json
import sys

import click

from batchlab.conform.cases import case_files
from batchlab.conform.cases import conform as conform_case
from batchlab.errors import one_line


@click.command()
@click.argument("cases", nargs=-1, required=True, type=click.Path())
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document instead of lines.")
def conform(cases: tuple[str, ...], as_json: bool) -> None:
    """Run our policy on recorded CASES (files, or folders of *.json) and compare every iteration.

    Prints one line a case, with the first difference and both values. Exits with 1 on any difference.
    """
    results = []
    for path in case_files(cases):
        result = conform_case(path)
        results.append(result)
        if not as_json:
            verdict = f"FAIL {result.difference}" if result.difference else f"pass ({result.detail})"
            print(one_line(f"{result.name}: {verdict}"))
    failed = sum(result.difference is not None for result in results)
    if as_json:
        cases_out = [
            {
                "name": result.name,
                "path": result.path,
                "passed": result.difference is None,
                "difference": None if result.difference is None else vars(result.difference),
            }
            for result in results
        ]
        print(json.dumps({"cases": cases_out, "passed": len(results) - failed, "failed": failed}, indent=1))
    else:
        print(f"{len(results) - failed} passed, {failed} failed")
    if failed:
        sys.exit(1)
