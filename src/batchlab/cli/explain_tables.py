"""What `explain` prints for people."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.text import Text

from batchlab.cli.columns import print_folded, table_of
from batchlab.cli.names import shown_id
from batchlab.cli.prose import print_with_prose, print_words
from batchlab.cli.tables import MOST_ROWS, console, say
from batchlab.errors import one_line
from batchlab.explain.explainer import merge_facts
from batchlab.explain.explanation import Explanation, Group, by_reason
from batchlab.explain.lives import Life, Span
from batchlab.explain.reasons import Reason
from batchlab.explain.wording import detail
from batchlab.prove import Proof, Trial
from batchlab.units import counted, duration

COLUMNS = {
    "ttft": "TTFT: all",
    "ttft_slowest": "slowest 1 %",
    "e2el": "E2E: all",
    "e2el_slowest": "slowest 1 % ",
}
DECODES = (Reason.DECODE, Reason.BESIDE)
LARGE_MS = 100_000
"""A mean of so many milliseconds is easier read in seconds."""
MAIN = 0.2
"""Of a request's time: reasons with so much are named beside the slowest."""
TURNS = 6
"""So many rows in which two reasons take turns are one."""


def print_overview(trace: str, found: Explanation) -> None:
    """Sums by reason, the slowest requests, those that were not completed, and the findings."""
    out, header, end = console(), found.header, found.end
    unit = header.clock["unit"]
    came = [life.request.arrival for life in found.state.lives.values() if life.attempts]
    took = counted(end.iterations, "iteration") + ("" if unit == "iteration" else f", {_took(end.time, came, unit)}")
    say(out, one_line(f"{trace}: {header.engine} ({header.rules}), {counted(len(came), 'request')}, {took}"))
    if not found.state.lives:  # of a server that nobody has asked
        return
    groups = found.groups()
    out.print()
    _print_groups(out, {name: groups[name] for name in COLUMNS}, unit)
    out.print()
    _print_slowest(out, found, unit)
    others = _others(found, unit)
    for line in others:
        say(out, one_line(line))
    if others:
        out.print()
    if not found.findings:
        say(out, "no trouble found")
    for finding in found.findings:
        out.print(
            f"[bold]{escape(finding.name)}[/bold]: {escape(one_line(finding.text))}", soft_wrap=not out.is_terminal
        )


def _took(end: int, came: list[int], unit: str) -> str:
    """How long it took: a server that idles before its first request is not what took the time."""
    first = min(came, default=0)
    if not first:
        return duration(end, unit)
    return f"{duration(end - first, unit)} from the first arrival at {duration(first, unit)} to the end"


def _print_groups(out: Console, groups: dict[str, Group], unit: str) -> None:
    """A row a reason: the mean of each request and its share."""
    means = [max(group.times, default=0) / group.requests for group in groups.values() if group.requests]
    scale, name, digits = 1, f"{unit}s", 1
    if unit == "ns":
        scale, name, digits = (10**9, "s", 2) if max(means, default=0) >= LARGE_MS * 10**6 else (10**6, "ms", 1)

    def cell(group: Group, time: int) -> str:
        total = sum(group.times)
        if not group.requests or not time:
            return ""
        return f"{time / group.requests / scale:,.{digits}f} {time / total:>4.0%}"

    reasons = [reason for reason in Reason if any(group.times[reason] for group in groups.values())]
    names = [Text(reason.label, style="" if reason.works else "yellow") for reason in reasons]
    columns: dict[str, list[Any]] = {f"mean, {name}": [*names, "in all", "requests", "at least"]}
    for heading, group in zip(COLUMNS.values(), groups.values(), strict=True):
        least = "" if group.least is None else f"{group.least / scale:,.{digits}f}     "
        cells = [cell(group, time) for time in (*(group.times[reason] for reason in reasons), sum(group.times))]
        columns[heading] = [*cells, f"{group.requests:,}     ", least]
    print_folded(out, columns, tuple(COLUMNS.values()))


def _print_slowest(out: Console, found: Explanation, unit: str) -> None:
    for name, latency in (("ttft", "TTFT"), ("e2el", "E2E")):
        rows = []
        for life in found.slowest(name):
            times = life.until_first if name == "ttft" else life.times
            rows.append((Text(shown_id(life.id)), duration(getattr(life, name), unit), _mainly(times or ())))
        if rows:
            print_words(out, table_of((f"slowest {latency}", "time", "mostly"), rows), ("time",))
            out.print()


def _mainly(times: Iterable[int]) -> str:
    """The largest reasons with their shares."""
    found = Counter(by_reason(times))
    total = found.total()
    shown = [f"{name} {time / total:.0%}" for name, time in found.most_common() if time >= MAIN * total]
    return ", ".join(shown or [name for name, _ in found.most_common(1)])


def _others(found: Explanation, unit: str) -> list[str]:
    """What became of those that were not completed, and where their time went."""
    lines = []
    lives = [life for life in found.state.lives.values() if life.attempts and life.state != "completed"]
    for result, count in Counter(life.state for life in lives).most_common():
        sums = [sum(column) for column in zip(*(life.times for life in lives if life.state == result), strict=True)]
        total = sum(sums)
        after = f" after {duration(total / count, unit)} on average ({_mainly(sums)})" if total else " at once"
        lines.append(f"{result}: {count:,}{after}")
    return lines


def print_request(found: Explanation, life: Life) -> None:
    """One request: its figures, every span, and the sums."""
    out, unit = console(), found.header.clock["unit"]
    request = life.request
    out.print(f"[bold]{escape(shown_id(life.id))}[/bold]", soft_wrap=not out.is_terminal)
    result = (
        life.state if life.reason is None or life.state in ("completed", "active") else f"{life.state}: {life.reason}"
    )
    figures = [
        f"prompt {request.prompt:,}",
        f"output {request.output or life.emitted:,}",
        f"priority {request.priority}",
    ]
    figures.append(f"arrived {_at(request.arrival, unit)}")
    figures.append(one_line(result))
    for name, time in (("TTFT", life.ttft), ("E2E", life.e2el)):
        if time is not None:
            figures.append(f"{name} {duration(time, unit)}")
    if life.attempts > 1:
        figures.append(counted(life.attempts, "attempt"))
    if life.preemptions:
        figures.append(f"{counted(life.preemptions, 'preemption')}, {life.lost:,} computed tokens lost")
    say(out, ", ".join(figures))
    total = sum(life.times) or 1
    sums = Counter(by_reason(life.times)).most_common()
    shown = ", ".join(f"{name} {duration(time, unit)} ({time / total:.0%})" for name, time in sums)
    say(out, f"in all: {shown or 'no time'}")
    _print_spans(out, life, found, unit)


def _print_spans(out: Console, life: Life, found: Explanation, unit: str) -> None:
    scale, mark, digits = (10**6, " (ms)", 3) if unit == "ns" else (1, "", 0)
    numeric = (f"at{mark}", f"time{mark}", "iterations")
    columns: dict[str, list[Any]] = {name: [] for name in (*numeric, "reason", "what the trace says")}
    rows = joined(bridged(life.spans or []), lambda span: detail(span, life, found.state.lives), unit)
    folded = by_turns(rows)
    for spans, text in folded[:MOST_ROWS]:
        span, last = spans[0], spans[-1]
        names = " / ".join(dict.fromkeys(one.reason.label for one in spans))
        numbers = "" if span.first is None else f"{span.first:,}"
        if last.last != span.first:
            numbers += f"-{last.last:,}"
        cells = (
            f"{span.start / scale:,.{digits}f}",
            f"{(last.end - span.start) / scale:,.{digits}f}",
            numbers,
            Text(names, style="" if span.reason.works else "yellow"),
            Text(one_line(text)),
        )
        for column, value in zip(columns.values(), cells, strict=True):
            column.append(value)
    print_with_prose(out, columns, numeric)
    if len(folded) > MOST_ROWS:
        out.print(f"... and {len(folded) - MOST_ROWS:,} more rows")
    if len(folded) < len(rows) or len(folded) > MOST_ROWS:
        say(out, "with --json each span is listed")


def by_turns(rows: list[tuple[Span, str]]) -> list[tuple[list[Span], str]]:
    """Rows, where two reasons to wait take turns again and again all of them one."""
    found: list[tuple[list[Span], str]] = []
    at = 0
    while at < len(rows):
        end = at + 1
        while end < len(rows) and _takes_turns(rows, at, end):
            end += 1
        spans = [span for span, _ in rows[at:end]]
        if len(spans) < TURNS:
            found.append((spans[:1], rows[at][1]))
            at += 1
            continue
        times = Counter(span.reason.label for span in spans)
        turns = " and ".join(f"{count:,} x {name}" for name, count in times.items())
        found.append((spans, f"{turns}, one after the other; first: {rows[at][1]}; last: {rows[end - 1][1]}"))
        at = end
    return found


def _takes_turns(rows: list[tuple[Span, str]], first: int, place: int) -> bool:
    reason = rows[place][0].reason
    if reason.works or rows[first][0].reason.works:
        return False
    return place < first + 2 or reason is rows[place - 2][0].reason


def bridged(spans: list[Span]) -> list[Span]:
    """Without the gaps between two iterations where the next one goes on in the same way: a real engine has many."""
    found: list[Span] = []
    for span in spans:
        gap = found[-1] if found and found[-1].reason is Reason.BETWEEN else None
        before = found[-2] if gap is not None and len(found) > 1 else None
        if gap is None or before is None or not _goes_on(before, span):
            found.append(span)
            continue
        found.pop()
        gaps = gap.end - gap.start
        if before.reason is span.reason:
            facts = dict(before.facts)
            merge_facts(facts, span.facts)
            facts["gaps"] = before.facts.get("gaps", 0) + gaps
            found[-1] = replace(before, end=span.end, last=span.last, facts=facts)
        else:
            found.append(replace(span, facts={**span.facts, "gaps": gaps}))
    return found


def _goes_on(before: Span, span: Span) -> bool:
    alike = before.reason is span.reason or {before.reason, span.reason} <= set(DECODES)
    return alike and before.who == span.who and before.last is not None and span.first == before.last + 1


def joined(spans: list[Span], say: Callable[[Span], str], unit: str) -> list[tuple[Span, str]]:
    """Rows with their texts. What differs only in who is named is one row; so is decoding, beside prefill or not."""
    rows: list[tuple[Span, str]] = []
    for alike in _alike(spans):
        first, last = alike[0], alike[-1]
        if first.reason in DECODES:
            row, text = replace(first, reason=Reason.DECODE), _decoded(alike)
        else:
            row, text = first, say(first)
            if len(alike) > 1:
                text += f"; then {len(alike) - 1:,} more such"
        gaps = sum(span.facts.get("gaps", 0) for span in alike)
        if gaps:
            text += f"; {duration(gaps, unit)} in gaps"
        rows.append((replace(row, end=last.end, last=last.last), text))
    return rows


def _decoded(spans: list[Span]) -> str:
    tokens = sum(span.facts["tokens"] for span in spans)
    beside = sum(span.facts["tokens"] for span in spans if span.reason is Reason.BESIDE)
    text = f"{tokens:,} token{'' if tokens == 1 else 's'}"
    return text + (f"; {beside:,} of them beside prefill of others" if beside else "")


def _alike(spans: list[Span]) -> Iterator[list[Span]]:
    """Runs of spans that follow each other with the same reason, or are all of them decoding."""
    run: list[Span] = []
    for span in spans:
        if run and span.reason is not run[-1].reason and not {span.reason, run[-1].reason} <= set(DECODES):
            yield run
            run = []
        run.append(span)
    if run:
        yield run


def print_proof(proof: Proof) -> None:
    """What the reruns showed."""
    out = console()
    out.print()
    if not proof.limits:
        told = "it waited for no limit" if proof.wait is None else f"its first wait is {proof.wait.reason.label}"
        say(out, f"nothing to lift: {told}")
        return
    assert proof.wait is not None
    stated = ", ".join(f"{name} = {value:,}" for name, value in proof.limits.items())
    first = _at(proof.first_scheduled, proof.unit)
    say(out, f"first wait: {proof.wait.reason.label} ({stated}); first scheduled {first}. Run again with more:")
    rows = []
    for trial in proof.trials:
        lifted = ", ".join(f"{name} {value:,}" for name, value in trial.lifted.items())
        wait = "none" if trial.wait is None else trial.wait.label
        cells = (
            ("refused", Text(one_line(trial.refused)), "")
            if trial.refused is not None
            else (_at(trial.first_scheduled, proof.unit), wait, _change(proof, trial))
        )
        rows.append((lifted, *cells))
    print_words(out, table_of(("lifted to", "first scheduled", "first wait then", ""), rows))
    if not proof.proven:
        say(out, "not proven: it was scheduled no earlier in any of them")
    elif len(proof.trials[-1].lifted) > 1:
        say(out, "proven only together: another limit stood behind the one that is named")
    else:
        say(out, "proven: with more of it, it was scheduled earlier")


def _change(proof: Proof, trial: Trial) -> str:
    before, after = proof.queue_time, trial.queue_time
    if before is None or after is None:
        return ""
    if before == after:
        return "the same"
    return f"{duration(abs(after - before), proof.unit)} {'earlier' if after < before else 'later'}"


def _at(time: int | None, unit: str) -> str:
    if time is None:
        return "never"
    return f"at {duration(time, unit)}" if unit == "ns" else f"at {time:,}"
