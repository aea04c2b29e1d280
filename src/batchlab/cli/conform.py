"""batchlab conform."""

import sys
from pathlib import Path

import click

from batchlab.cli.documents import print_json
from batchlab.conform.cases import case_files, conform_case
from batchlab.conform.convert import write_trace
from batchlab.errors import InputError, one_line


@click.command()
@click.argument("cases", nargs=-1, required=True, type=click.Path())
@click.option(
    "--write-traces", "folder", type=click.Path(), metavar="DIR", help="Also write recorded vLLM steps as traces here."
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document instead of lines.")
def conform(cases: tuple[str, ...], folder: str | None, as_json: bool) -> None:
    """Run our policy on recorded CASES (files, or folders of *.json and *.jsonl) and compare every iteration.

    Prints one line a case, with the first difference and both values. Exits with 1 on any difference. What
    --write-traces writes is what the engine itself did, for `batchlab verify` and for your own tools.
    """
    results = []
    written: set[Path] = set()
    for path in case_files(cases):
        if folder is not None:
            _write(path, folder, written)
        result = conform_case(path)
        results.append(result)
        if not as_json:
            verdict = f"FAIL {result.difference}" if result.difference else f"pass ({result.detail})"
            file = Path(result.path).stem
            print(one_line(f"{file if file == result.name else f'{file} {result.name}'}: {verdict}"))
    failed = sum(result.difference is not None for result in results)
    if as_json:
        cases_out = [
            {
                "name": result.name,
                "path": result.path,
                "passed": result.difference is None,
                "detail": result.detail,
                "difference": None if result.difference is None else vars(result.difference),
            }
            for result in results
        ]
        print_json({"cases": cases_out, "passed": len(results) - failed, "failed": failed})
    else:
        if folder is not None:
            print(one_line(f"{len(written)} traces written to {folder}"))
        print(f"{len(results) - failed} passed, {failed} failed")
    if failed:
        sys.exit(1)


def _write(path: Path, folder: str, written: set[Path]) -> None:
    if Path(folder, f"{path.stem}.jsonl") in written:
        raise InputError(path, None, None, f"a second case of this name: its trace would replace the first in {folder}")
    target = write_trace(path, folder)
    if target is not None:
        written.add(target)
