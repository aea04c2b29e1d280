"""batchlab show."""

import click

from batchlab.cli.documents import print_json
from batchlab.cli.notes import note_cut
from batchlab.cli.progress import ended_bar
from batchlab.cli.tables import MOST_ROWS, console, print_run, print_schedule, say, settings_line_of
from batchlab.cli.timeline import Timeline
from batchlab.errors import InputError
from batchlab.events import Header
from batchlab.export.follow import follow
from batchlab.export.strip import Strip
from batchlab.metrics.fold import Summary
from batchlab.trace.encode import encode


@click.command()
@click.argument("trace", type=click.Path())
@click.option("--iterations", "window", metavar="FROM..TO", help="Show these iterations only, also of a large run.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document instead of tables.")
def show(trace: str, window: str | None, as_json: bool) -> None:
    """Print a TRACE the way that `run` prints a run, whoever recorded it.

    Of a run with few iterations and requests: every iteration, the timeline and every request; else the latencies and
    small charts.
    """
    first, last = (0, MOST_ROWS - 1) if window is None else _parse(window)
    summary, strip, timeline = Summary(), Strip(), Timeline(first, last)
    with ended_bar("reading") as observers:
        end = follow(trace, [timeline, summary, strip, *observers])
    header = summary.header
    assert header is not None
    small = header.requests is not None or max(end.iterations, summary.tally.count) <= MOST_ROWS
    if window is not None and not timeline.steps:
        raise InputError("--iterations", None, window, f"the trace has {end.iterations:,}, from 0 on")
    if as_json:
        document = summary.document(with_requests=small)
        if small or window is not None:
            document["schedule"] = [encode(step.line) for step in timeline.steps]
        print_json({"trace": trace, **document})
    elif window is not None:
        _print_part(header, summary, timeline)
    elif small:
        print_run(summary, timeline, settings_line_of(header), trace)
    else:
        from batchlab.cli.large import print_large_run, source_lines  # numpy takes time to import

        print_large_run(summary, settings_line_of(header), source_lines(summary), trace, strip)
    if end.termination == "cut":
        note_cut(trace)


def _parse(window: str) -> tuple[int, int]:
    """FROM..TO, both included. Raises InputError."""
    first, dots, last = window.partition("..")
    if not dots or not first.strip().isdecimal() or not last.strip().isdecimal():
        raise InputError("--iterations", None, window, "must be FROM..TO, such as 100..150")
    if not 0 <= int(last) - int(first) < MOST_ROWS:
        raise InputError("--iterations", None, window, f"must be 1 to {MOST_ROWS} iterations, the smaller number first")
    return int(first), int(last)


def _print_part(header: Header, summary: Summary, timeline: Timeline) -> None:
    """Some iterations, and the requests that were there."""
    out = console()
    say(out, settings_line_of(header))
    ids = [id for result in summary.results if timeline.cells.get(id := result.request.id)]
    print_schedule(out, timeline, ids[:MOST_ROWS], header.clock["unit"], counted=True)
    if len(ids) > MOST_ROWS:
        say(out, f"... and {len(ids) - MOST_ROWS:,} more requests")
