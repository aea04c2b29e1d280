"""Figures as the page's tables say them."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from batchlab.errors import one_line
from batchlab.report.cells import parsed
from batchlab.units import NS_IN_MS, NS_IN_S, counted

FIGURES = ("mean", "p50", "p90", "p99", "max")
LATENCIES = {"ttft": "TTFT", "itl": "ITL", "e2el": "E2E", "queue_time": "Queue time"}
MAIN = ("Requests completed", "Output tokens", "TTFT P50", "TTFT P99", "ITL P99", "E2E P99", "Preemptions")
"""Beginnings of the labels of the figures that say most."""
WHOLE = 10_000
"""From here on nobody reads decimals."""
SMALL = 0.005
"""A difference below this share is none worth colour."""


def time(value: float | None, unit: str) -> str:
    """A time; ns as ms or s, with three digits."""
    if value is None:
        return "–"
    if unit != "ns":
        return number(value)
    seconds, ms = value / NS_IN_S, value / NS_IN_MS
    if seconds >= 1:
        return f"{seconds:,.1f} s" if seconds >= 100 else f"{_three_digits(seconds)} s"
    return f"{_three_digits(ms)} ms"


def _three_digits(value: float) -> str:
    """With trailing zeros, so that figures side by side are as exact; 0 is exact as it is."""
    return f"{value:.0f}" if value == 0 or value >= 99.95 else f"{value:#.3g}"


def number(value: float | None) -> str:
    """A number, with at most two decimals."""
    if value is None:
        return "–"
    if isinstance(value, float) and abs(value) >= WHOLE:
        return f"{value:,.0f}"
    return f"{value:,.2f}".rstrip("0").rstrip(".") if isinstance(value, float) else f"{value:,}"


def rate(value: float | None) -> str:
    """A rate or a price, with three digits."""
    if value is None:
        return "–"
    return f"{value:,.0f}" if value >= 1000 else f"{value:.3g}"


def statistic(name: str) -> str:
    """A statistic's name: P99, mean."""
    return name.upper() if name.startswith("p") else name


def figure(name: str) -> str:
    """The name of a figure such as `ttft.p99` or `itl:mean`: TTFT P99, ITL mean."""
    metric, _, of = name.replace(":", ".").partition(".")
    known = LATENCIES | {"max_itl": "Max ITL", "attainment": "Attainment"}
    return f"{known.get(metric, metric.upper())} {statistic(of)}".rstrip()


def within(about: Mapping[str, str], unit: str) -> str:
    """The targets that a table's metadata has, in words: chat: TTFT 200 ms, TPOT 15.0 ms; doc: TTFT 2.00 s.

    Empty where it has none, or not so that they can be read.
    """
    groups = parsed(about.get("targets_of_groups", "{}")) or {"": parsed(about.get("targets", "{}"))}
    try:
        texts = {
            group: ", ".join(f"{figure(name)} {time(most, unit)}" for name, most in own.items())
            for group, own in groups.items()
        }
    except (AttributeError, TypeError, ValueError):
        return ""
    return one_line("; ".join(f"{group}: {text}" if group else text for group, text in texts.items()))


def share(value: float | None) -> str:
    """A share in percent."""
    return "–" if value is None else f"{100 * value:.1f} %"


@dataclass(frozen=True)
class Row:
    """A figure of every run. shown: as text; changes: how it differs from the first run; tones: better, worse or "" """

    label: str
    shown: list[str]
    changes: list[str]
    tones: list[str]

    @property
    def main(self) -> bool:
        """Whether it is among the few that say most."""
        return self.label.startswith(MAIN)


def _row(
    label: str,
    runs: Sequence[Any],
    value: Callable[[Any], Any],
    show: Callable[[Any, Any], str],
    good: int,
    timed: bool = False,
) -> Row:
    """good: 1 where more is better, -1 where less is, 0 where neither. timed: between units there is no difference."""
    values = [value(run) for run in runs]
    changes, tones = [], []
    for one, run in zip(values, runs, strict=True):
        first = values[0]
        apart = timed and run["unit"] != runs[0]["unit"]
        change = None if not first or one is None or apart else one / first - 1
        changes.append("" if change is None or one == first else f"{100 * change:+,.1f} %".replace("-", "−"))
        better = change is not None and abs(change) >= SMALL and good != 0
        tones.append(("better" if (change or 0) * good > 0 else "worse") if better else "")
    return Row(label, [show(one, run) for one, run in zip(values, runs, strict=True)], changes, tones)


def rows(runs: Sequence[dict[str, Any]]) -> list[Row]:
    """The figures of all runs side by side."""

    def plain(value: Any, run: Any) -> str:
        return number(value)

    def rated(value: Any, run: Any) -> str:
        return rate(value)

    def timed(value: Any, run: Any) -> str:
        return time(value, run["unit"])

    def total(name: str) -> Callable[[Any], Any]:
        return lambda run: run["totals"][name]

    def latency(name: str, figure: str) -> Callable[[Any], Any]:
        return lambda run: run["latency"][name][figure]

    per = " or ".join(dict.fromkeys(run["throughput"]["per"] for run in runs))
    found = [
        _row("Requests completed", runs, lambda run: run["results"].get("completed", 0), plain, 1),
        _row("Not completed", runs, lambda run: run["requests"] - run["results"].get("completed", 0), plain, -1),
        _row(f"Output tokens per {per}", runs, lambda run: run["throughput"]["output_token_rate"], rated, 1, True),
        _row("End", runs, lambda run: run["time"], timed, 0, True),
        _row("Iterations", runs, lambda run: run["iterations"], plain, 0),
    ]
    for name, label in LATENCIES.items():
        found += [
            _row(f"{label} {statistic(figure)}", runs, latency(name, figure), timed, -1, True) for figure in FIGURES
        ]
    for name in ("preemptions", "recomputed_tokens", "max_queue_length", "unused_budget", "decode_stalls"):
        found.append(_row(name.replace("_", " ").capitalize(), runs, total(name), plain, 0))
    return [row for row in found if any(shown not in ("–", "0") for shown in row.shown)]


def facts(runs: Sequence[dict[str, Any]]) -> list[tuple[str, list[str], bool]]:
    """Every setting: its name, its value in each run, and whether they differ; those that do first."""
    names = dict.fromkeys(name for run in runs for name in run["facts"])
    found = [(name, [run["facts"].get(name, "–") for run in runs]) for name in names]
    return sorted(((name, values, len(set(values)) > 1) for name, values in found), key=lambda fact: not fact[2])


ENDINGS = {
    "all_terminal": "every request has ended",
    "iteration_limit": "at its iteration limit",
    "cut": "the trace breaks off",
    "recorded": "the recording ends",
    "stalled": "it could not go on",
    "failed": "with an error",
}


def ended(termination: str) -> str:
    """How a run came to its end."""
    return ENDINGS.get(termination, termination.replace("_", " "))


def breaking(name: str) -> Any:
    """A name that may break behind each _ and . where there is no room for it."""
    from markupsafe import Markup, escape

    return Markup(re.sub(r"(?<=[_.])", "<wbr>", str(escape(name))))  # escapes have neither


FILTERS: dict[str, Callable[..., str]] = {
    "time": time,
    "number": number,
    "rate": rate,
    "share": share,
    "counted": counted,
    "ended": ended,
    "breaking": breaking,
}
