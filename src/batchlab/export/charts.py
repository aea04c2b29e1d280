"""Charts of a run, drawn with matplotlib for PNG and SVG.

Colours are from the Okabe-Ito palette, which colour-blind people can tell apart; what means different things differs in
lightness or hatching too. One trace gives one file, byte for byte, with one version of matplotlib.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import IO, Any, Protocol

import numpy as np

from batchlab.errors import InputError
from batchlab.events import Header, Observer
from batchlab.export.lanes import Lanes
from batchlab.export.names import labels, shortened
from batchlab.export.spread import LATENCIES, Floats, is_wide, weighted
from batchlab.export.strip import Strip
from batchlab.metrics.fold import Summary
from batchlab.metrics.latency import latencies
from batchlab.units import NS_IN_MS, NS_IN_S

try:
    import matplotlib
    from matplotlib.axes import Axes
    from matplotlib.collections import PolyCollection
    from matplotlib.figure import Figure
    from matplotlib.font_manager import findfont
    from matplotlib.ft2font import FT2Font
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch
    from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter
except ImportError as error:
    raise InputError(
        None,
        None,
        None,
        "charts need matplotlib: pip install 'batchlab[plot]', or in a checkout .venv/bin/pip install -e '.[plot]'",
    ) from error

FONT = "DejaVu Sans"
"""It comes with matplotlib, so that a chart is the same everywhere."""
STYLE: Any = {
    "font.family": FONT,
    "font.size": 10,
    "svg.hashsalt": "batchlab",
    "hatch.linewidth": 0.5,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "text.parse_math": False,  # an id may hold dollar signs
}
BLUE, ORANGE, GREEN, RED, GREY = "#0072B2", "#F0B030", "#009E73", "#D55E00", "#9A9A9A"
LOOKS: dict[str, dict[str, Any]] = {
    "waiting": {"facecolor": "#DEDEDE", "edgecolor": GREY, "hatch": "////", "label": "waiting"},
    "prefill": {"facecolor": BLUE, "edgecolor": "white", "label": "prefill (tokens)"},
    "decode": {"facecolor": ORANGE, "edgecolor": "white", "label": "decode"},
    "held": {"facecolor": "#A9D8F0", "edgecolor": "#1F6D96", "hatch": "....", "label": "has a seat, gets no tokens"},
    "preempted": {"facecolor": "#E8B7CF", "edgecolor": "#7A3B5C", "hatch": "xxxx", "label": "waiting after preemption"},
    "retrying": {
        "facecolor": "#F3ECD8",
        "edgecolor": "#8A7F66",
        "hatch": "\\\\\\\\",
        "label": "backoff before the next attempt",
    },
}
ENDS = {"rejected": ("X", "rejected"), "dropped": ("D", "cancelled, expired or failed")}
LABELLED = 60
"""Rows up to which each has its request's name."""
TEXTED = 400
"""Prefills up to which each has its tokens written into it."""
FAR = 4
"""A budget that is so many times what is ever used would leave no room for it on the chart."""
NAME = 18
"""Characters of a name."""
LINE, KEY = 120, 7
"""Characters of a line of the legend, and how many of them a key takes beside its label."""


class Chart(Protocol):
    """Something to draw: `observers` take the events, then `draw` is called."""

    observers: list[Observer]

    def draw(self) -> Figure:
        """The picture."""


class _Base:
    def __init__(self) -> None:
        self.observers: list[Observer] = [self._begin]
        self.header: Header | None = None

    def _begin(self, event: object) -> None:
        if isinstance(event, Header):
            self.header = event

    @property
    def _unit(self) -> str:
        assert self.header is not None, "no event came"
        return str(self.header.clock["unit"])


class TimelineChart(_Base):
    """A row a request: what it did when. Of very many requests every n-th is drawn."""

    def __init__(self) -> None:
        super().__init__()
        self.lanes = Lanes()
        self.observers.append(self.lanes)

    def draw(self) -> Figure:
        """The picture."""
        rows = self.lanes.rows
        few = len(rows) <= LABELLED
        height = 1.5 + 0.3 * max(len(rows), 2) if few else 7.0
        figure, (axes,) = _figure(height, 1)
        begun = [0 if few or not lane.spans else lane.spans[0].start for lane in rows.values()]
        end = self.lanes.end
        if not few:
            end = max((lane.spans[-1].end - lane.spans[0].start for lane in rows.values() if lane.spans), default=0)
        scale, unit = _scale(self._unit, end)
        for place, kind in enumerate(LOOKS):
            boxes = [
                _box(row, (span.start - begun[row]) / scale, (span.end - begun[row]) / scale, 0.36 if few else 0.5)
                for row, lane in enumerate(rows.values())
                for span in lane.spans
                if span.kind == kind
            ]
            look = {key: value for key, value in LOOKS[kind].items() if key != "label" and (few or key == "facecolor")}
            look |= {"linewidth": 0.8 if few else 0}
            axes.add_collection(PolyCollection(boxes, **look, zorder=2 + place, rasterized=not few), autolim=False)
        for kind, (marker, label) in ENDS.items():
            points = [
                (lane.ended - (begun[row] if few or lane.spans else lane.ended), row)
                for row, lane in enumerate(rows.values())
                if lane.result == kind
            ]
            if points:
                xs, ys = zip(*((time / scale, row) for time, row in points), strict=True)
                size = 7 if few else 2.5
                axes.plot(
                    xs, ys, marker, color="black", ms=size, mec="white", mew=0.5, label=label, zorder=9, clip_on=False
                )
        axes.set_xlim(0, max(end / scale, 1e-9))
        axes.set_ylim(max(len(rows), 1) - 0.4, -0.6)
        if few:
            axes.set_yticks(range(len(rows)), labels([_escaped(id) for id in rows], NAME))
            axes.tick_params(axis="y", length=0)
            axes.spines["left"].set_visible(False)
            self._write_tokens(axes, scale)
        else:
            axes.set_ylabel("requests in order of arrival")
            if self.lanes.each > 1:
                axes.set_ylabel(f"1 of every {self.lanes.each} of {self.lanes.came:,} requests, in order of arrival")
        _time_axis(axes, unit)
        if not few:
            axes.set_xlabel(f"time since its arrival ({unit})")
        kinds = {span.kind for lane in rows.values() for span in lane.spans}
        keys: list[Any] = [Patch(**look) for kind, look in LOOKS.items() if kind in kinds]
        if not few:
            keys = [Patch(fc=key.get_facecolor(), ec="#555555", lw=0.5, label=str(key.get_label())) for key in keys]
        _legend(figure, [*keys, *axes.get_lines()])
        return figure

    def _write_tokens(self, axes: Axes, scale: float) -> None:
        """The tokens of each prefill that is wide enough for them."""
        prefills = [
            (row, span)
            for row, lane in enumerate(self.lanes.rows.values())
            for span in lane.spans
            if span.kind == "prefill"
        ]
        for row, span in prefills if len(prefills) <= TEXTED else ():
            text = f"+{span.tokens}"
            if span.end - span.start >= 0.011 * self.lanes.end * len(text):
                middle = (span.start + span.end) / 2 / scale
                axes.text(middle, row, text, color="white", ha="center", va="center", fontsize=8, zorder=10)


class BudgetChart(_Base):
    """Tokens of the iterations: decode, prefill, and what was left of the budget."""

    def __init__(self) -> None:
        super().__init__()
        self.strip = Strip(most=512)
        self.observers.append(self.strip)

    def draw(self) -> Figure:
        """The picture."""
        figure, (axes,) = _figure(3.6, 1)
        parts = self.strip.parts
        edges = np.concatenate([[0], np.cumsum([part.iterations for part in parts])]) - 0.5
        below = np.zeros(len(parts))
        scheduled = max(((part.decode + part.prefill) / part.iterations for part in parts), default=0.0)
        looks: dict[str, dict[str, Any]] = {
            "decode": {"facecolor": ORANGE, "label": "decode"},
            "prefill": {"facecolor": BLUE, "label": "prefill"},
            "unused": {
                "facecolor": "white",
                "edgecolor": "#BBBBBB",
                "hatch": "////",
                "lw": 0,
                "label": "unused budget",
            },
        }
        if self.strip.budget is None:
            del looks["unused"]
        for name, look in looks.items():
            above = below + np.array([getattr(part, name) / part.iterations for part in parts])
            if len(parts):
                axes.stairs(above, edges, baseline=below, fill=True, **look)
            below = above
        axes.set_xlim(edges[0], max(edges[-1], 0.5))
        top = below.max(initial=0)
        if self.strip.budget is not None and FAR * scheduled < top:
            axes.set_title(f"the budget of {self.strip.budget:,} tokens lies far above", loc="right", fontsize=9)
            top = 1.3 * scheduled
        axes.set_ylim(0, max(top * 1.04, 1))
        axes.set_xlabel("iteration")
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        several = max((part.iterations for part in parts), default=1)
        axes.set_ylabel("tokens in an iteration" if several == 1 else f"tokens, mean of {several:,} iterations")
        _thousands(axes, "xy")
        _legend(figure, [Patch(**look) for look in looks.values()])
        return figure


class LoadChart(_Base):
    """Queue, batch and KV blocks over time."""

    def __init__(self) -> None:
        super().__init__()
        self.strip = Strip(most=512)
        self.observers.append(self.strip)

    def draw(self) -> Figure:
        """The picture."""
        parts = self.strip.parts
        names = {"queue": ("requests\nwaiting", RED), "batch": ("requests\nin the batch", BLUE)}
        if self.strip.blocks is not None:
            names["used"] = ("KV blocks\nin use", GREEN)
        figure, panels = _figure(0.9 + 1.5 * len(names), len(names))
        end = parts[-1].end if parts else 0
        scale, unit = _scale(self._unit, end)
        several = max((part.iterations for part in parts), default=1)
        for axes, (name, (label, colour)) in zip(panels, names.items(), strict=True):
            times, means, mosts = self._steps(name)
            if several > 1:
                axes.plot(times / scale, mosts, color=GREY, lw=0.8, zorder=2)
            axes.fill_between(times / scale, means, color=colour, alpha=0.75, lw=0, zorder=3)
            axes.set_ylabel(label)
            top = self.strip.most_of(name)
            if name == "used" and self.strip.blocks is not None:
                top = self.strip.blocks
                axes.axhline(top, color="#555555", ls="--", lw=1)
            axes.set_ylim(0, max(top * 1.06, 1))
            axes.yaxis.set_major_locator(MaxNLocator(4, integer=True))
            _thousands(axes, "y")
        panels[0].set_xlim(parts[0].start / scale if parts else 0, max(end / scale, 1e-9))
        _time_axis(panels[-1], unit)
        keys: list[Any] = []
        if several > 1:
            keys = [
                Patch(color="#777777", label="mean"),
                Line2D([], [], color=GREY, lw=0.8, label=f"most in {several:,} iterations"),
            ]
        if self.strip.blocks is not None:
            keys.append(Line2D([], [], color="#555555", ls="--", lw=1, label="KV blocks that there are"))
        _legend(figure, keys)
        return figure

    def _steps(self, name: str) -> tuple[Floats, Floats, Floats]:
        """Times, means and most as a line of steps; where no iteration runs held, or 0 if nobody has a seat."""
        points: list[tuple[float, float, float]] = []
        for before, part in zip([None, *self.strip.parts], self.strip.parts, strict=False):
            if before is not None and part.start > before.end:
                points += [(at, *(points[-1][1:] if before.seats else (0, 0))) for at in (before.end, part.start)]
            mean, most = part.mean(name), getattr(part, f"{name}_most")
            points += [(part.start, mean, most), (part.end, mean, most)]
        table = np.array(points, np.float64).reshape(-1, 3)
        return table[:, 0], table[:, 1], table[:, 2]


class LatencyChart(_Base):
    """TTFT, ITL and E2E as CDFs."""

    def __init__(self) -> None:
        super().__init__()
        self.summary = Summary()
        self.observers.append(self.summary)

    def draw(self) -> Figure:
        """The picture."""
        figure = Figure(figsize=(11, 3.7), layout="constrained")
        found = latencies(self.summary.tally, self.summary.column("arrival"))
        for axes, (key, name) in zip(figure.subplots(1, 3, sharey=True), LATENCIES.items(), strict=True):
            values, counts = weighted(self.summary, key)
            axes.set_title(f"{name}, {int(counts.sum()):,} samples", loc="left", fontsize=10, fontweight="bold")
            axes.grid(color="#E4E4E4", lw=0.7)
            axes.set_axisbelow(True)
            if not len(values):
                axes.text(0.5, 0.5, "none", transform=axes.transAxes, ha="center", color="#555555")
                axes.set_xticks([])
                continue
            shares = np.cumsum(counts) / counts.sum()
            scale, unit = _scale(self._unit, values[-1])
            if values[0] == values[-1]:
                axes.set_xlim(0, 2 * values[0] / scale or 1)
            elif is_wide(values):
                axes.set_xscale("log")
                wide = values[-1] / values[0]
                steps = (1, 2, 5) if wide < 30 else (1, 3) if wide < 1000 else (1,)  # labels that do not touch
                axes.xaxis.set_major_locator(LogLocator(subs=steps))
                axes.xaxis.set_minor_formatter(NullFormatter())
                unit += ", log scale"
            kept = _few(shares)
            axes.step(
                np.concatenate([values[:1], values[kept]]) / scale,
                np.concatenate([[0], shares[kept]]),
                where="post",
                color=BLUE,
                lw=1.8,
            )
            for figure_name, style in (("p50", "--"), ("p99", ":")):
                at = found[key][figure_name] / scale
                axes.axvline(at, color=RED, ls=style, lw=1.1, label=f"{figure_name.upper()}: {at:,.4g}")
            axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.2), borderaxespad=0, ncols=2, frameon=False)
            axes.set_xlabel(unit)
            _thousands(axes, "x")
        figure.axes[0].set_ylim(0, 1.02)
        figure.axes[0].set_ylabel("share of samples up to this")
        figure.axes[0].yaxis.set_major_formatter(FuncFormatter(lambda share, _: f"{share:.0%}"))
        return figure


CHARTS: dict[str, Callable[[], Chart]] = {
    "timeline": TimelineChart,
    "budget": BudgetChart,
    "load": LoadChart,
    "latency": LatencyChart,
}


def save(chart: Chart, file: IO[bytes], ending: str) -> None:
    """Draw a chart whose observers have seen all events, as `.png` or `.svg`."""
    with matplotlib.rc_context(STYLE):
        metadata = {"Software": None} if ending == ".png" else {"Date": None, "Creator": None}
        chart.draw().savefig(file, format=ending[1:], dpi=120, metadata=metadata)


def printable(id: str) -> str:
    """A request's name with what the font lacks as escapes, and shortened."""
    return shortened(_escaped(id), NAME)


def _escaped(id: str) -> str:
    known = FT2Font(findfont(FONT)).get_charmap()
    return "".join(c if c.isprintable() and ord(c) in known else ascii(c)[1:-1] for c in id)


def _figure(height: float, panels: int) -> tuple[Figure, list[Axes]]:
    """Panels below each other that share their x axis."""
    figure = Figure(figsize=(10, height), layout="constrained")
    return figure, list(figure.subplots(panels, 1, sharex=True, squeeze=False)[:, 0])


def _box(row: int, start: float, end: float, half: float) -> list[tuple[float, float]]:
    return [(start, row - half), (end, row - half), (end, row + half), (start, row + half)]


def _scale(unit: str, longest: float) -> tuple[float, str]:
    """What to divide times by, and the unit of the quotient."""
    if unit != "ns":
        return 1, f"{unit}s"
    return (NS_IN_S, "s") if longest >= 10 * NS_IN_S else (NS_IN_MS, "ms")


def _time_axis(axes: Axes, unit: str) -> None:
    axes.set_xlabel(f"time ({unit})")
    _thousands(axes, "x")


def _thousands(axes: Axes, which: str) -> None:
    plain = FuncFormatter(lambda value, _: f"{value:,.10g}")
    for name in which:
        getattr(axes, f"{name}axis").set_major_formatter(plain)


def _legend(figure: Figure, keys: list[Any]) -> None:
    """Above the panels, in one line or, where it would be too long for that, in several."""
    if keys:
        lines = -(-sum(len(str(key.get_label())) + KEY for key in keys) // LINE)
        figure.legend(handles=keys, loc="outside upper center", ncols=-(-len(keys) // lines), frameon=False)


def _few(shares: Floats) -> Any:
    """Places of some of the points of a CDF: all, or so many that no eye sees the difference; always the last."""
    places = np.unique(np.searchsorted(shares, np.linspace(0, 1, 1001)))
    return np.minimum(np.append(places, len(shares) - 1), len(shares) - 1)
