"""batchlab verify."""

import dataclasses
import sys

import click

from batchlab.cli.documents import print_json
from batchlab.errors import one_line
from batchlab.trace.verify import verify as verify_trace
from batchlab.units import counted


@click.command()
@click.argument("trace", type=click.Path())
@click.option(
    "--summary", type=click.Path(), metavar="FILE", help="Check that this summary follows from the trace too."
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document instead of lines.")
def verify(trace: str, summary: str | None, as_json: bool) -> None:
    """Check a TRACE against its own header, without running any scheduler.

    Exits with 1 if a rule is broken; each violation is one line with the rule's name.
    """
    report = verify_trace(trace, summary)
    if as_json:
        violations = [dataclasses.asdict(violation) for violation in report.violations]
        document = {
            "trace": trace,
            "ok": report.ok,
            "note": report.note,
            "stopped": report.stopped,
            "violations": violations,
        }
        print_json(document)
    else:
        for violation in report.violations:
            print(one_line(str(violation)))
        verdict = "every rule holds" if report.ok else counted(len(report.violations), "violation")
        if report.note is not None:
            verdict += f" ({report.note})"
        if report.stopped is not None:
            verdict += f"; {report.stopped}"
        print(
            one_line(
                f"{trace}: {counted(report.iterations, 'iteration')}, {counted(report.requests, 'request')}: {verdict}"
            )
        )
    if not report.ok:
        sys.exit(1)
