"""What a page tells of a run beside its figures: load over time, where the time went, who lost what."""

import json
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from browser import Page, chromium
from selenium import webdriver
from test_explain_cli import command

from batchlab.cli.report import Asked, Found, _read
from batchlab.explain.source import read_events
from batchlab.export.charts import LoadChart
from batchlab.export.strip import Strip
from batchlab.report.slots import COLUMNS, Slots
from batchlab.report.words import breaking
from batchlab.report.words import time as shown_time

pytestmark = pytest.mark.once

pytest_plugins = ["report_samples"]

EXAMPLES = Path(__file__).parents[1] / "examples"
RECORDED = EXAMPLES / "recorded-vllm.jsonl"


@pytest.fixture(scope="module")
def driver() -> Iterator[webdriver.Chrome]:
    with chromium() as found:
        yield found


@pytest.fixture(scope="module")
def recorded_report(folder: Path) -> Path:
    page = folder / "recorded.html"
    command("report", str(RECORDED), "-o", str(page))
    return page


def iterations(path: Path) -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    return [line for line in lines if line["type"] == "iteration"]


def strip(page: Page, name: str) -> list[tuple[float, float]]:
    """Times in ms and values of a line below the timeline."""
    found = page.run(
        "const one = document.getElementById('timeline').data.find((t) => (t.name || '').startsWith(arguments[0]));"
        "return [Array.from(one.x), Array.from(one.y)]",
        name,
    )
    return list(zip(*found, strict=True))


def test_between_two_steps_nobody_leaves_the_batch_or_the_queue(
    driver: webdriver.Chrome, recorded_report: Path
) -> None:
    """A recorded engine rests 0.2 ms after each step, and 6 ms after one; its requests and their blocks stay."""
    page, steps = Page(driver, recorded_report), iterations(RECORDED)
    gaps = [(a["end"], b["start"]) for a, b in pairwise(steps) if b["start"] > a["end"]]
    assert len(gaps) > 20 and max(end - start for start, end in gaps) > 5e6
    values = {
        "in the batch": [len(line["scheduled"]) for line in steps],
        "in the queue": [len(line["queue"]) for line in steps],
        "% of the KV blocks in use while the step runs": [100 * (8 - line["kv"]["free"]) / 8 for line in steps],
    }
    for name, expected in values.items():
        last_at = dict(strip(page, name))
        ends = [next((b["start"] for b in steps[n + 1 :]), None) for n in range(len(steps))]
        for line, following, value in zip(steps, ends, expected, strict=True):
            assert last_at[line["start"] / 1e6] == value
            if following != line["end"]:
                assert last_at[line["end"] / 1e6] == value, "held until the next one"
    assert values["% of the KV blocks in use while the step runs"][23] == 100
    assert page.complaints() == []


def test_where_nobody_has_a_seat_nothing_is_held(driver: webdriver.Chrome, tmp_path: Path) -> None:
    """Two requests, 100 ms apart: between them the engine is empty."""
    scenario, path = tmp_path / "s.toml", tmp_path / "p.html"
    scenario.write_text(
        '[engine]\npolicy = "vllm"\nmax_num_seqs = 2\nmax_num_batched_tokens = 16\nnum_gpu_blocks = 9\n'
        '[cost]\nmodel = "linear"\nunit = "ns"\nper_iteration = 10_000_000\n[workload]\nrequests = ['
        '{ id = "A", arrival = 0, prompt = 2, output = 2 }, '
        '{ id = "B", arrival = 100_000_000, prompt = 2, output = 2 }]'
    )
    command("report", str(scenario), "-o", str(path))
    page = Page(driver, path)
    for name, value in (("in the batch", 1), ("% of the KV blocks", 12.5)):
        drawn = [(x, y) for x, y in strip(page, name) if x in (0, 20, 100)]
        assert drawn == [(0, value), (20, value), (20, 0), (100, value)]


def test_of_a_slot_the_seats_at_its_end_count() -> None:
    slots = Slots(1)
    for number, active in enumerate((5, 3, 4, 0)):
        slots.add(*(active if name == "active" else number for name in COLUMNS))
    assert slots.per_slot == 2 and slots.column("active").tolist() == [3, 0]


def document(trace: Path) -> dict[str, Any]:
    """What a page knows of a trace."""
    found = Found()
    _read(str(trace), Asked(None, ()), found)
    told: dict[str, Any] = found.runs[0].document()
    return told


def test_where_the_time_went_is_what_explain_says() -> None:
    told = document(RECORDED)
    said = json.loads(command("explain", str(RECORDED), "--json").stdout)
    names = ["ttft", "ttft_slowest", "e2el", "e2el_slowest"]
    table = told["by_reason"]
    assert table["requests"] == [said["groups"][name]["requests"] for name in names] == [6, 1, 6, 1]
    found = {
        (name, row["reason"]): cell
        for row in table["rows"]
        for name, cell in zip(names, row["cells"], strict=True)
        if cell is not None
    }
    expected = {
        (name, reason): (entry["time"] / said["groups"][name]["requests"], entry["share"])
        for name in names
        for reason, entry in said["groups"][name]["by_reason"].items()
    }
    assert found == expected
    for kind, name in zip(told["slowest"], ("ttft", "e2el"), strict=True):
        slow = said["slowest"][name]
        assert [(one["id"], one["time"]) for one in kind["lives"]] == [(repr(one["id"]), one[name]) for one in slow]
    first = told["slowest"][0]["lives"][0]
    assert (first["id"], first["mostly"], first["row"]) == ("'chat-4-a550ffcc'", "head of line (blocks) 71%", 4)


def test_rejections_and_preemptions_are_named_and_counted(tmp_path: Path) -> None:
    trace = tmp_path / "trace.jsonl"
    command("run", str(EXAMPLES / "overload.toml"), "--set", "engine.max_num_seqs=4", "--trace", str(trace))
    lines = iterations(trace)
    rejected = [(entry["id"], line["iteration"], entry["reason"]) for line in lines for entry in line["rejected"]]
    preempted = [(entry["id"], line["iteration"]) for line in lines for entry in line["preempted"]]
    losses = {loss["name"]: loss for loss in document(trace)["losses"]}
    assert losses["rejections"]["count"] == len(rejected) == 14
    told = [(one["id"].strip("'"), one["first"], one["text"]) for one in losses["rejections"]["first"]]
    assert told == rejected[:5]
    assert losses["preemptions"]["count"] == len(preempted) == 1
    [one] = losses["preemptions"]["first"]
    assert (one["id"], one["first"]) == (repr(preempted[0][0]), preempted[0][1]) and one["text"].endswith("for 'C'")
    assert document(RECORDED)["losses"][0]["name"] == "preemptions"


def test_a_quiet_run_beside_which_requests_were_rejected_says_so(small_report: Path) -> None:
    text = " ".join(small_report.read_text(encoding="utf-8").split('<script id="data"')[0].split())
    assert "No detector found trouble in this run; there were" in text
    assert "1 rejection</b>" in text and "for &#39;C&#39;" in text


def test_the_slowest_lead_to_their_row(driver: webdriver.Chrome, recorded_report: Path) -> None:
    page = Page(driver, recorded_report)
    page.driver.find_element("css selector", ".slowest .place").click()
    [_, shape] = [
        None,
        *page.run("return document.getElementById('timeline').layout.shapes.filter((s) => s.yref === 'y')"),
    ]
    assert (shape["y0"], shape["y1"]) == (4, 5)
    labels = page.run("return document.getElementById('timeline').layout.yaxis.ticktext")
    assert labels[4] == "chat-4-a550ffcc", "what tells them apart is not cut where there is room"
    assert page.complaints() == []


def test_the_terminal_says_what_was_written_and_what_is_missed(tmp_path: Path) -> None:
    scenario, page = str(EXAMPLES / "overload.toml"), tmp_path / "p.html"
    several = ("--set", "engine.max_num_seqs=2,4", "--slo", "ttft:max<=1,itl:max<=1")
    done = command("report", scenario, *several, "-o", str(page))
    size = page.stat().st_size / 1e6
    assert done.returncode == 1 and done.stdout == ""
    assert done.stderr.splitlines()[-3:] == [
        f"batchlab: wrote {page} (2 runs, {size:.1f} MB)",
        "batchlab: max_num_seqs = 2: missed ttft:max<=1: 14",
        "batchlab: max_num_seqs = 4: missed ttft:max<=1: 14",
    ]


def test_names_break_behind_their_signs() -> None:
    assert str(breaking("max_num <b> v0.1")) == "max_<wbr>num &lt;b&gt; v0.<wbr>1"


def test_each_objective_of_a_sweep_has_its_chart(driver: webdriver.Chrome, planned_report: Path) -> None:
    page = Page(driver, planned_report)
    drawn = page.run(
        """return [...document.querySelectorAll("[id^=rate-0-]")]
        .map((chart) => [chart.layout.title.text, chart.data.map((trace) => trace.name)])"""
    )
    series = ["max_num_batched_tokens = 64", "max_num_batched_tokens = 256"]
    titles = ["ttft:p99&lt;=500ms", "itl:p99&lt;=50ms", "all targets of a request at once"]
    assert drawn == [[title, series] for title in titles]
    looks = page.run("return Array.from({ length: 36 }, (_, n) => JSON.stringify(runStyle(n)))")
    assert len(set(looks)) == 36


@pytest.mark.parametrize("dark", [False, True])
def test_marks_in_cells_can_be_read(driver: webdriver.Chrome, small_report: Path, dark: bool) -> None:
    """Black or white, as the colour of the cell lets them be read."""
    page = Page(driver, small_report, dark=dark)
    fills = page.run(
        """return [...new Set([...document.querySelectorAll("#timeline .heatmap-label text")]
        .map((text) => getComputedStyle(text).fill))]"""
    )
    assert fills and set(fills) <= {"rgb(0, 0, 0)", "rgb(255, 255, 255)"}


def test_rates_far_from_a_capacity_are_named_and_not_drawn(driver: webdriver.Chrome, planned_report: Path) -> None:
    page = Page(driver, planned_report)
    said = page.run(
        """const chart = document.getElementById("tried-0");
        const curve = { name: "a", points: [[0.01, 1, true], [5, 1, true], [8, 0.9, false]] };
        attainment([curve], "ns", "requests", chart, 6);
        return [Array.from(chart.data[0].x), chart.layout.xaxis.title.text]"""
    )
    assert said == [[5, 8], "requests per s; tried, not drawn: 0.01"]


def test_a_chart_of_the_load_holds_it_too() -> None:
    """`export --chart load`: the same line between the steps of a recorded engine, down to nothing only at its end."""
    chart = LoadChart()
    for _, event in read_events(RECORDED):
        for observe in chart.observers:
            observe(event)
    steps = iterations(RECORDED)
    times, means, _ = chart._steps("batch")
    assert (times[0], times[-1]) == (steps[0]["start"], steps[-1]["end"])
    assert set(means.tolist()) == {len(line["scheduled"]) for line in steps} and means.min() > 0
    assert chart._steps("used")[1].max() == 8


def test_a_part_of_several_iterations_has_the_seats_at_its_end() -> None:
    strip = Strip(most=2)
    for number, event in read_events(RECORDED):
        if number < 40:
            strip(event)
    assert [part.seats for part in strip.parts] == [len(line["active"]) for line in last_of(strip)]


def last_of(strip: Strip) -> list[dict[str, Any]]:
    """The last iteration of each part."""
    lines, found, done = iterations(RECORDED), [], 0
    for part in strip.parts:
        done += part.iterations
        found.append(lines[done - 1])
    return found


def test_times_side_by_side_have_as_many_digits() -> None:
    told = {23 * 10**9: "23.0 s", 25_160_000_000: "25.2 s", 23_000_000: "23.0 ms", 5_400_000: "5.40 ms", 0: "0 ms"}
    told |= {140 * 10**9: "140.0 s", 999_700_000: "1000 ms", 2 * 10**8: "200 ms", 9_996_000: "10.0 ms"}
    assert {time: shown_time(time, "ns") for time in told} == told
