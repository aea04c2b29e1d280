"""The commands as a user meets them: what they print where, what they write, how they end."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from batchlab.cli import main

pytestmark = pytest.mark.once

ROOT = Path(__file__).resolve().parents[1]
PREEMPTION = ROOT / "examples" / "priority-preemption.toml"
MODES = ROOT / "examples" / "three-modes.toml"
CASES = ROOT.parent / "shared" / "worked-examples"

needs_cases = pytest.mark.skipif(not CASES.is_dir(), reason="the recorded examples are not here")

OWN_POLICIES = """
class Whole:
    def plan(self, view, batch):
        batch.admit_waiting()
        batch.decode_all()
        batch.prefill_all()


class Pieces(Whole):
    def __init__(self, piece: int = 2):
        self.piece = piece

    def plan(self, view, batch):
        batch.admit_waiting()
        batch.decode_all()
        batch.prefill_all(self.piece)
"""
LONG = """
[engine]
policy = "decode-first"
max_num_seqs = 1
max_num_batched_tokens = 1
prefill_chunk = 1
[cost]
model = "unit"
[workload]
requests = [{ id = "A", arrival = 0, prompt = 1, output = OUTPUT }]
"""

Call = Callable[..., tuple[int, str, str]]


@pytest.fixture
def call(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Call:
    """Run the command in this process: exit code, stdout, stderr."""

    def run(*arguments: object) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["batchlab", *map(str, arguments)])
        capsys.readouterr()
        try:
            main()
            code = 0
        except SystemExit as stop:
            code = {None: 0}.get(stop.code, stop.code)  # type: ignore[call-overload]
        out, err = capsys.readouterr()
        return code, out, err

    return run


def start(*arguments: object, env: dict[str, str] | None = None, **options: Any) -> subprocess.Popen[bytes]:
    """Run the command in a process of its own."""
    command = [sys.executable, "-c", "from batchlab.cli import main; main()", *map(str, arguments)]
    path = os.pathsep.join(filter(None, sys.path))
    return subprocess.Popen(command, env=os.environ | {"PYTHONPATH": path} | (env or {}), **options)


def rows(out: str, first: str) -> dict[str, dict[str, str]]:
    """A printed table by its first column. Columns end where their header or a cell below it does."""
    lines = out.splitlines()
    at = next(number for number, line in enumerate(lines) if line.split("  ")[0].strip() == first)
    body = []
    for line in lines[at + 1 :]:
        if not line.startswith(" ") and not line[:1].isalnum():
            break
        if line.startswith(("request ", "every request ended", "stopped by max_iterations")):
            break
        body.append(line)
    width = max(map(len, [lines[at], *body]))
    table = [line.ljust(width) for line in [lines[at], *body]]
    blank = [all(line[column] == " " for line in table) for column in range(width)]
    edges = [c for c in range(1, width - 1) if blank[c] and blank[c - 1] and not blank[c + 1]]
    cells = [
        [line[left:right].strip() for left, right in zip([0, *edges], [*edges, width], strict=True)] for line in table
    ]
    return {row[0]: dict(zip(cells[0], row, strict=True)) for row in cells[1:]}


def schedules(document: dict[str, Any]) -> list[list[Any]]:
    return [[line["scheduled"] for line in run["schedule"]] for run in document["runs"]]


# What the examples print


def test_preemption_example_prints_its_figures(call: Call) -> None:
    code, out, err = call("run", PREEMPTION)
    assert (code, err) == (0, "")
    iterations, requests = rows(out, "iteration"), rows(out, "request")
    assert list(iterations) == ["0", "1", "2", "3", "4", "5"]
    assert {number: row["preempted"] for number, row in iterations.items() if row["preempted"]} == {"1": "A"}
    assert {number: row["rejected"] for number, row in iterations.items() if row["rejected"]} == {"2": "F"}
    done = {number: row["completed"] for number, row in iterations.items() if row["completed"]}
    assert done == {"1": "C", "2": "B", "4": "D", "5": "A E"}
    completed = {name: row["completed"] for name, row in requests.items()}
    assert completed == {"A": "5", "B": "2", "C": "1", "D": "4", "E": "5", "F": "-"}
    assert {name: row["preemptions"] for name, row in requests.items()} == dict.fromkeys("BCDEF", "0") | {"A": "1"}
    assert requests["F"]["result"] == "rejected: queue full"
    assert "every request ended after 6 iterations" in out and "5 completed, 1 rejected" in out
    assert "longest queue 2, preemptions 1, rejections 1" in out


@pytest.mark.parametrize(
    ("mode", "a_itl", "c_ttft", "d_ttft"),
    [("static", "2", "28", "28"), ("continuous", "16", "12", "28"), ("chunked", "10", "16", "30")],
)
def test_three_modes_example_prints_its_figures(call: Call, mode: str, a_itl: str, c_ttft: str, d_ttft: str) -> None:
    code, out, err = call("run", MODES, "--mode", mode)
    assert (code, err) == (0, "")
    requests = rows(out, "request")
    assert (requests["A"]["max ITL"], requests["C"]["TTFT"], requests["D"]["TTFT"]) == (a_itl, c_ttft, d_ttft)
    assert "at 34 cost units: 4 completed" in out
    assert "not milliseconds" in out and "nothing about throughput" in out


def test_three_modes_example_runs_all_three_in_order(call: Call) -> None:
    code, out, _ = call("run", MODES)
    assert code == 0
    assert re.findall(r"^policy (\S+)", out, re.MULTILINE) == ["static", "continuous", "chunked"]
    assert out.count("at 34 cost units: 4 completed") == 3


# Options of run


def test_json_is_one_document_with_the_same_figures(call: Call) -> None:
    code, out, err = call("run", MODES, "--json")
    assert (code, err) == (0, "")
    document = json.loads(out)
    assert document["scenario"] == "three-modes.toml"
    assert [run["engine"] for run in document["runs"]] == ["static", "continuous", "chunked"]
    assert [run["time"] for run in document["runs"]] == [34, 34, 34]
    figures = [{r["id"]: (r["ttft"], r["max_itl"]) for r in run["requests"]} for run in document["runs"]]
    assert [one["A"][1] for one in figures] == [2, 16, 10]
    assert [one["C"][0] for one in figures] == [28, 12, 16]
    assert [one["D"][0] for one in figures] == [28, 28, 30]
    assert all(len(run["schedule"]) == run["iterations"] for run in document["runs"])


def test_chunk_size_and_set_say_the_same(call: Call) -> None:
    plain = json.loads(call("run", MODES, "--mode", "chunked", "--json")[1])
    short = json.loads(call("run", MODES, "--mode", "chunked", "--json", "--chunk-size", 2)[1])
    long = json.loads(call("run", MODES, "--mode", "chunked", "--json", "--set", "engine.prefill_chunk=2")[1])
    assert short == long != plain
    prefills = [entry[2] for step in schedules(short)[0] for entry in step if entry[1] == "prefill"]
    assert max(prefills) == 2 and sum(prefills) == 24


def test_token_budget_and_set_say_the_same(call: Call) -> None:
    short = json.loads(call("run", MODES, "--mode", "chunked", "--json", "--token-budget", 8)[1])
    long = json.loads(call("run", MODES, "--mode", "chunked", "--json", "--set", "engine.max_num_batched_tokens=8")[1])
    assert short == long
    assert max(sum(entry[2] for entry in step) for step in schedules(short)[0]) <= 8


def test_set_reaches_every_section_and_type(call: Call) -> None:
    changes = ["engine.priority_preemption=false", "run.max_iterations=50", 'title="Another title"']
    code, out, _ = call("run", PREEMPTION, *(f"--set={change}" for change in changes[:2]))
    assert code == 0 and "preemptions 0," in out and "priority_preemption = false" in out
    code, out, _ = call("run", MODES, "--mode=static", "--set", "cost.decode_token=0.25", "--json")
    assert code == 0 and json.loads(out)["runs"][0]["time"] != 34
    code, out, _ = call("run", MODES, "--set", "engine.policy=chunked", "--json")
    assert [run["engine"] for run in json.loads(out)["runs"]] == ["chunked"]


@pytest.mark.parametrize("chosen", [["--mode", "chunked,static"], ["--policy", "chunked", "--mode", "static"]])
def test_policies_run_in_the_order_asked(call: Call, chosen: list[str]) -> None:
    document = json.loads(call("run", MODES, "--json", *chosen)[1])
    assert [run["engine"] for run in document["runs"]] == ["chunked", "static"]


def test_a_policy_of_ones_own(call: Call, tmp_path: Path) -> None:
    own = tmp_path / "own.py"
    own.write_text(OWN_POLICIES, encoding="utf-8")
    trace, summary = tmp_path / "t.jsonl", tmp_path / "s.json"
    code, out, err = call(
        "run", MODES, "--policy", f"{own}:Pieces", "--set", "engine.piece=3", "--trace", trace, "--summary", summary
    )
    assert (code, err) == (0, "") and "piece = 3" in out
    header = json.loads(trace.read_text(encoding="utf-8").splitlines()[0])
    assert header["settings"] == {"piece": 3} and header["engine"] == f"{own}:Pieces"
    assert call("verify", trace, "--summary", summary)[0] == 0


def test_an_iteration_limit_exits_with_1_and_shows_the_rest(call: Call, tmp_path: Path) -> None:
    trace = tmp_path / "t.jsonl"
    code, out, err = call("run", PREEMPTION, "--set", "run.max_iterations=2", "--trace", trace)
    assert (code, err) == (1, "")
    assert "stopped by max_iterations after 2 iterations" in out
    assert {row["result"] for row in rows(out, "request").values()} == {"waiting", "active", "completed", "pending"}
    assert call("verify", trace)[0] == 0
    code, out, err = call("run", PREEMPTION, "--set", "run.max_iterations=2", "--json")
    assert (code, err) == (1, "") and json.loads(out)["runs"][0]["termination"] == "iteration_limit"


def test_files_of_one_policy_have_the_names_asked_for(call: Call, tmp_path: Path) -> None:
    trace, summary = tmp_path / "t.jsonl", tmp_path / "s.json"
    assert call("run", PREEMPTION, "--trace", trace, "--summary", summary)[0] == 0
    assert sorted(path.name for path in tmp_path.iterdir()) == ["s.json", "t.jsonl"]
    document = json.loads(summary.read_text(encoding="utf-8"))
    printed = json.loads(call("run", PREEMPTION, "--json")[1])["runs"][0]
    assert {key: value for key, value in printed.items() if key != "schedule"} == document
    lines = [json.loads(line) for line in trace.read_text(encoding="utf-8").splitlines()]
    assert [line for line in lines if line["type"] == "iteration"] == printed["schedule"]


def test_files_of_several_policies_have_the_policy_in_the_name(call: Call, tmp_path: Path) -> None:
    code, _, err = call("run", MODES, "--trace", tmp_path / "t.jsonl", "--summary", tmp_path / "s.json")
    assert (code, err) == (0, "")
    modes = ["chunked", "continuous", "static"]
    expected = [f"s.{mode}.json" for mode in modes] + [f"t.{mode}.jsonl" for mode in modes]
    assert sorted(path.name for path in tmp_path.iterdir()) == expected
    for mode in modes:
        trace, summary = tmp_path / f"t.{mode}.jsonl", tmp_path / f"s.{mode}.json"
        assert json.loads(summary.read_text(encoding="utf-8"))["engine"] == mode
        assert call("verify", trace, "--summary", summary)[0] == 0


def test_a_second_run_writes_the_same_bytes(call: Call, tmp_path: Path) -> None:
    files = []
    for number in (1, 2):
        trace, summary = tmp_path / f"t{number}", tmp_path / f"s{number}"
        out = call("run", PREEMPTION, "--trace", trace, "--summary", summary)[1]
        files.append((out, trace.read_bytes(), summary.read_bytes()))
    assert files[0] == files[1]


# verify and conform


def test_verify_says_what_it_saw(call: Call, tmp_path: Path) -> None:
    trace = tmp_path / "t.jsonl"
    call("run", PREEMPTION, "--trace", trace)
    code, out, err = call("verify", trace)
    assert (code, err) == (0, "") and out.count("\n") == 1
    assert "6 iterations, 6 requests: every rule holds" in out
    code, out, err = call("verify", trace, "--json")
    assert (code, err) == (0, "")
    assert json.loads(out) == {
        "trace": str(trace),
        "ok": True,
        "note": None,
        "stopped": None,
        "violations": [],
    }


def test_verify_names_rule_and_place_of_a_violation(call: Call, tmp_path: Path) -> None:
    trace = tmp_path / "t.jsonl"
    call("run", PREEMPTION, "--trace", trace)
    text = trace.read_text(encoding="utf-8")
    trace.write_text(text.replace('["A","prefill",3]', '["A","prefill",4]', 1), encoding="utf-8")
    code, out, err = call("verify", trace)
    assert (code, err) == (1, "")
    assert "[budget]: line 2, iteration 0: 7 tokens scheduled, but max_num_batched_tokens is 6" in out
    code, out, _ = call("verify", trace, "--json")
    document = json.loads(out)
    assert code == 1 and document["ok"] is False
    assert {"rule": "budget", "line": 2, "iteration": 0}.items() <= document["violations"][0].items()


def test_verify_compares_the_summary(call: Call, tmp_path: Path) -> None:
    trace, summary = tmp_path / "t.jsonl", tmp_path / "s.json"
    call("run", PREEMPTION, "--trace", trace, "--summary", summary)
    assert call("verify", trace, "--summary", summary)[0] == 0
    document = json.loads(summary.read_text(encoding="utf-8"))
    document["requests"][3]["ttft"] += 1
    summary.write_text(json.dumps(document), encoding="utf-8")
    code, out, _ = call("verify", trace, "--summary", summary)
    assert code == 1 and "[summary]" in out and "'D'" in out and "ttft" in out


@needs_cases
def test_conform_passes_the_recorded_cases(call: Call) -> None:
    count = len(list(CASES.glob("*.json")))
    code, out, err = call("conform", CASES)
    assert (code, err) == (0, "")
    assert out.count(": pass (") == count and out.endswith(f"\n{count} passed, 0 failed\n")
    code, out, err = call("conform", CASES / "three-modes.json", CASES / "decode-first-overload.json", "--json")
    document = json.loads(out)
    assert (code, err) == (0, "") and (document["passed"], document["failed"]) == (2, 0)


@needs_cases
def test_conform_shows_the_first_difference(call: Call, tmp_path: Path) -> None:
    case = json.loads((CASES / "decode-first-baseline.json").read_text(encoding="utf-8"))
    case["expected"]["trace"][3]["unused_budget"] = 77
    path = tmp_path / "wrong.json"
    path.write_text(json.dumps(case), encoding="utf-8")
    code, out, err = call("conform", path)
    assert (code, err) == (1, "")
    assert "FAIL iteration 3: unused_budget: expected 77, got 2" in out and "0 passed, 1 failed" in out
    code, out, _ = call("conform", path, "--json")
    difference = json.loads(out)["cases"][0]["difference"]
    assert code == 1 and difference == {"place": "iteration 3: unused_budget", "expected": 77, "got": 2}


# Usage


@pytest.mark.parametrize(
    "arguments",
    [
        ["run"],
        ["run", PREEMPTION, "--polic", "static"],
        ["run", PREEMPTION, "--token-budget", "many"],
        ["run", PREEMPTION, "another.toml"],
        ["verify"],
        ["conform"],
        ["walk"],
    ],
)
def test_wrong_usage_exits_with_2(call: Call, arguments: list[object]) -> None:
    code, out, err = call(*arguments)
    assert (code, out) == (2, "")
    assert "Traceback" not in err and err.splitlines()[-1].startswith("Error: ")


@pytest.mark.parametrize("arguments", [["--help"], ["-h"], ["run", "-h"], ["verify", "--help"], ["conform", "-h"]])
def test_help_goes_to_stdout(call: Call, arguments: list[str]) -> None:
    code, out, err = call(*arguments)
    assert (code, err) == (0, "") and out.startswith("Usage: batchlab")


def test_version_names_the_build(call: Call) -> None:
    code, out, err = call("--version")
    assert (code, err) == (0, "")
    assert re.fullmatch(r"batchlab \d+\.\d+\.\d+ \((compiled|interpreted) core\)\n", out)


# Processes: streams, pipes, signals


def test_results_and_errors_go_to_their_streams(tmp_path: Path) -> None:
    good = start("run", PREEMPTION, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    out, err = good.communicate()
    assert good.returncode == 0 and out and not err
    bad = start("run", tmp_path / "none.toml", stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    out, err = bad.communicate()
    assert bad.returncode == 2 and not out and err.count(b"\n") == 1


@pytest.mark.parametrize("env", [{}, {"NO_COLOR": "1"}, {"TERM": "dumb"}, {"COLUMNS": "20"}])
def test_a_pipe_gets_no_escape_codes(env: dict[str, str]) -> None:
    process = start("run", MODES, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    out, err = process.communicate()
    assert process.returncode == 0 and not err
    assert b"\x1b" not in out and "".join(rows(out.decode(), "request")) == "ABCD"


@pytest.mark.skipif(sys.platform == "win32", reason="no terminals to open here")
@pytest.mark.parametrize(("env", "coloured"), [({"TERM": "xterm"}, True), ({"TERM": "xterm", "NO_COLOR": "1"}, False)])
def test_a_terminal_gets_colour_unless_told_not_to(env: dict[str, str], coloured: bool) -> None:
    ours, theirs = os.openpty()
    with start("run", PREEMPTION, env=env, stdout=theirs, stderr=theirs) as process:
        os.close(theirs)
        out = b""
        while True:
            try:
                read = os.read(ours, 65536)
            except OSError:  # the other end is closed
                break
            if not read:
                break
            out += read
    os.close(ours)
    assert process.returncode == 0
    assert (re.search(rb"\x1b\[[0-9;]*3[24]", out) is not None) == coloured


@pytest.mark.parametrize("options", [[], ["--json"], ["--trace", "/dev/stdout"]])
def test_a_reader_that_leaves_early_sees_no_traceback(tmp_path: Path, options: list[str]) -> None:
    if "/dev/stdout" in options and not Path("/dev/stdout").exists():
        pytest.skip("no /dev/stdout here")
    scenario = tmp_path / "long.toml"
    scenario.write_text(LONG.replace("OUTPUT", "3000"), encoding="utf-8")
    process = start("run", scenario, *options, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout is not None and process.stderr is not None
    assert process.stdout.readline()
    process.stdout.close()
    err = process.stderr.read()
    process.stderr.close()
    process.wait(timeout=60)
    assert process.returncode == 141 and not err


@pytest.mark.skipif(sys.platform == "win32", reason="signals differ")
@pytest.mark.parametrize(
    "arguments", [["--help"], ["run", "-h"], ["engines"], ["engines", "--json"], ["run", PREEMPTION], ["catalog"]]
)
def test_a_reader_that_is_gone_is_no_answer(arguments: list[str]) -> None:
    """What shells see of `cat`, whoever writes: the option of click, a table of rich, or a document."""
    ours, theirs = os.pipe()
    os.close(ours)
    process = start(*arguments, stdout=theirs, stderr=subprocess.PIPE)
    os.close(theirs)
    assert process.communicate(timeout=60)[1] == b"" and process.returncode == 141


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full here")
@pytest.mark.parametrize("options", [[], ["--json"]])
def test_a_full_disk_below_stdout_is_one_line(options: list[str]) -> None:
    with open("/dev/full", "wb") as full:
        process = start("run", PREEMPTION, *options, stdout=full, stderr=subprocess.PIPE)
        err = process.communicate()[1].decode()
    assert process.returncode == 2
    assert "Traceback" not in err and err.count("\n") == 1 and "No space left" in err


@pytest.mark.skipif(sys.platform == "win32", reason="signals differ")
def test_an_interrupt_leaves_no_file(tmp_path: Path) -> None:
    scenario = tmp_path / "long.toml"
    scenario.write_text(LONG.replace("OUTPUT", "100000000"), encoding="utf-8")
    out = tmp_path / "out"
    out.mkdir()
    process = start("run", scenario, "--trace", out / "t.jsonl", stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    wait_for(lambda: any(out.iterdir()))
    process.send_signal(signal.SIGINT)
    printed, err = process.communicate(timeout=60)
    assert process.returncode not in (0, None)
    assert b"Traceback" not in err and not printed
    assert not list(out.iterdir())


def wait_for(happened: Callable[[], bool]) -> None:
    until = time.monotonic() + 60
    while not happened():
        assert time.monotonic() < until, "nothing happened"
        time.sleep(0.01)


@pytest.mark.parametrize("width", [80, 100, 160])
@pytest.mark.parametrize("example", ["priority-preemption", "three-modes", "vllm"])
def test_tables_break_no_heading_and_cut_nothing(width: int, example: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """At the width of a common terminal every column is there, and no word is broken."""
    from io import StringIO

    from rich.console import Console

    from batchlab import Summary, load, simulate
    from batchlab.cli import tables
    from batchlab.cli.timeline import Timeline

    out = StringIO()
    screen = Console(file=out, width=width, highlight=False, force_terminal=True, color_system=None)
    monkeypatch.setattr(tables, "console", lambda: screen)
    for run in load(ROOT / "examples" / f"{example}.toml").runs:
        summary, timeline = Summary(), Timeline()
        simulate(run, [summary, timeline])
        tables.print_run(summary, timeline, tables.settings_line(run))
    words = set(re.sub(r"\x1b\[[0-9;]*m", "", out.getvalue()).split())
    assert {"scheduled", "queue", "active", "unused", "request", "prompt", "output"} <= words
    assert words & {"completed", "done"} and words & {"preemptions", "preempt"}
    assert not words & {"complet", "comple", "ted", "ed", "preempti", "ac", "itera"}
