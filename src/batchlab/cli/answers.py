"""What `run` prints of objectives, goodput, a window and groups."""

import re
from collections.abc import Mapping
from typing import Any

import click
from rich.console import Console
from rich.markup import escape

from batchlab.cli.columns import print_folded, table_of
from batchlab.cli.tables import console, percent, say
from batchlab.errors import one_line
from batchlab.units import counted

OF_GROUPS = ("ttft", "tpot", "itl", "e2el")

TARGET = re.compile(r"\w+:[\w.]*")


class SeveralWords(click.Command):
    """A command whose --goodput takes several words after it, as vLLM's does: --goodput ttft:500 tpot:50."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """The arguments, with the option before each of its words."""
        written: list[str] = []
        within = False
        for word in args:
            if within and TARGET.fullmatch(word):
                written += [word] if written[-1] == "--goodput" else ["--goodput", word]
            else:
                written.append(word)
                within = word.startswith("--goodput")
        return super().parse_args(ctx, written)


def print_answers(found: dict[str, Any] | None, unit: str, predicted: dict[str, Any] | None = None) -> None:
    """All of it, to stdout; nothing where nothing was asked. predicted: answers to go beside."""
    if found is None:
        return
    from batchlab.cli.large import print_latencies
    from batchlab.metrics.answers import undecided

    out = console()
    if "window" in found:
        _say_window(out, found, unit)
        out.print()
        print_latencies(out, found["latency"], unit)
        say(out, _errors(found["intervals"], unit))
        out.print()
    say(out, ("in the window: " if "window" in found else "") + _rates(found["throughput"]))
    if "goodput" in found:
        say(out, _goodput(found["goodput"], unit))
    if predicted is not None and "goodput" in predicted:
        say(out, f"predicted: {_goodput(predicted['goodput'], unit)}")
    if "chunks" in found:
        out.print()
        _print_chunks(out, found["chunks"], unit)
    if "groups" in found:
        out.print()
        _print_groups(out, found["groups"], unit)
    if "objectives" in found:
        out.print()
        _print_objectives(out, found["objectives"], unit, (predicted or {}).get("objectives"))
        for line in undecided(found):
            say(out, line)
    out.print()


def _say_window(out: Console, found: dict[str, Any], unit: str) -> None:
    from batchlab.cli.large import span

    window, steady = found["window"], found["stationarity"]
    say(
        out,
        f"window {span(window['from'], window['to'], unit)} ({window['rule']}): "
        f"{counted(found['requests'], 'request')} arrive in it; {_results(found['results'])}",
    )
    if steady["stationary"] is None:
        say(out, "stationary: too short to tell")
        return
    system, completions = steady["in_system"], steady["completions"]
    first, second = (f"{10 * completions[half]:,.0f}" for half in ("first_half", "second_half"))
    verdict = "stationary" if steady["stationary"] else "NOT STATIONARY, the figures depend on the window"
    say(
        out,
        f"{verdict}: first and second half have {system['first_half']:,.2f} and {system['second_half']:,.2f} "
        f"requests in the system, {first} and {second} completions",
    )


def _results(results: dict[str, int]) -> str:
    return ", ".join(f"{count:,} {name}" for name, count in results.items())


def _errors(intervals: dict[str, dict[str, float | None]], unit: str) -> str:
    """The half widths that there are."""
    from batchlab.cli.large import NAMES, amount

    parts = []
    for name in ("ttft", "tpot", "e2el"):
        known = [f"{s} ±{amount(width, unit)}" for s, width in intervals[name].items() if width is not None]
        if known:
            parts.append(f"{NAMES[name]} {' '.join(known)}")
    if not parts:
        return "too few requests for confidence intervals"
    return f"95 % confidence, from 20 batches in order of arrival: {', '.join(parts)}"


def _rates(found: dict[str, Any]) -> str:
    if found["request_rate"] is None:
        return "nothing was completed"
    per = found["per"]
    requests, outputs, prompts = (found[name] for name in ("request_rate", "output_token_rate", "prompt_token_rate"))
    tokens = f"{outputs:,.1f} output tokens/{per}, {prompts:,.1f} prompt tokens/{per}"
    return f"completed {requests:,.3f} requests/{per}, {tokens}"


def within(found: Mapping[str, Any], unit: str) -> str:
    """Targets in words: `targets` of all requests, or `targets_of_groups` of each class's; empty without any."""
    from batchlab.cli.large import NAMES, amount

    suffix = " ms" if unit == "ns" else ""

    def said(targets: dict[str, float]) -> str:
        return ", ".join(f"{NAMES[name]} {amount(most, unit)}{suffix}" for name, most in targets.items())

    groups = found.get("targets_of_groups", {})
    if "targets" in found:
        return said(found["targets"])
    return "; ".join(f"{one_line(name)}: {said(own)}" if name else said(own) for name, own in groups.items())


def _goodput(found: dict[str, Any], unit: str) -> str:
    rate = "-" if found["goodput"] is None else f"{found['goodput']:,.3f}"
    share = "-" if found["attainment"] is None else f"{100 * found['attainment']:.2f} %"
    return (
        f"goodput {rate} requests/{found['per']} within {within(found, unit)}: "
        f"{found['good']:,} of all {counted(found['requests'], 'request')}, {share}"
    )


def _print_chunks(out: Console, found: dict[str, Any], unit: str) -> None:
    from batchlab.cli.large import FIGURES, amount

    title = f"{'ms' if unit == 'ns' else f'in {unit}s'}, in chunks of {found['tokens']:,}"
    rows = []
    for key in ("icl", "ttft", "tpot"):
        cells = (amount(found[key][f], unit) for f in FIGURES)
        rows.append((key.upper(), f"{found[key]['count']:,}", *cells))
    print_folded(out, table_of((title, "count", *FIGURES), rows), ("count", *FIGURES))


def _print_groups(out: Console, groups: dict[str, Any], unit: str) -> None:
    """What became of each group, and a line for each of its latencies."""
    became = _became(groups)
    print_folded(out, became, tuple(became)[1:])
    out.print()
    latencies = _latencies_of_groups(groups, unit)
    print_folded(out, latencies, tuple(latencies)[2:], repeated=2)


def _became(groups: dict[str, Any]) -> dict[str, list[str]]:
    all_figures = list(groups.values())
    rates = [found["throughput"]["request_rate"] for found in all_figures]
    columns = {
        "group": [escape(one_line(name)) for name in groups],
        "requests": [f"{found['requests']:,}" for found in all_figures],
        "completed": [f"{found['results'].get('completed', 0):,}" for found in all_figures],
        f"requests/{all_figures[0]['throughput']['per']}": ["-" if rate is None else f"{rate:,.3f}" for rate in rates],
    }
    if any("goodput" in found for found in all_figures):
        shares = [found["goodput"]["attainment"] for found in all_figures]
        columns["attained"] = ["-" if share is None else percent(share) for share in shares]
    return columns


def _latencies_of_groups(groups: dict[str, Any], unit: str) -> dict[str, list[str]]:
    from batchlab.cli.large import FIGURES, NAMES, amount

    rows = [
        (escape(one_line(name)), NAMES[key], found["latency"][key])
        for name, found in groups.items()
        for key in OF_GROUPS
    ]
    return {
        "group": [name if place % len(OF_GROUPS) == 0 else "" for place, (name, _, _) in enumerate(rows)],
        "ms" if unit == "ns" else f"in {unit}s": [latency for _, latency, _ in rows],
        "count": [f"{figures['count']:,}" for _, _, figures in rows],
        **{name: [amount(figures[name], unit) for _, _, figures in rows] for name in FIGURES},
    }


def _print_objectives(
    out: Console, objectives: list[dict[str, Any]], unit: str, predicted: list[dict[str, Any]] | None = None
) -> None:
    """Each objective with its value; beside it what is predicted for it."""
    beside = ("predicted",) if predicted else ()
    rows = []
    for place, one in enumerate(objectives):
        cells = [_value(one, unit), "yes" if one["met"] else "NO"]
        rows.append((one["objective"], *cells, *([_value(predicted[place], unit)] if predicted else [])))
    print_folded(out, table_of(("objective", "value", "met", *beside), rows), ("value", *beside))


def _value(objective: dict[str, Any], unit: str) -> str:
    from batchlab.cli.large import amount

    value = objective["value"]
    if value is None:
        return "-"
    if objective["objective"].startswith("attainment"):
        return f"{100 * value:.2f} %"
    return f"{amount(value, unit)}{' ms' if unit == 'ns' else ''}"
