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
