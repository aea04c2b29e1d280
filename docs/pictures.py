"""Draws the pictures of the documentation from real runs; run from anywhere: python docs/pictures.py.

Needs matplotlib; for the report also Chromium, chromedriver and selenium. The colours are from the Okabe-Ito palette;
phases differ in lightness and hatching too.
"""

import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from batchlab import Run, Summary, load, simulate
from batchlab.events import Iteration
from batchlab.export import charts
from batchlab.plan import tune as tuning
from batchlab.plan.pool import cores
from batchlab.plan.tune import Tuning

ROOT = Path(__file__).resolve().parent.parent
PREFILL, DECODE, WAIT, DOT = "#0072B2", "#F0B030", "#F1F1F1", "black"
HEIGHT = 0.62
GAP_TARGET = 25
TTFT_AT, ITL_AT = 1.055, 1.135  # columns right of a panel, in its widths
SUBTITLES = {
    "static": "a new batch only when the last one is done",
    "continuous": "free seats are filled every iteration, prompts run whole",
    "chunked": "the same, at most 4 prompt tokens of a request in an iteration",
}


def observe(run: Run) -> tuple[Summary, list[Iteration]]:
    """Run once and keep every iteration."""
    summary = Summary()
    iterations: list[Iteration] = []

    def keep(event: Any) -> None:
        if isinstance(event, Iteration):
            iterations.append(event)

    simulate(run, [summary, keep])
    return summary, iterations


def draw_run(ax: Axes, run: Run) -> None:
    """One panel: a row per request, first one on top."""
    summary, iterations = observe(run)
    rows = {result.request.id: row for row, result in enumerate(summary.results)}
    for result in summary.results:
        last = result.completed_time
        assert last is not None
        row, begin = rows[result.request.id], result.request.arrival
        ax.barh(row, last - begin, HEIGHT, left=begin, color=WAIT, edgecolor="#9A9A9A", hatch="////", lw=0)
        for x, figure in ((TTFT_AT, result.since_arrival(result.first_time)), (ITL_AT, result.max_itl)):
            ax.text(x, row, str(figure), transform=ax.get_yaxis_transform(), va="center", ha="right")
    for it in iterations:
        ax.axvline(it.end, color="#CCCCCC", lw=0.8, zorder=0)
        for id, phase, tokens in it.scheduled:
            colour = PREFILL if phase == "prefill" else DECODE
            span = it.end - it.start
            ax.barh(rows[id], span, HEIGHT, left=it.start, color=colour, edgecolor="white", lw=1.2)
            if phase == "prefill":
                ax.text(it.start + span / 2, rows[id], f"+{tokens}", color="white", ha="center", va="center")
    for result in summary.results:
        times = result.output_times or []
        ax.plot(times, [rows[result.request.id]] * len(times), "o", color=DOT, ms=7, mec="white", clip_on=False)
    ax.set_yticks(list(rows.values()), list(rows), fontweight="bold")
    ax.set_ylim(len(rows) - 0.5, -0.5)
    ax.tick_params(axis="y", length=0)
    ax.spines[["top", "right", "left"]].set_visible(False)
    ax.set_title(run.engine, loc="left", fontweight="bold", fontsize=13)
    ax.text(0.135, 1.035, SUBTITLES[run.engine], transform=ax.transAxes, va="bottom", color="#444444")
    for x, name in ((TTFT_AT, "TTFT"), (ITL_AT, "max ITL")):
        ax.text(x, 1.035, name, transform=ax.transAxes, va="bottom", ha="right", color="#444444")


def three_modes(target: Path) -> None:
    """The three modes of examples/three-modes.toml, one below the other."""
    scenario = load(ROOT / "examples" / "three-modes.toml")
    plt.rcParams.update({"font.size": 11, "hatch.linewidth": 0.6, "font.family": "DejaVu Sans"})
    figure, axes = plt.subplots(len(scenario.runs), 1, figsize=(12, 8.4), sharex=True)
    for ax, run in zip(axes, scenario.runs, strict=True):
        draw_run(ax, run)
    axes[-1].set_xlim(0, 34)
    axes[-1].set_xticks(range(0, 35, 2))
    axes[-1].set_xlabel("time in cost units (grey lines: an iteration ends)")
    keys = [
        Patch(color=PREFILL, label="prefill, +tokens"),
        Patch(color=DECODE, label="decode, 1 token"),
        Patch(facecolor=WAIT, edgecolor="#9A9A9A", hatch="////", label="arrived, nothing scheduled"),
        Line2D([], [], marker="o", ls="", color=DOT, mec="white", ms=8, label="output token"),
    ]
    figure.legend(handles=keys, loc="upper center", ncols=4, frameon=False)
    figure.subplots_adjust(left=0.04, right=0.87, top=0.9, bottom=0.07, hspace=0.32)
    target.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(target, dpi=100, metadata={"Software": None})


def chunk_size(target: Path) -> None:
    """Gaps between tokens, TTFT and total time over the chunk, from examples/chunk-size.toml."""
    chunks = [2**n for n in range(4, 13)]
    longest, usual, ttft, total = [], [], [], []
    for chunk in chunks:
        (run,) = load(ROOT / "examples" / "chunk-size.toml", {"engine.prefill_chunk": chunk}).runs
        summary = Summary()
        end = simulate(run, [summary])
        latency = summary.document(with_requests=False)["latency"]
        longest.append(latency["itl"]["max"] / 1e6)
        usual.append(latency["itl"]["p50"] / 1e6)
        ttft.append(latency["ttft"]["p99"] / 1e6)
        total.append(end.time / 1e6)
    best = max(chunk for chunk, gap in zip(chunks, longest, strict=True) if gap <= GAP_TARGET)
    plt.rcParams.update({"font.size": 11, "font.family": "DejaVu Sans"})
    figure, (gaps, times) = plt.subplots(2, 1, figsize=(9, 7.2), sharex=True)
    gaps.plot(chunks, longest, color="#D55E00", marker="s", ms=6, lw=2)
    gaps.plot(chunks, usual, color=PREFILL, marker="o", ms=6, lw=2)
    gaps.axhline(GAP_TARGET, color="#555555", ls="--", lw=1.2)
    gaps.text(chunks[0], GAP_TARGET + 1.5, f"target: {GAP_TARGET} ms", color="#555555", va="bottom")
    gaps.text(2000, 46, "longest gap", color="#D55E00", ha="left", va="center")
    gaps.text(chunks[-1], usual[-1] + 2.5, "median gap", color=PREFILL, ha="right", va="bottom")
    gaps.set_ylim(0, 120)
    gaps.set_ylabel("gap between two tokens (ms)")
    gaps.set_title("Large chunks hold up those who stream", loc="left", fontweight="bold")
    times.plot(chunks, total, color="#D55E00", marker="s", ms=6, lw=2)
    times.plot(chunks, ttft, color=PREFILL, marker="o", ms=6, lw=2)
    times.text(chunks[-1], total[-1] * 1.1, "until all is done", color="#D55E00", ha="right", va="bottom")
    times.text(chunks[0], 230, "TTFT (P99): the long prompts", color=PREFILL, ha="left", va="center")
    times.set_yscale("log")
    times.set_ylim(80, 8000)
    times.set_yticks([100, 200, 500, 1000, 2000, 5000], ["100", "200", "500", "1,000", "2,000", "5,000"])
    times.set_ylabel("time (ms)")
    times.set_title("Small chunks make many iterations, each with its price", loc="left", fontweight="bold")
    times.set_xscale("log", base=2)
    times.set_xticks(chunks, [f"{chunk:,}" for chunk in chunks])
    times.set_xlabel("prefill_chunk in tokens")
    for ax in (gaps, times):
        ax.axvspan(best / 2**0.35, best * 2**0.35, color="#009E73", alpha=0.18, lw=0)
        ax.minorticks_off()
        ax.grid(axis="y", color="#DDDDDD", lw=0.8)
        ax.set_axisbelow(True)
        ax.spines[["top", "right"]].set_visible(False)
    gaps.text(best, 112, f"best: {best}", color="#006B4F", ha="center", va="center", fontweight="bold")
    figure.subplots_adjust(left=0.1, right=0.97, top=0.94, bottom=0.09, hspace=0.24)
    figure.savefig(target, dpi=100, metadata={"Software": None})


def token_budget(target: Path) -> None:
    """The capacity of README.md's command for each token budget."""
    budgets = [2**n for n in range(8, 14)]
    overrides = {
        "engine.enable_prefix_caching": True,  # what --from-command makes of it
        "engine.async_scheduling": True,
        "workload.generate.num_prompts": 2000,
    }
    scenario = str(ROOT / "examples" / "capacity-conversation.toml")
    space = {"engine.max_num_batched_tokens": budgets}
    asked = Tuning(scenario, "ttft:p99<=500ms,itl:p99<=50ms", space, overrides, trials=len(budgets))
    rows = tuning.run(asked, None, cores()).rows  # the first is the scenario as it is, which has one of the budgets
    rates = {row["engine.max_num_batched_tokens"]: row["capacity"] for row in rows}
    draw_budgets([rates[budget] for budget in budgets], budgets, target)


def draw_budgets(rates: list[float], budgets: list[int], target: Path) -> None:
    """A bar for each budget, with its number."""
    plt.rcParams.update({"font.size": 11, "font.family": "DejaVu Sans"})
    figure, ax = plt.subplots(figsize=(9, 3.6))
    best = max(rates)
    colours = [PREFILL if rate == best else "#9DBFD6" for rate in rates]
    bars = ax.bar([f"{budget:,}" for budget in budgets], rates, 0.62, color=colours)
    ax.bar_label(bars, [f"{rate:,.3g}" for rate in rates], padding=3, fontweight="bold")
    ax.set_ylim(0, best * 1.15)
    ax.set_yticks([])
    ax.tick_params(axis="x", length=0)
    ax.spines[["top", "right", "left"]].set_visible(False)
    ax.set_xlabel("max_num_batched_tokens")
    title = "requests/s within P99 TTFT 500 ms and P99 ITL 50 ms (Llama-3.1-8B, one H100, roofline)"
    ax.set_title(title, loc="left", fontweight="bold", fontsize=11)
    figure.subplots_adjust(left=0.03, right=0.98, top=0.88, bottom=0.17)
    figure.savefig(target, dpi=100, metadata={"Software": None})


def chart(target: Path, what: str, example: str) -> None:
    """What `batchlab export` draws of the run of an example."""
    (run,) = load(ROOT / "examples" / f"{example}.toml").runs
    drawn = charts.CHARTS[what]()
    simulate(run, drawn.observers)
    with open(target, "wb") as file:
        charts.save(drawn, file, target.suffix)


def report(target: Path) -> None:
    """The top of a report on overloaded conversations, as Chromium shows it."""
    sys.path.insert(0, str(ROOT / "tests"))
    from browser import Page, chromium

    settings = ("workload.generate.num_prompts=400", "workload.generate.request_rate=30")
    scenario = str(ROOT / "examples" / "capacity-conversation.toml")
    with tempfile.TemporaryDirectory() as folder, chromium() as driver:
        path = Path(folder) / "report.html"
        options = [word for setting in settings for word in ("--set", setting)]
        subprocess.run([sys.executable, "-m", "batchlab", "report", scenario, *options, "-o", str(path)], check=True)
        Page(driver, path, width=1100).screenshot(target, height=1480)


if __name__ == "__main__":
    report(ROOT / "docs" / "img" / "report.png")
    three_modes(ROOT / "docs" / "img" / "three-modes.png")
    chunk_size(ROOT / "docs" / "img" / "chunk-size.png")
    token_budget(ROOT / "docs" / "img" / "token-budget.png")
    chart(ROOT / "docs" / "img" / "timeline.png", "timeline", "vllm")
    chart(ROOT / "docs" / "img" / "load.png", "load", "generated")
