"""Reports: what is kept of a run, from its events alone, and what the command refuses."""

import base64
import json
import os
import random
import signal
import subprocess
import sys
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from laws_runs import POLICIES, Outcome, outcome
from test_explain_cli import command

from batchlab.events import Header
from batchlab.explain.source import DEFAULTS
from batchlab.report import recording, saved
from batchlab.report.curves import curve
from batchlab.report.packed import pack
from batchlab.report.page import embedded
from batchlab.report.recording import Recorded, Recorder, read, said_header, shown_id
from batchlab.report.slots import COLUMNS, PEAKS, SUMS, Slots
from batchlab.report.timeline import AGAIN, DECODE, OUT, PREEMPTED, PREFILL, SEATED, WAITING
from batchlab.trace.encode import decode

pytestmark = pytest.mark.once

pytest_plugins = ["report_samples"]

EXAMPLES = Path(__file__).parents[1] / "examples"


def unpacked(packed: dict[str, str]) -> list[Any]:
    """What the browser makes of packed numbers."""
    data = zlib.decompress(base64.b64decode(packed["data"])) if packed["data"] else b""
    if packed["type"] == "json":
        return json.loads(data)
    return np.frombuffer(data, {"u1": "u1", "u2": "<u2", "u4": "<u4", "f8": "<f8"}[packed["type"]]).tolist()


def record(found: Outcome) -> Recorder:
    """The run as a report sees it."""
    recorder = Recorder()
    for line in found.lines:
        recorder(decode(DEFAULTS | line if line["type"] == "header" else line))
    recorder.conclude()
    return recorder


def cells(recorder: Recorder) -> dict[tuple[str, int], tuple[int, int]]:
    """Kind and value of every request in every iteration."""
    timeline = recorder.timeline
    found = {}
    for row, first, last, kind, value in timeline.segments().tolist():
        for iteration in range(first, last + 1):
            assert (timeline.lives[row].id, iteration) not in found, "two segments at once"
            found[timeline.lives[row].id, iteration] = kind, value
    return found


@pytest.mark.parametrize("policy", POLICIES)
def test_every_cell_is_what_the_trace_says(policy: str) -> None:
    seen = set()
    for seed in range(0, 30, 2):
        found = outcome(policy, seed)
        at = cells(record(found))
        for line in found.iterations:
            now = line["iteration"]
            here = {id: cell for (id, iteration), cell in at.items() if iteration == now}
            seen |= {kind for kind, _ in here.values()}
            worked = {id: (phase, tokens) for id, phase, tokens in line["scheduled"]}
            for id, (phase, tokens) in worked.items():
                kind, value = here[id]
                assert kind == DECODE if phase == "decode" else kind in (PREFILL, AGAIN) and value == tokens
            assert {id for id, (kind, _) in here.items() if kind in (PREFILL, AGAIN, DECODE)} == set(worked)
            if isinstance(line["queue"], list) and isinstance(line["active"], list):
                waits = {id for id, (kind, _) in here.items() if kind in (WAITING, PREEMPTED)}
                assert waits - set(line["completed"]) == set(line["queue"])
                seated = {id for id, (kind, _) in here.items() if kind == SEATED}
                assert (set(worked) | seated) - set(line["completed"]) == set(line["active"])
            ended = {each["id"] for each in line["rejected"] if "retry_at" not in each}
            ended |= {each["id"] for each in line.get("dropped", ())}
            assert {id for id, (kind, _) in here.items() if kind == OUT} == ended
    assert {PREFILL, DECODE, WAITING} <= seen, "the loads are too easy to show anything"


def test_slots_that_were_halved_hold_sums_and_peaks() -> None:
    rng = random.Random(7)
    for most in (1, 2, 3, 8):
        for count in (0, 1, 5, 16, 17, 100):
            rows, now = [], 0
            for _ in range(count):
                start = now + rng.choice([0, 0, 5])
                now = start + rng.randint(1, 9)
                rows.append([start, now, *(rng.randint(0, 50) for _ in COLUMNS[2:])])
            slots = Slots(most)
            for row in rows:
                slots.add(*row)
            assert slots.iterations == count
            groups = [rows[at : at + slots.per_slot] for at in range(0, count, slots.per_slot)]
            assert len(groups) <= 2 * most
            for name in COLUMNS:
                place = COLUMNS.index(name)
                found = slots.column(name).tolist()
                values = [[row[place] for row in group] for group in groups]
                if name in SUMS:
                    assert found == [sum(group) for group in values]
                elif name in PEAKS:
                    assert found == [max(group) for group in values]
                elif name in ("start", "end"):
                    assert found == [group[0 if name == "start" else -1] for group in values]
                else:
                    assert all(one in group for one, group in zip(found, values, strict=True))


@pytest.mark.parametrize("seed", range(20))
def test_a_curve_tells_the_share_of_samples_up_to_each_value(seed: int) -> None:
    rng = np.random.default_rng(seed)
    samples = rng.integers(0, rng.choice([2, 30, 10**9]), rng.integers(1, 2000))
    found = curve(samples)
    assert found["x"] == sorted(set(found["x"]))
    for value, share in zip(found["x"], found["y"], strict=True):
        assert share == pytest.approx(np.mean(samples <= value), abs=1e-12)
    assert found["x"][-1] == samples.max() and found["y"][-1] == 1
    assert curve([]) == {}


@pytest.mark.parametrize("seed", range(20))
def test_on_the_front_is_whom_nobody_beats(seed: int) -> None:
    rng = random.Random(seed)
    costs, gains = ([rng.randint(0, 9) for _ in range(rng.randint(0, 30))] for _ in range(2))
    gains = [rng.randint(0, 9) for _ in costs]
    points = list(zip(costs, gains, strict=True))
    beaten = {(c, g) for c, g in points for d, h in points if d <= c and h >= g and (d, h) != (c, g)}
    assert {points[place] for place in saved.front(costs, gains)} == set(points) - beaten


def test_numbers_come_out_as_they_went_in() -> None:
    for values in ([], [0], [255], [0, 256], [65536], [2**32], [-1, 3], [0.5], [2**53 - 1, 0]):
        assert unpacked(pack(values)) == values


def test_nothing_in_the_data_can_end_its_element() -> None:
    hostile = "</script><!--<script>&amp;\u2028\u2029\x00\ud800"
    text = embedded({"id": hostile})
    assert not set(text) & set("<>&\u2028\u2029") and text.isascii()
    assert json.loads(text) == {"id": hostile}


def test_ids_are_shown_on_one_line_and_cut() -> None:
    assert shown_id("a\nb\u202e") == "a\\nb\\u202e"
    assert shown_id("x" * 10_000) == "x" * 40 + "… (10,000 characters) …" + "x" * 40
    assert shown_id("😀" * 80) == "😀" * 80
    assert shown_id("conversation-" * 9 + "turn-1", 20) == "conversati… (123 characters) …ion-turn-1"


@pytest.mark.parametrize("policy", ["vllm", "decode-first", "triton"])
def test_a_report_of_a_trace_is_that_of_its_run(policy: str, tmp_path: Path) -> None:
    for seed in range(6):
        found = outcome(policy, seed)
        file = tmp_path / "trace.jsonl"
        file.write_text(found.text, encoding="utf-8")
        again = Recorder()
        read(file, [again])
        document = Recorded("a", again, {}).document()
        for name in ("results", "totals", "latency", "throughput", "iterations", "time"):
            assert document[name] == found.summary[name]
        assert document == Recorded("a", record(found), {}).document()
        assert json.loads(embedded(document))["timeline"]["rows"] == len(again.timeline.lives)


def test_many_segments_leave_every_second_row_out(monkeypatch: pytest.MonkeyPatch) -> None:
    found = next(one for seed in range(200) if len((one := outcome("vllm", seed)).requests) > 12)
    whole = Recorded("a", record(found), {}).document()["timeline"]
    monkeypatch.setattr(recording, "MOST_SEGMENTS", 0)
    monkeypatch.setattr(recording.Timeline, "__init__", _tiny(recording.Timeline.__init__))
    thin = Recorded("a", record(found), {}).document()["timeline"]
    assert whole["every"] == 1 and thin["every"] > 1
    assert unpacked(thin["requests"]["id"]) == unpacked(whole["requests"]["id"])[:: thin["every"]]
    assert unpacked(thin["segments"]["counts"]) == unpacked(whole["segments"]["counts"])[:: thin["every"]]


def _tiny(init: Any) -> Any:
    return lambda self, most_slots, most_segments: init(self, most_slots, 8)


def test_the_page_counts_in_words_that_fit(tmp_path: Path) -> None:
    scenario, page = tmp_path / "one.toml", tmp_path / "a.html"
    head = (
        '[engine]\npolicy = "vllm"\nmax_num_seqs = 2\nmax_num_batched_tokens = 4\n[cost]\nmodel = "unit"\n[workload]\n'
    )
    for requests, said in (
        ("", "0 requests · 0 iterations"),
        ("{id = 'A', arrival = 0, prompt = 2, output = 1}", "1 request · 1 iteration<"),
    ):
        scenario.write_text(f"{head}requests = [{requests}]\n", encoding="utf-8")
        assert command("report", str(scenario), "-o", str(page)).returncode == 0
        text = page.read_text(encoding="utf-8").split("<script")[0]
        assert said in text and ("nobody asked" in text) == (not requests)
    assert command("report", str(scenario), "--set", "engine.max_num_seqs=1,2", "-o", str(page)).returncode == 0
    assert "<th>Output tokens per iteration</th>" in page.read_text(encoding="utf-8")


def test_the_page_forbids_every_network(small_report: Path) -> None:
    text = small_report.read_text(encoding="utf-8")
    head = text.split("</head>")[0]
    assert "default-src 'none'" in head and "unsafe-eval" not in head
    assert "http" not in head.replace("http-equiv", "")
    outside = text.split("<script")[0] + "".join(part.split("</script>")[-1] for part in text.split("<script")[1:])
    for forbidden in ("onclick", "onload", "onerror", "src=", "@import", "http://", "https://"):
        assert forbidden not in outside


BAD = {
    "no-such.jsonl": (None, "readable file expected"),
    "empty.jsonl": (b"", "empty"),
    "words.jsonl": (b"hello\n", "JSON expected"),
    "table.parquet": (b"PAR1", "a table that batchlab sweep or tune wrote (.parquet) expected"),
    "list.json": (b"[1, 2]", "capacity --json prints expected"),
    "nan.json": (b'{"slo": NaN}', "NaN"),
    "other.json": (b'{"slo": 1}', "capacity --json prints expected"),
    "experiment.json": (
        b'{"varied": "a", "short": 5, "runs": [], "reading": {}}',
        "the JSON of an experiment has no page",
    ),
    "run.json": (b'{"scenario": "a.toml", "runs": []}', "the JSON of batchlab run has no page: a RUN is a trace, a sc"),
    "scenario.toml": (b"[engine]\npolicy = 'chunked'\n", "is missing"),
    "packed.jsonl": (b"\x1f\x8b\x08", "gzip"),
}


@pytest.mark.parametrize("name", BAD)
def test_what_is_no_run_is_one_line_and_leaves_no_file(name: str, tmp_path: Path) -> None:
    data, expected = BAD[name]
    if data is not None:
        (tmp_path / name).write_bytes(data)
    done = command("report", str(tmp_path / name), "-o", str(tmp_path / "out.html"))
    assert done.returncode == 2
    assert done.stderr.startswith("batchlab: ") and done.stderr.count("\n") == 1
    assert expected in done.stderr and name in done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ([] if data is None else [name])


@pytest.mark.skipif(sys.platform == "win32", reason="signals differ")
@pytest.mark.parametrize(
    "what",
    [
        ["report"],
        ["export", "chrome", ".json"],
        ["export", "requests", ".csv"],
        ["export", "iterations", ".parquet"],
        ["export", "timeline", ".svg"],
    ],
    ids=lambda what: what[-1],
)
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_leaves_nothing_and_keeps_what_was_there(what: list[str], number: int, tmp_path: Path) -> None:
    """It comes while the trace is read: a pipe that gives its first half, and no end."""
    name, *rest = what
    output = tmp_path / f"out{rest[1] if rest else '.html'}"
    output.write_text("of before", encoding="utf-8")
    pipe = tmp_path / "trace.jsonl"
    os.mkfifo(pipe)
    arguments = [name, str(pipe), *rest[:1], "-o", str(output)]
    process = subprocess.Popen([sys.executable, "-m", "batchlab", *arguments], stderr=subprocess.PIPE)
    lines = outcome("vllm", 7).text.splitlines(keepends=True)
    with open(pipe, "w", encoding="utf-8") as given:
        given.write("".join(lines[: len(lines) // 2]))
        given.flush()
        process.send_signal(number)
        err = process.communicate(timeout=60)[1]
    assert process.returncode not in (0, 2) and b"Traceback" not in err
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([output.name, "trace.jsonl"])
    assert output.read_text(encoding="utf-8") == "of before"


def test_options_that_say_nothing_and_outputs_over_inputs_are_refused(tmp_path: Path) -> None:
    trace = tmp_path / "trace.jsonl"
    scenario = str(EXAMPLES / "priority-preemption.toml")
    assert command("run", scenario, "--trace", str(trace)).returncode == 0
    before = trace.read_bytes()
    over = command("report", str(trace), "-o", str(trace))
    assert over.returncode == 2 and "would overwrite an input" in over.stderr and trace.read_bytes() == before
    for name in ("page.toml", "page", "-"):
        ending = command("report", str(trace), "-o", name)
        assert (ending.returncode, ending.stderr) == (2, f"batchlab: {name}: a page is written as .html\n")
    useless = command("report", str(trace), "--set", "engine.prefill_chunk=2", "-o", str(tmp_path / "a.html"))
    assert useless.returncode == 2 and "no RUN is one" in useless.stderr
    unit = command("report", str(trace), "--slo", "ttft:p99<=5ms", "-o", str(tmp_path / "a.html"))
    assert unit.returncode == 2 and "iterations" in unit.stderr
    share = command("report", str(trace), "--slo", "attainment>=90%", "-o", str(tmp_path / "a.html"))
    expected = f"needs --goodput ttft:500 tpot:50: {trace} is a trace, which has no targets of classes"
    assert (share.returncode, share.stderr) == (2, f"batchlab: --slo: 'attainment>=90%': {expected}\n")
    many = command("report", *[str(trace)] * 65, "-o", str(tmp_path / "a.html"))
    assert many.returncode == 2 and "65 runs" in many.stderr
    vllm = str(EXAMPLES / "vllm.toml")
    nan = command("report", vllm, vllm, "-o", str(tmp_path / "a.html"), "--set", "engine.watermark=nan")
    refused = "--set engine.watermark: nan: must be a fraction, at least 0 and below 1"
    assert nan.returncode == 2 and nan.stderr.count(refused) == nan.stderr.count("watermark") == 1
    nameless = command("report", str(trace), "-o", "")
    assert (nameless.returncode, nameless.stderr) == (2, "batchlab: the name of the file to write is empty\n")
    nowhere = command("report", str(trace), "-o", str(tmp_path / "no" / "a.html"))
    assert nowhere.returncode == 2 and "cannot be written" in nowhere.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["trace.jsonl"]


@pytest.mark.parametrize("package", ["plotly", "jinja2"])
def test_without_its_extra_it_says_what_to_install(
    package: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    page = tmp_path / "a.html"
    done = command("report", str(EXAMPLES / "three-modes.toml"), "-o", str(page))
    assert (done.returncode, done.stderr) == (
        2,
        "batchlab: report: needs the packages of its extra: pip install 'batchlab[report]', "
        "or in a checkout .venv/bin/pip install -e '.[report]'\n",
    )
    assert not page.exists()


def test_a_missed_objective_and_a_cut_trace_are_told_by_the_exit_code(tmp_path: Path) -> None:
    trace, page = tmp_path / "trace.jsonl", tmp_path / "a.html"
    assert command("run", str(EXAMPLES / "priority-preemption.toml"), "--trace", str(trace)).returncode == 0
    assert command("report", str(trace), "--slo", "ttft:max<=4", "-o", str(page)).returncode == 0
    assert command("report", str(trace), "--slo", "ttft:max<=3", "-o", str(page)).returncode == 1
    assert "✗ no" in page.read_text(encoding="utf-8")
    lines = trace.read_bytes().splitlines(keepends=True)
    trace.write_bytes(b"".join(lines[:4]))
    cut = command("report", str(trace), "-o", str(page))
    assert cut.returncode == 1 and "no end line" in cut.stderr
    assert "The trace has no end line" in page.read_text(encoding="utf-8")


def test_a_trace_that_was_tampered_with_is_an_error_in_one_line_or_a_page(tmp_path: Path) -> None:
    rng = random.Random(11)
    values: list[Any] = [None, -1, 0, 2**53, 2**63, 10**30, 1.5, "x", "", [], {}, True, ["x"], [["x", "decode", 1]]]
    trace, page = tmp_path / "trace.jsonl", tmp_path / "page.html"
    codes = set()
    for _ in range(60):
        lines = [
            json.loads(line)
            for line in outcome(rng.choice(["vllm", "decode-first"]), rng.randrange(9)).text.splitlines()
        ]
        line = rng.choice(lines)
        name = rng.choice(list(line))
        if rng.random() < 0.3:
            lines.remove(line)
        elif isinstance(line[name], list) and line[name] and rng.random() < 0.5:
            line[name].append(line[name][0])
        else:
            line[name] = rng.choice(values)
        trace.write_text("".join(json.dumps(one) + "\n" for one in lines), encoding="utf-8")
        page.unlink(missing_ok=True)
        done = command("report", str(trace), "-o", str(page))
        codes.add(done.returncode)
        assert page.exists() == (done.returncode != 2), done.stderr
        assert done.returncode in (0, 1) or done.stderr.count("\n") == 1
    assert {0, 2} <= codes


def test_a_run_whose_times_a_browser_cannot_hold_is_refused_too(tmp_path: Path) -> None:
    """Not its trace only: from 2^53 on two times would be one."""
    path = tmp_path / "late.toml"
    path.write_text(
        '[engine]\npolicy = "continuous"\nmax_num_seqs = 1\nmax_num_batched_tokens = 8\n'
        '[cost]\nmodel = "linear"\nunit = "ns"\nper_iteration = 1\n'
        f'[workload]\nrequests = [{{ id = "A", arrival = {2**53 + 1}, prompt = 1, output = 1 }}]\n'
    )
    done = command("report", str(path), "-o", str(tmp_path / "page.html"))
    assert done.returncode == 2
    assert f"request 'A': arrival: {2**53 + 1}: times and tokens below 2^53 expected in a report" in done.stderr
    assert not (tmp_path / "page.html").exists()


def test_settings_of_a_trace_are_named_as_a_scenario_does() -> None:
    clock = {"unit": "iteration"}
    limits = {"max_num_seqs": 4, "max_num_batched_tokens": 64, "num_gpu_blocks": 40}
    for engine, own in (
        ("vllm", {"max_num_seqs": "4", "num_gpu_blocks": "41"}),
        ("tensorrt-llm", {"max_batch_size": "4", "max_num_tokens": "64", "num_blocks": "40"}),
        ("mine.py:Mine", {"max_num_seqs": "4", "num_gpu_blocks": "40"}),
    ):
        header = Header(engine, "r", {}, limits, clock, None, "output", {}, None, {}, "keep", None, 1)
        said = said_header(header)
        assert {key: said[f"engine.{key}"] for key in own} == own
