"""batchlab export."""

import os
from collections.abc import Callable
from pathlib import Path

import click

from batchlab.cli.notes import note_cut
from batchlab.cli.progress import ended_bar
from batchlab.errors import InputError, nearest
from batchlab.events import End, Observer
from batchlab.export.follow import follow
from batchlab.files import flush, whole_bytes, whole_file

TABLES = (".parquet", ".arrow", ".csv")
PICTURES = (".png", ".svg")
ENDINGS = {
    "chrome": (".json",),
    "requests": TABLES,
    "iterations": TABLES,
    "timeline": PICTURES,
    "budget": PICTURES,
    "load": PICTURES,
    "latency": PICTURES,
}
"""What can be written, and in which files."""

Tell = Callable[[list[Observer]], End]
"""Tells the trace's events to observers."""


@click.command()
@click.argument("trace", type=click.Path())
@click.argument("what", type=click.Choice(list(ENDINGS)))
@click.option("-o", "--output", required=True, type=click.Path(), metavar="FILE", help="Its ending says the format.")
def export(trace: str, what: str, output: str) -> None:
    """Write what a TRACE says for other programs, or draw it.

    \b
    chrome      .json: for ui.perfetto.dev, a track a request
    requests    .csv, .parquet, .arrow: a row a request
    iterations  .csv, .parquet, .arrow: a row an iteration
    timeline    .png, .svg: what each request did when
    budget      .png, .svg: tokens of the iterations: decode, prefill, unused
    load        .png, .svg: queue, batch and KV blocks over time
    latency     .png, .svg: how TTFT, ITL and E2E are spread
    """
    ending = _ending(what, output)
    if os.path.realpath(trace) == os.path.realpath(output):
        raise InputError(output, None, None, "would overwrite the trace itself")
    with ended_bar("reading") as bar:

        def tell(observers: list[Observer]) -> End:
            return follow(trace, [*observers, *bar])

        end = _write(what, ending, output, tell)
    if end.termination == "cut":
        note_cut(trace, f"{output} has it")


def _ending(what: str, output: str) -> str:
    """The ending of the file. Raises InputError for one that does not suit."""
    ending, possible = Path(output).suffix.lower(), ENDINGS[what]
    if ending not in possible:
        raise InputError(output, None, None, f"{what} is written as {' or '.join(possible)}{nearest(ending, possible)}")
    return ending


def _write(what: str, ending: str, output: str, tell: Tell) -> End:
    if what == "chrome":
        from batchlab.export.chrome import ChromeTrace

        with whole_file(output) as text:
            chrome = ChromeTrace(text)
            end = tell([chrome])
            chrome.close()
            flush(text, output)
        return end
    if what in ("requests", "iterations"):
        from batchlab.export import tables  # pyarrow takes time to import

        with whole_bytes(output) as file:
            end = tables.write(what, file, ending, tell)
            flush(file, output)
        return end
    from batchlab.export import charts

    chart = charts.CHARTS[what]()
    end = tell(chart.observers)
    with whole_bytes(output) as file:
        charts.save(chart, file, ending)
        flush(file, output)
    return end
