"""Ids may hold anything: no command sends a control character to the terminal, and no export is harmed."""

import contextlib
import csv
import io
import json
import re
import signal
import sys
import xml.etree.ElementTree as ET
from dataclasses import dataclass
from pathlib import Path

import pyarrow.parquet
import pytest

from batchlab.cli import main

pytestmark = pytest.mark.once

IDS = [
    "<script>alert(1)</script>",
    "quote\"s and 'those', commas\\",
    "line\nbreak\r\ntab\t",
    "\x1b[31mred\x1b]0;title\x07",
    "c1 \x9b31m \x85 del \x7f nul \x00",
    "bidi \u202eevil\u202c zero\u200bwidth",
    "long " + "x" * 10_000,
    "emoji 🦜👩‍👩‍👧 flag 🇹🇼",
    "請求一二三四五六七八九十一二三四五六七八九十",
    "[bold]markup[/bold] [link=x] $x^2$ %d {0}",
    "=1+1",
]
RAW = re.compile(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2066-\u2069]")
"""What must not reach a terminal as it stands."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A scenario with these ids, its traces and its cases."""
    folder = tmp_path_factory.mktemp("hostile")
    text = '[engine]\npolicy = "decode-first"\nmax_num_seqs = 2\nmax_num_batched_tokens = 6\nmax_queue = 4\n'
    text += "prefill_chunk = 3\npriority_preemption = true\narrivals_first = true\n"
    text += '[cost]\nmodel = "unit"\n[workload]\n'
    for number, id in enumerate(IDS):
        text += f"[[workload.requests]]\nid = {json.dumps(id, ensure_ascii=False)}\narrival = {number // 2}\n"
        text += f"prompt = 4\noutput = 2\npriority = {0 if number == 3 else 1}\n"
    (folder / "hostile.toml").write_text(text.replace("\x7f", "\\u007F"), encoding="utf-8")
    assert batchlab(folder, "run", "hostile.toml", "--trace", "t.jsonl", "--summary", "s.json").returncode == 0
    lines = (folder / "t.jsonl").read_text(encoding="utf-8").split("\n")
    broken = json.loads(lines[4])
    broken["scheduled"] = [[id, "decode", 1] for id in IDS]
    (folder / "broken.jsonl").write_text("\n".join([*lines[:4], json.dumps(broken), *lines[5:]]), encoding="utf-8")
    return folder


@pytest.fixture(scope="module")
def planned(folder: Path) -> Path:
    """The same ids, and other hostile names, in all that is no scenario: recordings, measured runs, files of a load."""
    red = IDS[3]
    served = '[engine]\npolicy = "vllm"\nmax_num_seqs = 4\nmax_num_batched_tokens = 64\nmax_model_len = 64\n'
    served += '[cost]\nmodel = "linear"\nunit = "ns"\nper_iteration = 1000000\n'
    (folder / "generated.toml").write_text(
        f"title = {json.dumps(red)}\n{served}[workload.generate]\nnum_prompts = 30\nseed = 1\n"
        'arrivals = "poisson"\nrequest_rate = 50\n'
        'prompt = { distribution = "uniform", min = 1, max = 40 }\noutput = { distribution = "constant", value = 4 }\n'
        f"[[workload.generate.classes]]\nname = {json.dumps(red)}\nshare = 1\n",
        encoding="utf-8",
    )
    unservable = "".join(
        f"[[workload.requests]]\nid = {json.dumps(id, ensure_ascii=False)}\narrival = 0\nprompt = 100\noutput = 2\n"
        for id in IDS[3:4]
    )
    (folder / "unservable.toml").write_text(served + unservable, encoding="utf-8")
    rows = [
        {"request_id": id, "arrival_time": 1 + n / 10, "queued_ts": 1 + n / 10, "first_token_ts": 2 + n / 10}
        | {"last_token_ts": 3 + n / 10, "input_toks": 20, "output_toks": 4}
        for n, id in enumerate(IDS)
    ]
    meta = {
        "vllm_version": red,
        "engine_kwargs": {"max_num_seqs": 4, "max_num_batched_tokens": 64, "max_model_len": 64},
        "kv_cache": {"num_gpu_blocks": 100, "block_size": 16, "enable_prefix_caching": False},
    }
    for name, last in (("measured", 3.0), ("broken", "late")):
        (folder / name).mkdir()
        text = "".join(json.dumps(row | ({"last_token_ts": last} if last == "late" else {})) + "\n" for row in rows)
        (folder / name / "requests.jsonl").write_text(text, encoding="utf-8")
        (folder / name / "meta.json").write_text(json.dumps(meta), encoding="utf-8")
    cost = '[cost]\nmodel = "linear"\nunit = "ns"\nper_iteration = 1000000\n'
    (folder / "cost.toml").write_text(cost, encoding="utf-8")
    scenario = {
        "policy": "fcfs",
        "max_num_seqs": 2,
        "max_num_batched_tokens": 8,
        "max_model_len": 16,
        "block_size": 4,
        "num_blocks": 4,
        "enable_prefix_caching": False,
        "requests": [{"id": red, "arrival_step": 0, "prompt": 6, "output": 1}],
    }
    step = {
        "step": 0,
        "arrived": [red],
        "scheduled": {red: 6},
        "total_tokens": 6,
        "preempted": [],
        "new": {red: 0},
        "resumed": {},
        "running": [red],
        "waiting": [],
        "free_blocks": 2,
        "finished": [red],
        "free_blocks_after": 4,
    }
    for name, steps in (("right", [step]), ("wrong", [{**step, "waiting": [red]}]), ("odd", [{**step, red: 1}])):
        document = {"name": f"{name} {red}", "scenario": scenario, "trace": steps}
        (folder / f"{name}.json").write_text(json.dumps(document), encoding="utf-8")
    lines = [{"timestamp": 0, "input_length": 4, "output_length": 2, "hash_ids": [1]}, {red: red}]
    (folder / "load.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    (folder / "load.csv").write_text(f"arrival,prompt,output,session\n0,4,2,{red}\n1,x{red},2,b\n", encoding="utf-8")
    return folder


@dataclass
class Done:
    """What a command did."""

    returncode: int
    stdout: str
    stderr: str


def batchlab(folder: Path, *arguments: str) -> Done:
    """The command, in this process."""
    out, err = (io.TextIOWrapper(io.BytesIO(), encoding="utf-8") for _ in range(2))
    with contextlib.chdir(folder), pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["batchlab", *arguments])
        patch.setattr(sys, "stdout", out)
        patch.setattr(sys, "stderr", err)
        patch.setattr(signal, "signal", lambda *_: None)
        try:
            main()
            code = 0
        except SystemExit as end:
            code = int(end.code or 0)
        out.flush()
        err.flush()
    return Done(code, *(stream.buffer.getvalue().decode() for stream in (out, err)))


COMMANDS = [
    ["run", "hostile.toml"],
    ["run", "hostile.toml", "--json"],
    ["show", "t.jsonl"],
    ["show", "t.jsonl", "--json"],
    ["show", "t.jsonl", "--iterations", "1..3"],
    ["show", "broken.jsonl"],
    ["export", "broken.jsonl", "chrome", "-o", "b.json"],
    ["explain", "t.jsonl"],
    ["explain", "t.jsonl", "--json"],
    *(["explain", "t.jsonl", id] for id in IDS[2:6] if "\0" not in id),
    ["explain", "t.jsonl", "no such \x1b[31m request"],
    ["explain", "broken.jsonl"],
    ["verify", "t.jsonl"],
    ["verify", "broken.jsonl"],
    ["verify", "broken.jsonl", "--json"],
    ["compare", "hostile.toml", "--policy", "decode-first,vllm"],
    ["compare", "hostile.toml", "--policy", "decode-first,vllm", "--json"],
]


RED = IDS[3]
GRID = ("--grid", "engine.max_num_seqs=1,2")
SLO = ("--slo", "ttft:p99<=500ms")
PLANS = [
    ["sweep", "hostile.toml", *GRID, "-o", "s.parquet"],
    ["sweep", "hostile.toml", *GRID, "-o", "s.parquet", "--json"],
    ["sweep", "unservable.toml", *GRID, "-o", "u.parquet"],
    ["sweep", "hostile.toml", "--grid", f"engine.{RED}=1,2", "-o", "n.parquet"],
    ["sweep", "generated.toml", "--grid", f"engine.policy=vllm,{RED}", "-o", "n.parquet"],
    ["sweep", "generated.toml", *GRID, "--jobs", "1", *SLO, "-o", "g.parquet"],
    ["capacity", "generated.toml", *SLO, "--seeds", "1", "--jobs", "1"],
    ["capacity", "hostile.toml", *SLO],
    ["tune", "generated.toml", "--slo", f"ttft:{RED}<=5ms"],
    ["experiment", "generated.toml", "--vary", "engine.max_num_seqs=1,4", "--jobs", "1"],
    ["experiment", "hostile.toml", "--vary", "engine.max_num_seqs=1,2"],
    ["experiment", "generated.toml", "--vary", f"engine.max_num_seqs=1,{RED}"],
    ["validate", "measured", "--cost", "cost.toml"],
    ["validate", "measured", "--cost", "cost.toml", "--json"],
    ["validate", "broken", "--cost", "cost.toml"],
    ["validate", "t.jsonl", "--cost", "cost.toml"],
    ["workload", "describe", "hostile.toml"],
    ["workload", "describe", "hostile.toml", "--json"],
    ["workload", "describe", "load.jsonl"],
    ["workload", "describe", "load.csv"],
    ["workload", "describe", "generated.toml"],
    *(["conform", f"{name}.json", *more] for name in ("right", "wrong", "odd") for more in ([], ["--json"])),
    ["conform", "right.json", "--write-traces", "steps"],
    ["compare", "unservable.toml", "--set", "engine.max_num_seqs=1,2"],
    ["compare", "unservable.toml", "--set", "engine.max_num_seqs=1,2", "--json"],
    ["compare", "hostile.toml", "--set", f"engine.max_queue=1,{RED}"],
    ["report", "hostile.toml", "unservable.toml", "-o", "page.html"],
    ["report", "broken.jsonl", "-o", "broken.html"],
    ["report", "s.parquet", "g.parquet", "-o", "sweeps.html"],
]


def test_no_plan_and_no_recording_prints_a_control_character(planned: Path) -> None:
    """Ids, titles, names of classes, and words on the command line."""
    printed = 0
    for command in PLANS:
        done = batchlab(planned, *command)
        assert "Traceback" not in done.stderr, command
        assert done.returncode in (0, 1, 2)
        assert done.stdout or done.stderr or done.returncode == 0, command
        for text in (done.stdout, done.stderr):
            assert not RAW.search(text), (command, RAW.search(text))
        printed += any("x1b" in text or "u001b" in text for text in (done.stdout, done.stderr))
        if "--json" in command and done.stdout:
            json.loads(done.stdout, parse_constant=pytest.fail)  # NaN and the like
    assert printed >= 12, "too few of these print an id at all"


def test_no_command_prints_a_control_character(folder: Path) -> None:
    printed = 0
    for command in COMMANDS:
        done = batchlab(folder, *command)
        assert "Traceback" not in done.stderr, command
        assert done.returncode in (0, 1, 2)
        for text in (done.stdout, done.stderr):
            assert not RAW.search(text), (command, RAW.search(text))
        printed += any("x1b" in text or "u001b" in text for text in (done.stdout, done.stderr))
        if "--json" in command and done.stdout:
            json.loads(done.stdout)
    assert printed >= len(COMMANDS) // 2  # the id was printed, as an escape


def test_the_exports_hold_the_ids_as_they_are(folder: Path) -> None:
    for output in ("c.json", "r.csv", "r.parquet", "t.svg", "t.png"):
        what = {"c": "chrome", "r": "requests", "t": "timeline"}[output[0]]
        done = batchlab(folder, "export", "t.jsonl", what, "-o", output)
        assert (done.returncode, done.stdout, done.stderr) == (0, "", ""), done.stderr
    names = {
        event["args"]["name"]
        for event in json.loads((folder / "c.json").read_text(encoding="ascii"))["traceEvents"]
        if event["name"] == "thread_name" and event["pid"] == 2
    }
    assert names == set(IDS)
    with open(folder / "r.csv", encoding="utf-8", newline="") as file:
        assert [row["id"] for row in csv.DictReader(file)] == IDS
    assert pyarrow.parquet.read_table(folder / "r.parquet")["id"].to_pylist() == IDS
    svg = (folder / "t.svg").read_text(encoding="utf-8")
    ET.fromstring(svg)
    assert "<script" not in svg


def test_halves_of_surrogate_pairs_are_escapes_in_every_file(folder: Path) -> None:
    """JSON can hold them, so a trace can; no file of another kind can."""
    text = (folder / "t.jsonl").read_text(encoding="utf-8").replace("=1+1", "half \\ud800")
    text = text.replace('"idle":null', '"idle":null,"note":"half \\udfff"')
    text = text.replace('"engine":"decode-first"', '"engine":"half \\udc00"')
    (folder / "half.jsonl").write_text(text, encoding="utf-8")
    assert batchlab(folder, "verify", "half.jsonl").returncode == 0
    for what, file in (
        ("requests", "half.csv"),
        ("requests", "half.parquet"),
        ("requests", "half.arrow"),
        ("iterations", "steps.csv"),
        ("iterations", "steps.parquet"),
    ):
        done = batchlab(folder, "export", "half.jsonl", what, "-o", file)
        assert (done.returncode, done.stderr) == (0, ""), (what, file)
    found = pyarrow.parquet.read_table(folder / "half.parquet")
    assert found["id"].to_pylist() == [*IDS[:-1], "half \\ud800"]
    assert found.schema.metadata[b"engine"] == b"half \\udc00"
    assert "half \\ud800" in (folder / "half.csv").read_text(encoding="utf-8")
    notes = pyarrow.parquet.read_table(folder / "steps.parquet")["note"].to_pylist()
    assert "half \\udfff" in notes and set(notes) <= {"half \\udfff", None}
    done = batchlab(folder, "report", "half.jsonl", "-o", "half.html")
    assert done.returncode == 0 and "Traceback" not in done.stderr
    assert "half \\udc00" in (folder / "half.html").read_text(encoding="utf-8")
