"""What `batchlab learn` prints."""

from rich.console import Console
from rich.markup import escape
from rich.text import Text

from batchlab.cli.columns import plain_table, print_folded, table_of
from batchlab.cli.tables import milliseconds, say, settings_line
from batchlab.errors import one_line
from batchlab.learn import Page
from batchlab.learn.predict import Verdict
from batchlab.learn.tour import Part, Tour
from batchlab.metrics.result import RequestResult
from batchlab.units import duration


def print_question(out: Console, part: Part, page: Page) -> None:
    """What is known before an iteration."""
    if page is part.pages[0]:
        out.print()
        out.print(Text(settings_line(part.run), style="bold"), soft_wrap=not out.is_terminal)
    at = (
        ""
        if part.run.cost.unit == "iteration"
        else f", at {duration(page.start, 'ns') if part.run.cost.unit == 'ns' else page.start}"
    )
    out.print()
    out.print(Text(f"{part.run.engine}: iteration {page.number} (of {len(part.pages)}){at}", style="bold"))
    urgency = len({request.priority for request in part.run.requests}) > 1
    arrived = [
        f"{r.id} (prompt {r.prompt}, output {r.output}{f', priority {r.priority}' if urgency else ''})"
        for r in page.arrived
    ]
    limits = part.run.limits
    blocks = [] if page.free is None else [f"{page.free} free KV blocks of {limits.block_size} tokens"]
    cached = [("cached", [f"{id}, once seated: {tokens} tokens" for id, tokens in page.cached])] if page.cached else []
    table = plain_table("", "", "")
    table.show_header = False
    for name, words in (
        ("arrive", arrived),
        ("waiting", [f"{id} ({text})" for id, text in page.queue]),
        ("seated", [f"{id} ({text})" for id, text in page.seats]),
        ("limits", [f"{limits.max_num_seqs} seats", f"{limits.max_num_batched_tokens} tokens", *blocks]),
        *cached,
    ):
        table.add_row("", name, Text(one_line(", ".join(words)) or "-"))
    out.print(table)
    out.print("Who runs, with how many tokens?")


def print_verdict(out: Console, verdict: Verdict) -> None:
    """What was right about a prediction."""
    if verdict.is_right:
        out.print("[green]right[/green]")
        return
    said = [f"not so: {' '.join(verdict.wrong)}"] * bool(verdict.wrong)
    said += [f"missing: {' '.join(verdict.missing)}"] * bool(verdict.missing)
    out.print(Text(one_line("; ".join(said)), style="yellow"))


def print_answer(out: Console, page: Page) -> None:
    """What an iteration did, and why."""
    table = plain_table("", "", "")
    table.show_header = False
    for entry in page.entries:
        if entry.scheduled is None:
            table.add_row("", Text(one_line(entry.id)), Text(one_line(f"{entry.mark}: {entry.reason}")))
        else:
            style = "green" if entry.decodes else "blue"
            table.add_row("", Text(one_line(entry.mark), style=style), Text(one_line(entry.reason)))
    for id, why in page.waits:
        table.add_row("", Text(one_line(id)), Text(f"waits: {one_line(why)}"))
    out.print(table)
    tail = [] if page.schedule else [f"nobody runs{f': {page.note}' if page.note else ''}"]
    tail += [f"first token of {' '.join(page.first_token)}"] * bool(page.first_token)
    tail += [f"{' '.join(page.completed)} done"] * bool(page.completed)
    tail += [] if page.unused is None else [f"{page.unused:,} tokens unused"]
    tail += [page.lasts] * bool(page.lasts)
    say(out, f"  {one_line('; '.join(tail))}")


def print_change(out: Console, before: Tour, after: Tour, place: int | None) -> None:
    """Where another setting makes the first difference, and what it does to each request's end."""
    if place is None:
        say(out, "No iteration runs differently.")
        return
    part, page = after.stops()[place]
    old = before.stops()[place][1].schedule if place < len(before.stops()) else []
    where = f"{part.run.engine}, iteration {page.number}"
    say(
        out, f"The first difference is in {where}: {' '.join(page.schedule)} where it was {' '.join(old) or 'nothing'}."
    )
    for name, ended in _ends(after).items():
        was = _ends(before).get(name)
        if was != ended:
            say(out, f"  {one_line(name)}: {ended}, it was {was}")


def _ends(made: Tour) -> dict[str, str]:
    several = len(made.parts) > 1
    return {
        f"{part.run.engine}, {r.request.id}" if several else r.request.id: _ended(r, part)
        for part in made.parts
        for r in part.results
    }


def _ended(result: RequestResult, part: Part) -> str:
    if result.completed_time is None:
        return str(result.result)
    return (
        f"done in iteration {result.completed_iteration}"
        if part.run.cost.unit == "iteration"
        else f"E2E {duration(result.completed_time - result.request.arrival, part.run.cost.unit)}"
    )


def print_results(out: Console, part: Part) -> None:
    """Every request's times, in the clock's unit; in ms where it counts ns."""
    in_ms = part.run.cost.unit == "ns"
    headings = [f"{name} (ms)" if in_ms else name for name in ("TTFT", "E2E", "max ITL")]
    rows = []
    for r in part.results:
        times = (r.since_arrival(r.first_time), r.since_arrival(r.completed_time), r.max_itl)
        shown = ["-" if time is None else milliseconds(time) if in_ms else f"{time:,}" for time in times]
        rows.append((escape(one_line(r.request.id)), *shown))
    out.print()
    print_folded(out, table_of((one_line(part.run.engine), *headings), rows), tuple(headings))
