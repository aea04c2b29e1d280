"""The figures of a page are those that `run --json` prints, for every policy, and each stands at its own run."""

import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from laws_runs import POLICIES, outcome
from test_explain_cli import command

pytestmark = pytest.mark.once

EXAMPLES = Path(__file__).parents[1] / "examples"
LABELS = {"TTFT": "ttft", "ITL": "itl", "E2E": "e2el", "Queue time": "queue_time"}
TOTALS = {
    "Preemptions": "preemptions",
    "Recomputed tokens": "recomputed_tokens",
    "Max queue length": "max_queue_length",
}
UNITS = {"ms": 1e6, "s": 1e9}


class Sections(HTMLParser):
    """The page's table rows by the id of their section: the text of each cell, without what it says of differences."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.rows: dict[str, list[list[str]]] = {}
        self._id = ""
        self._skip = self._open = False
        self.feed(text[: text.index('<script id="data"')])

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        given = dict(attrs)
        if tag == "section":
            self._id = given.get("id") or ""
        elif tag == "tr":
            self.rows.setdefault(self._id, []).append([])
        elif tag in ("td", "th"):
            self.rows[self._id][-1].append("")
            self._open = True
        elif tag == "span" and "change" in (given.get("class") or ""):
            self._skip = True

    def handle_endtag(self, tag: str) -> None:
        if tag == "span":
            self._skip = False
        elif tag in ("td", "th"):
            self._open = False

    def handle_data(self, data: str) -> None:
        if self._open and not self._skip:
            self.rows[self._id][-1][-1] += data

    def table(self, section: str) -> dict[str, list[str]]:
        """By the first cell, the others."""
        return {row[0].strip(): [cell.strip() for cell in row[1:]] for row in self.rows[section]}


def value(shown: str) -> float | None:
    """The number that a cell shows; of a time in ms or s, in ns."""
    if shown == "–":
        return None
    found = re.fullmatch(r"([\d,.]+(?:e[+-]\d+)?)(?: (ms|s))?", shown)
    assert found, shown
    return float(found[1].replace(",", "")) * UNITS.get(found[2] or "", 1)


def expected(summary: dict[str, Any], label: str) -> float | None:
    """The figure of a row, from the summary alone."""
    if label in TOTALS:
        return summary["totals"][TOTALS[label]]
    if label == "Requests completed":
        return summary["results"].get("completed", 0)
    if label == "End":
        return summary["time"]
    if label.startswith("Output tokens per"):
        return summary["throughput"]["output_token_rate"]
    metric, _, statistic = label.rpartition(" ")
    return summary["latency"][LABELS[metric]][statistic.lower()]


def check(table: dict[str, list[str]], summaries: list[dict[str, Any]]) -> int:
    """Every row that has a figure of the summary; returns how many cells were compared."""
    compared = 0
    for label, cells in table.items():
        if not label.startswith((*LABELS, *TOTALS, "Requests completed", "End", "Output tokens")) or label == "Ended":
            continue
        assert len(cells) == len(summaries)
        for shown, summary in zip(cells, summaries, strict=True):
            wanted = expected(summary, label)
            found = value(shown)
            if wanted is None:
                assert found is None, label
            else:  # three digits of a time in ns, two decimals of all else
                least = 0 if label.startswith("Output") else 0.0051
                assert found == pytest.approx(wanted, rel=0.0051, abs=least), (label, shown, wanted)
            compared += 1
    return compared


@pytest.mark.parametrize("policy", POLICIES)
def test_two_runs_of_one_name_each_have_their_own_figures(policy: str, tmp_path: Path) -> None:
    found = [outcome(policy, seed) for seed in (3, 8)]
    traces = []
    for place, one in zip("ab", found, strict=True):
        trace = tmp_path / place / "trace.jsonl"
        trace.parent.mkdir()
        trace.write_text(one.text, encoding="utf-8")
        traces.append(str(trace))
    page = tmp_path / "page.html"
    command("report", *traces, "-o", str(page))
    sections = Sections(page.read_text(encoding="utf-8"))
    for section in ("compare", "figures"):
        assert sections.rows[section][0][1:] == ["1 · trace.jsonl", "2 · trace.jsonl"]
    if any(one.iterations for one in found):
        assert check(sections.table("figures"), [one.summary for one in found]) > 10
        assert check(sections.table("compare"), [one.summary for one in found]) > 4
    assert sections.table("settings")["trace"] == traces


def test_a_page_of_several_policies_says_what_run_prints_of_each(tmp_path: Path) -> None:
    scenario, policies = str(EXAMPLES / "ladder.toml"), ["vllm", "vllm-v0", "tensorrt-llm"]
    summaries = []
    for policy in policies:
        printed = command("run", scenario, "--policy", policy, "--json").stdout
        summaries += json.loads(printed)["runs"]
    page = tmp_path / "page.html"
    command("report", scenario, "--policy", ",".join(policies), "-o", str(page))
    sections = Sections(page.read_text(encoding="utf-8"))
    assert [name.rpartition(" ")[2] for name in sections.rows["figures"][0][1:]] == policies
    assert check(sections.table("figures"), summaries) > 60
    assert len({cells for row in sections.rows["figures"] if row[0] == "TTFT P99" for cells in row[1:]}) > 1
