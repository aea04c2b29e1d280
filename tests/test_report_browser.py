"""Reports in a real Chromium: what is drawn, what moves, what may not happen."""

import re
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from browser import Page, chromium
from laws_runs import outcome
from selenium import webdriver
from selenium.webdriver.common.action_chains import ActionChains
from test_explain_cli import command

from batchlab.explain import Explainer
from batchlab.explain.source import read_events

pytestmark = pytest.mark.once

pytest_plugins = ["report_samples"]

EXAMPLES = Path(__file__).parents[1] / "examples"
LIMIT = 10_000_000
"""Bytes of a page."""
TWO_LENGTHS = """
[engine]
policy = "vllm"
max_num_seqs = 8
max_num_batched_tokens = 64
[cost]
model = "linear"
unit = "ns"
per_iteration = 10_000_000
[[workload.requests]]
id = "short"
arrival = 0
prompt = 5
output = 1
[[workload.requests]]
id = "long"
arrival = 0
prompt = 5
output = 40
"""
CHECKS = (Path(__file__).parent / "report_checks.js").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def driver() -> Iterator[webdriver.Chrome]:
    with chromium() as found:
        yield found


def hover(page: Page, row: float, column: float) -> str:
    """What a cell of the timeline says, at these places of its rows and its axis."""
    place = page.run(
        """const chart = document.getElementById("timeline");
        chart.scrollIntoView({block: "start"});
        const { xaxis, yaxis } = chart._fullLayout;
        return [xaxis._offset + xaxis.d2p(arguments[1]), yaxis._offset + yaxis.d2p(arguments[0])];""",
        row,
        column,
    )
    chart = page.driver.find_element("id", "timeline")
    box = page.run("const b = arguments[0].getBoundingClientRect(); return [b.width / 2, b.height / 2]", chart)
    actions = ActionChains(page.driver, duration=0)
    page.run("document.getElementById('tip').hidden = true")
    actions.move_to_element_with_offset(chart, int(place[0] - box[0]) - 2, int(place[1] - box[1])).perform()
    time.sleep(0.15)  # the library looks at where the pointer is a few times a second
    actions.move_to_element_with_offset(chart, int(place[0] - box[0]), int(place[1] - box[1])).perform()
    time.sleep(0.15)
    page.wait("return !document.getElementById('tip').hidden")
    return str(page.run("return document.getElementById('tip').textContent"))


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", [1280, 390])
@pytest.mark.parametrize("name", ["small_report", "planned_report", "hostile_report"])
def test_all_is_drawn_and_nothing_is_cut_or_fetched(
    name: str, width: int, dark: bool, driver: webdriver.Chrome, request: pytest.FixtureRequest
) -> None:
    page = Page(driver, request.getfixturevalue(name), width, dark)
    charts = page.run(
        "return [...document.querySelectorAll('.chart')].map((c) => [c.id, c.querySelectorAll('.trace,.hm').length])"
    )
    assert charts and all(drawn for _, drawn in charts), charts
    assert page.run(f"{CHECKS} return cut()") == []
    assert page.run(f"{CHECKS} return outside()") == []
    assert page.run(f"{CHECKS} return faint()") == []
    assert page.run("return document.documentElement.dataset.theme") == ("dark" if dark else "light")
    assert page.run("return window.hacked") is None
    assert page.complaints() == []


def test_the_browser_tells_what_a_page_does_wrong(driver: webdriver.Chrome, tmp_path: Path) -> None:
    bad = tmp_path / "bad.html"
    bad.write_text(
        "<html data-ready=1><body><p style='width:3000px'>wide</p><img src='http://127.0.0.1:9/x.png'>"
        "<script>console.error('wrong')</script></body></html>",
        encoding="utf-8",
    )
    page = Page(driver, bad)
    said = " ".join(page.complaints())
    assert "wrong" in said and "x.png" in said and page.run(f"{CHECKS} return cut()")


def test_a_cell_says_what_happened_and_why(driver: webdriver.Chrome, small_report: Path) -> None:
    page = Page(driver, small_report)
    assert page.run("return document.querySelectorAll('.heatmaplayer image, .hm image').length") > 0
    said = hover(page, 0.5, 1.5)
    assert said.startswith("A\n") and said.endswith("\niteration 1\npreempted: keep, nothing lost; for 'C'")
    assert "prefill: 3 tokens" in hover(page, 1.5, 0.5)
    assert "seats: all 2 seats taken" in hover(page, 4.5, 2.5)
    assert "out: rejected" in hover(page, 5.5, 2.5)
    assert page.complaints() == []


def test_zoom_keeps_rows_and_strip_together(driver: webdriver.Chrome, small_report: Path) -> None:
    page = Page(driver, small_report)
    ranges = "const l = document.getElementById('timeline')._fullLayout; return [l.xaxis.range, l.yaxis.range]"
    assert page.run(ranges) == [[0, 6], [6, 0]]
    page.driver.find_element("css selector", "[data-zoom=in]").click()
    assert page.run(ranges)[0] == [1.5, 4.5]
    matching = "return document.getElementById('timeline').data.map((t) => t.xaxis || 'x')"
    assert set(page.run(matching)) == {"x"}
    page.driver.find_element("css selector", "[data-zoom=right]").click()
    assert page.run(ranges) == [[3, 6], [5, 0]], "the rows follow those that live then: A to E"
    page.run("document.getElementById('timeline').scrollIntoView()")
    plot = page.driver.find_element("css selector", "#timeline .nsewdrag")
    drag = ActionChains(page.driver, duration=50).move_to_element(plot).click_and_hold()
    drag.move_by_offset(150, 60).release().perform()
    page.wait("return document.getElementById('timeline')._fullLayout.xaxis.range[0] > 4")
    page.driver.find_element("css selector", "[data-zoom=all]").click()
    assert page.run(ranges) == [[0, 6], [6, 0]]
    page.driver.find_element("css selector", "[data-across=iteration]").click()
    assert page.run("return document.getElementById('timeline').layout.xaxis.title.text") == "iteration"
    find = page.driver.find_element("id", "find")
    find.send_keys("C\n")
    page.wait("return document.getElementById('timeline').layout.shapes.length === 2")
    page.driver.find_element("id", "theme").click()
    assert page.run("return document.documentElement.dataset.theme") == "dark"
    assert page.complaints() == []


def test_on_a_phone_no_figure_of_two_runs_is_out_of_sight(driver: webdriver.Chrome, planned_report: Path) -> None:
    page = Page(driver, planned_report, width=390)
    places = page.run(
        """return [...document.querySelectorAll("#compare td, #figures td, #settings td")]
        .map((cell) => [cell.getBoundingClientRect().left, cell.getBoundingClientRect().right])"""
    )
    assert len(places) > 60 and all(0 <= left < right <= 390 for left, right in places)
    top = "return document.querySelector(arguments[0]).getBoundingClientRect().top + scrollY"
    assert page.run(top, "#findings") < page.run(top, "#when") < page.run(top, "#figures")
    wide = Page(driver, planned_report)
    assert wide.run(top, "#objectives") == pytest.approx(wide.run(top, "#compare"), abs=1), "side by side"
    columns = [".three > div:nth-child(1)", ".three > div:nth-child(2)"]
    first, second = (wide.run(top, f"#findings {column}") for column in columns)
    assert first == pytest.approx(second, abs=1), "the findings of both, too"
    assert first < 900, "on the first screen"


def test_heads_and_names_of_runs_have_room(driver: webdriver.Chrome, planned_report: Path) -> None:
    heights = "return [...document.querySelectorAll(arguments[0])].map((cell) => cell.offsetHeight)"
    wide = Page(driver, planned_report)
    line = 1.5 * 0.8 * 15  # of the headings' letters
    assert all(height < 4 * line for height in wide.run(heights, "#compare thead th"))
    fits = "const t = document.querySelector('#compare table'); return [t.scrollWidth, t.parentNode.clientWidth]"
    wanted, given = wide.run(fits)
    assert wanted <= given
    names = "return [...document.querySelectorAll('#objectives tbody tr')].map((row) => row.innerText)"
    told = wide.run(names)
    assert any("goodput" in row for row in told)
    heads = wide.run("return [...document.querySelectorAll('#objectives thead th')].map((head) => head.innerText)")
    assert heads == ["Run", "Objective", "Found", "Met"]
    met = wide.run("return [...document.querySelectorAll('#objectives td:last-child')].map((cell) => cell.innerText)")
    assert set(met) <= {"✓ yes", "✗ no", ""}
    phone = Page(driver, planned_report, width=390)
    widths = "return [...document.querySelectorAll('#objectives tbody th')].map((cell) => cell.offsetWidth)"
    assert all(width > 300 for width in phone.run(widths))


def test_distributions_are_on_a_log_scale_where_wide(driver: webdriver.Chrome, tmp_path: Path) -> None:
    """As in the terminal and in the picture of `export latency`: E2E of 10 and 400 ms; every point is in view."""
    scenario, path = tmp_path / "s.toml", tmp_path / "page.html"
    scenario.write_text(TWO_LENGTHS, encoding="utf-8")
    assert command("report", str(scenario), "-o", str(path)).returncode == 0
    page = Page(driver, path)
    kinds = []
    for name in ("ttft", "itl", "e2el"):
        kind, shown, xs, title = page.run(
            """const chart = document.getElementById(`cdf-${arguments[0]}`);
            const { type, range, title } = chart._fullLayout.xaxis;
            return [type, range, chart.data.flatMap((trace) => [...trace.x]), title.text];""",
            name,
        )
        wide = min(xs) > 0 and max(xs) > 10 * min(xs)
        assert (kind == "log") == wide == title.endswith(", log scale")
        low, high = (10**end for end in shown) if wide else shown
        assert low <= min(xs) and max(xs) <= high
        kinds.append(kind)
    assert kinds == ["linear", "linear", "log"]
    assert page.complaints() == []


def test_what_misses_is_named_by_what_it_has_most_of_and_never_recommended(
    driver: webdriver.Chrome, planned_report: Path, folder: Path, tmp_path: Path
) -> None:
    scenario, table, page = folder / "plan.toml", tmp_path / "t.parquet", tmp_path / "page.html"
    space = ("--space", "engine.max_num_seqs=2,8,16", "--jobs", "1", "--set", "workload.generate.request_rate=400")
    done = command("tune", str(scenario), "--slo", "ttft:p99<=30ms", *space, "-o", str(table))
    assert done.returncode == 1
    (most,) = re.findall(r"\nmost (.*), though it misses: ", done.stdout)
    assert command("report", str(table), "-o", str(page)).returncode in (0, 1)
    found = Page(driver, page)
    text = found.run("return document.querySelector('main').innerText")
    assert f"singled out is the one with the most {most}, though it misses." in text
    assert (
        "recommended" not in text and "nearest" not in text and f"flags of the one with the most {most}" in text.lower()
    )
    legend = found.run("return document.getElementById('front-0-0').data.map((trace) => trace.name)")
    assert "recommended" not in legend and {"Pareto front", "as it is"} <= set(legend)
    ringed = found.run("const [line] = document.getElementById('front-0-0').data; return [line.mode, line.x.length]")
    assert ringed[0] == "lines+markers" and ringed[1] >= 1


def test_runs_at_one_point_are_all_named_there(driver: webdriver.Chrome, folder: Path, tmp_path: Path) -> None:
    """More seats than requests, in ten numbers: eight are named, and how many more there are."""
    table, page = tmp_path / "t.parquet", tmp_path / "page.html"
    grid = ("--grid", "engine.max_num_seqs=90,91,92,93,94,95,96,97,98,99", "--set", "engine.max_num_batched_tokens=128")
    scenario = folder / "plan.toml"
    assert command("sweep", str(scenario), *grid, "-o", str(table), "--jobs", "1").returncode == 0
    assert command("report", str(table), "-o", str(page)).returncode == 0
    found = Page(driver, page)
    texts = found.run("return document.getElementById('front-0-0').data.find((trace) => trace.name === 'runs').text")
    assert texts == ["<br>".join([*(f"max_num_seqs = {n}" for n in range(90, 98)), "and 2 more"])] * 10
    listed = found.run("return [...document.querySelectorAll('table.fold tbody th')].map((cell) => cell.innerText)")
    assert listed == [f"max_num_seqs = {n}" for n in range(90, 100)]
    assert found.complaints() == []


def test_labels_that_would_be_alike_have_their_row(driver: webdriver.Chrome, small_report: Path) -> None:
    names = ["conversation-turn-1-of-user", "conversation-turn-2-of-user", "A", "B" * 30 + "1", "B" * 30 + "2"]
    found = Page(driver, small_report).run("return labels(arguments[0], 5, 11)", names)
    assert found == ["conv…user~6", "conv…user~7", "A", "BBBBB…BBBB1", "BBBBB…BBBB2"]


def test_whoever_was_turned_away_is_seen_however_short_the_iteration(driver: webdriver.Chrome, tmp_path: Path) -> None:
    found = outcome("vllm-v0", 15)
    trace, path = tmp_path / "trace.jsonl", tmp_path / "page.html"
    trace.write_text(found.text, encoding="utf-8")
    command("report", str(trace), "-o", str(path))
    ended = [
        (line["start"], entry["id"])
        for line in found.iterations
        for entry in (*line["rejected"], *line.get("dropped", ()))
        if "retry_at" not in entry
    ]
    order = list(dict.fromkeys(id for line in found.iterations for id in line["arrived"]))
    page = Page(driver, path)
    marks = page.run("const one = document.getElementById('timeline').data[1]; return [one.x, one.y]")
    assert len(ended) == 2
    assert sorted(zip(*marks, strict=True)) == sorted((start, order.index(id) + 0.5) for start, id in ended)
    assert page.complaints() == []


def test_a_finding_leads_to_its_place(driver: webdriver.Chrome, tmp_path: Path) -> None:
    path = tmp_path / "page.html"
    scenario = str(EXAMPLES / "priority-inversion.toml")
    assert command("report", scenario, "--policy", "chunked,vllm", "-o", str(path)).returncode == 0
    page = Page(driver, path)
    button = page.driver.find_elements("css selector", ".place:not([data-first=''])[data-run='1']")[-1]
    first, last = (float(button.get_attribute(f"data-{name}") or "") for name in ("first", "last"))
    button.click()
    page.driver.find_element("css selector", "[data-across=iteration]").click()
    low, high = page.run("return document.getElementById('timeline')._fullLayout.xaxis.range")
    assert low <= first and last <= high
    assert page.run("return document.getElementById('which').value") == "1"
    assert page.complaints() == []


def test_hostile_names_are_words_and_nothing_else(driver: webdriver.Chrome, hostile_report: Path) -> None:
    page = Page(driver, hostile_report)
    ticks = page.run("return [...document.querySelectorAll('#timeline .ytick text')].map((t) => t.textContent)")
    assert {"<script…script>", "</scrip…script>", "xxxxxxx…xxxxxxx", "two\\nli…8\\u2029", "'"} <= set(ticks)
    assert len(set(ticks)) == len(ticks) == 12
    assert page.run("return document.querySelectorAll('.chart a, .chart b, img, svg a').length") == 0
    assert hover(page, 0.5, 0.5).startswith("<script>window.hacked = 1</script>\n")
    for finding in page.driver.find_elements("css selector", ".place"):
        finding.click()
    for run in ("0", "1"):
        page.run(
            "const w = document.getElementById('which'); w.value = arguments[0]; w.dispatchEvent(new Event('change'))",
            run,
        )
    assert page.run("return window.hacked") is None
    assert page.complaints() == []


def test_a_hundred_thousand_requests_open_and_can_be_used(
    big_report: Path,
    request: pytest.FixtureRequest,
) -> None:
    assert big_report.stat().st_size < LIMIT
    page = Page(request.getfixturevalue("driver"), big_report)
    shown = "return document.getElementById('shown').textContent"
    assert "100,000 of 100,000 requests in view" in page.run(shown) and "aggregated" in page.run(shown)
    assert page.run("return document.getElementById('timeline').data[0].z.length") <= 240
    find = page.driver.find_element("id", "find")
    find.send_keys("77777\n")
    assert "aggregated" not in page.run(shown)
    labels = page.run("return document.getElementById('timeline').layout.yaxis.ticktext")
    assert "77777" in labels
    assert "TTFT" in hover(
        page, 77777.5, sum(page.run("return document.getElementById('timeline').layout.xaxis.range")) / 2
    )
    assert page.complaints() == []


@pytest.mark.parametrize("policy", ["vllm", "decode-first", "triton"])
def test_reasons_are_those_of_explain(policy: str, driver: webdriver.Chrome, tmp_path: Path) -> None:
    compared = 0
    for seed in range(0, 12, 6):
        trace, page = tmp_path / "trace.jsonl", tmp_path / "page.html"
        trace.write_text(outcome(policy, seed).text, encoding="utf-8")
        command("report", str(trace), "-o", str(page))
        explainer = Explainer("all")
        for _, event in read_events(trace):
            explainer(event)
        expected = {
            (life.id, iteration): span.reason.label
            for life in explainer.lives.values()
            for span in life.spans or ()
            if span.first is not None and span.last is not None
            for iteration in range(span.first, span.last + 1)
        }
        for id, iteration, kind, why in Page(driver, page).run(f"{CHECKS} return cells()"):
            if kind in ("waiting", "preempted", "seated, no tokens") and (id, iteration) in expected:
                assert why.startswith(expected[id, iteration] + ":"), (policy, seed, id, iteration, why)
                compared += 1
    assert compared > 10, "too few waits to show anything"


TICKS = """
[engine]
policy = "continuous"
max_num_seqs = 1
max_num_batched_tokens = 8
[cost]
{cost}
[run]
{run}
[workload]
requests = [{{ id = "A", arrival = 0, prompt = 2, output = 3 }}, {{ id = "B", arrival = 0, prompt = 2, output = 3 }}]
"""


def ticks(folder: Path, name: str, cost: str, run: str = "") -> str:
    path = folder / f"{name}.toml"
    path.write_text(TICKS.format(cost=cost, run=run))
    return str(path)


def test_runs_on_different_clocks_are_not_compared(driver: webdriver.Chrome, tmp_path: Path) -> None:
    """Milliseconds and iterations have no difference, and no axis in common."""
    ns = 'model = "linear"\nunit = "ns"\nper_iteration = {}_000_000'
    paths = [
        ticks(tmp_path, "first", ns.format(10)),
        ticks(tmp_path, "steps", 'model = "unit"'),
        ticks(tmp_path, "third", ns.format(20)),
    ]
    page = tmp_path / "page.html"
    assert command("report", *paths, "-o", str(page)).returncode == 0
    found = Page(driver, page, width=390)
    of_rows = "return [...document.querySelectorAll('#compare tr')].map((row) => row.innerText)"
    (cells,) = (text for text in found.run(of_rows) if text.startswith("TTFT P50"))
    assert cells.split() == ["TTFT", "P50", "25.0", "ms", "2.5", "50.0", "ms", "▼", "+100.0", "%"]
    drawn = "return document.getElementById(arguments[0]).data.map((trace) => trace.name[0])"
    for chart in ("cdf-ttft", "cdf-itl", "cdf-e2el", "queues"):
        assert found.run(drawn, chart) == ["1", "3"]
    assert found.run("return document.getElementById('cdf-ttft').layout.xaxis.title.text") == "ms"
    said = (
        "Times of 2 · steps.toml are on another clock than the first run's, and neither compared nor drawn with them."
    )
    assert said in found.run("return document.getElementById('how-long').textContent")
    assert found.complaints() == []


def test_a_page_about_one_run_says_where_it_stopped(driver: webdriver.Chrome, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    assert (
        command("report", ticks(tmp_path, "s", 'model = "unit"', "max_iterations = 2"), "-o", str(page)).returncode == 1
    )
    by = "return document.querySelector('.by').textContent"
    assert Page(driver, page).run(by).endswith("2 iterations · ended: at its iteration limit")
    assert command("report", ticks(tmp_path, "s", 'model = "unit"'), "-o", str(page)).returncode == 0
    assert "ended" not in Page(driver, page).run(by)
