"""`batchlab explain`: what it prints, and what it refuses."""

import contextlib
import io
import json
import os
import signal
import sys
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from batchlab.cli import main
from batchlab.cli.explain_tables import _took, by_turns
from batchlab.explain.explainer import merge_facts
from batchlab.explain.lives import Span
from batchlab.explain.reasons import Reason
from batchlab.units import duration

pytestmark = pytest.mark.once

ROOT = Path(__file__).parents[1]
EXAMPLES = ROOT / "examples"
SIGNALS = (signal.SIGTERM, signal.SIGHUP)  # that main() handles


class Done(NamedTuple):
    """How a command ended."""

    returncode: int
    stdout: str
    stderr: str


def command(*arguments: str) -> Done:
    """Run it in this process."""
    out, err, given, handlers = io.StringIO(), io.StringIO(), sys.argv, [signal.getsignal(n) for n in SIGNALS]
    sys.argv = ["batchlab", *arguments]
    code = 0
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            main()
    except SystemExit as end:
        code = int(end.code or 0)
    finally:
        sys.argv = given
        for number, handler in zip(SIGNALS, handlers, strict=True):
            signal.signal(number, handler)
    return Done(code, out.getvalue(), err.getvalue())


@pytest.fixture(scope="module")
def inversion(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = str(tmp_path_factory.mktemp("explain") / "trace.jsonl")
    scenario = str(EXAMPLES / "priority-inversion.toml")
    assert command("run", scenario, "--mode", "vllm", "--trace", path).returncode == 0
    return path


def test_json_and_tables_tell_the_same(inversion: str) -> None:
    document = json.loads(command("explain", inversion, "--json").stdout)
    text = command("explain", inversion).stdout
    assert document["complete"] and document["groups"]["ttft"]["requests"] == 3
    seats = document["groups"]["ttft_slowest"]["by_reason"]["seats"]
    assert seats["time"] == 4_900_000_000 and "4,900.0 100%" in text
    for finding in document["findings"]:
        assert f"{finding['name']}: {finding['text']}" in text


def test_the_groups_are_sums_of_the_requests(inversion: str) -> None:
    document = json.loads(command("explain", inversion, "--json").stdout)
    ids = [entry["id"] for entry in document["slowest"]["e2el"]]
    requests = [json.loads(command("explain", inversion, id, "--json").stdout)["request"] for id in ids]
    assert len(ids) == 3
    for group, times in (("all", "by_reason"), ("e2el", "by_reason"), ("ttft", "until_first_token")):
        sums: dict[str, int] = {}
        for request in requests:
            for reason, time in request[times].items():
                sums[reason] = sums.get(reason, 0) + time
        found = document["groups"][group]
        assert {reason: row["time"] for reason, row in found["by_reason"].items()} == sums
        assert found["time"] == sum(sums.values())
        assert sum(row["share"] for row in found["by_reason"].values()) == pytest.approx(1)
    for request in requests:
        assert sum(span["end"] - span["start"] for span in request["spans"]) == request["e2el"]


def test_a_wait_is_proven_and_the_exit_code_says_so(inversion: str) -> None:
    scenario = str(EXAMPLES / "priority-inversion.toml")
    done = command("explain", inversion, "urgent", "--prove", scenario, "--json")
    proof = json.loads(done.stdout)["proof"]
    assert done.returncode == 0 and proof["proven"] and proof["limits"] == {"max_num_seqs": 2}
    assert proof["first_scheduled"] == 5_002_000_000
    assert proof["trials"] == [
        {
            "lifted": {"max_num_seqs": 3},
            "first_scheduled": 102_000_000,
            "queue_time": 2_000_000,
            "wait": None,
            "refused": None,
        }
    ]
    never_waited = command("explain", inversion, "low-1", "--prove", scenario)
    assert never_waited.returncode == 1 and "nothing to lift: it waited for no limit" in never_waited.stdout


def test_a_proof_takes_the_settings_of_the_trace(tmp_path: Path) -> None:
    """The trace was run with other settings than the file's, KV blocks among them."""
    scenario, trace = str(EXAMPLES / "partial-prefill-thrash.toml"), str(tmp_path / "t.jsonl")
    changed = ("--set", "engine.max_num_seqs=2", "--set", "engine.num_gpu_blocks=20001")
    assert command("run", scenario, *changed, "--trace", trace).returncode == 0
    done = command("explain", trace, "E", "--prove", scenario, "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["proof"]["limits"] == {"max_num_seqs": 2}


def test_a_proof_where_blocks_follow_from_the_gpu(tmp_path: Path) -> None:
    scenario, trace = str(EXAMPLES / "roofline.toml"), str(tmp_path / "t.jsonl")
    assert command("run", scenario, "--trace", trace).returncode == 0
    done = command("explain", trace, "D", "--prove", scenario, "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["proof"]["limits"]["max_num_batched_tokens"] == 2048


def test_who_came_in_a_gap_did_not_come_during_an_iteration() -> None:
    """From the recording's own lines: when each came, and whether an iteration ran then."""
    recording = EXAMPLES / "recorded-vllm.jsonl"
    lines = [json.loads(line) for line in recording.read_text().splitlines()]
    steps = [line for line in lines if line["type"] == "iteration"]
    for request in (line for line in lines if line["type"] == "request"):
        came = request["arrival"]
        ran = any(step["start"] <= came < step["end"] for step in steps)
        done = command("explain", str(recording), request["id"], "--json")
        first = json.loads(done.stdout)["request"]["spans"][0]
        assert first["reason"] == ("iteration under way" if ran else "between iterations"), request["id"]


def test_what_held_a_wait_up_too_did_so_all_the_while() -> None:
    facts: dict[str, Any] = {"ahead": 3, "waiting": 5, "also": ["token budget", "KV blocks"]}
    merge_facts(facts, {"ahead": 2, "also": ["KV blocks"]})
    assert facts["also"] == ["KV blocks"]
    merge_facts(facts, {"ahead": 1})
    merge_facts(facts, {"ahead": 0, "also": ["KV blocks"]})
    assert "also" not in facts


def test_a_proof_of_a_run_that_was_changed(tmp_path: Path) -> None:
    scenario, trace = str(EXAMPLES / "capacity-conversation.toml"), str(tmp_path / "t.jsonl")
    changed = ["--from-command", "vllm serve Qwen/Qwen3-32B -tp 2 --max-num-seqs 8"]
    changed += ["--set", "workload.generate.num_prompts=40", "--set", "workload.generate.request_rate=20"]
    assert command("run", scenario, *changed, "--trace", trace).returncode == 0
    done = command("explain", trace, "30", "--prove", scenario, *changed, "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["proof"]["limits"] == {"max_num_seqs": 8}
    refused(
        command("explain", trace, "30", "--prove", scenario),
        "clock.cost.llm: 'llama-3.1-8b': the trace has 'qwen3-32b'",
    )
    load = command("explain", trace, "30", "--prove", scenario, *changed[:4])
    assert load.returncode == 2 and "first scheduled: '" in load.stderr and " s: the run has to be" in load.stderr


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ('id = "low-1", arrival = 0, prompt = 100|id = "low-1", arrival = 0, prompt = 101', "first scheduled"),
        (
            "per_iteration = 10_000_000|per_iteration = 9_000_000",
            "clock.cost.per_iteration: 9000000.0: the trace has 10000000.0: the run has to be",
        ),
        ('id = "urgent"|id = "other"', "no request of the run has this id"),
    ],
)
def test_another_scenario_proves_nothing(inversion: str, tmp_path: Path, change: str, told: str) -> None:
    text = (EXAMPLES / "priority-inversion.toml").read_text()
    old, new = change.split("|")
    assert old in text
    other = tmp_path / "other.toml"
    other.write_text(text.replace(old, new))
    refused(command("explain", inversion, "urgent", "--prove", str(other)), told)


def refused(done: Done, *told: str) -> None:
    assert done.returncode == 2 and done.stdout == "", done.stderr
    assert "Traceback" not in done.stderr
    for text in told:
        assert text in done.stderr
    assert len(done.stderr.splitlines()) == 1 or done.stderr.startswith("Usage")


def test_what_is_refused(inversion: str, tmp_path: Path) -> None:
    scenario = str(EXAMPLES / "priority-inversion.toml")
    refused(command("explain", str(tmp_path / "none.jsonl")), "a readable file expected")
    refused(command("explain", scenario), "line 1", "JSON expected")
    refused(command("explain", inversion, "urgnet"), "no request of the trace has this id", "did you mean 'urgent'")
    refused(command("explain", inversion, "--prove", scenario), "--prove needs a REQUEST")
    for option, value in (
        ("--workload", "x.csv"),
        ("--set", "engine.max_num_seqs=3"),
        ("--from-command", "vllm serve M"),
    ):
        refused(command("explain", inversion, option, value), option, "goes with --prove")
    proof = ("explain", inversion, "urgent", "--prove", scenario)
    refused(command(*proof, "--policy", "orca"), "--policy: 'orca': the trace says which policy ran")
    empty = tmp_path / "empty.jsonl"
    empty.write_text("")
    refused(command("explain", str(empty)), "the file is empty")


BREAKS: dict[str, tuple[Any, str]] = {
    "a seat for nobody": (lambda line: line["admitted"].append("ghost"), "request 'ghost'"),
    "scheduled without a seat": (lambda line: line["scheduled"].append(["urgent", "decode", 1]), "request 'urgent'"),
    "time runs back": (lambda line: line.update(start=1, end=2), "times that rise expected"),
    "a wrong type": (lambda line: line.update(unused="many"), "unused"),
    "an unknown field": (lambda line: line.update(unusd=1), "did you mean 'unused'"),
    "comes twice": (lambda line: line["arrived"].append("low-1"), "request 'low-1'"),
}


@pytest.mark.parametrize("name", BREAKS)
def test_a_trace_that_contradicts_itself_is_told_with_its_line(inversion: str, tmp_path: Path, name: str) -> None:
    lines = Path(inversion).read_text().splitlines()
    line = json.loads(lines[6])
    change, told = BREAKS[name]
    change(line)
    broken = tmp_path / "broken.jsonl"
    broken.write_text("\n".join([*lines[:6], json.dumps(line), *lines[7:], ""]))
    refused(command("explain", str(broken)), str(broken), "line 7", told)


def test_a_cut_trace_is_explained_with_a_remark(inversion: str, tmp_path: Path) -> None:
    cut = tmp_path / "cut.jsonl"
    cut.write_text("".join(Path(inversion).read_text().splitlines(keepends=True)[:100]))
    done = command("explain", str(cut), "urgent")
    assert done.returncode == 0 and "has no end line" in done.stderr
    assert json.loads(command("explain", str(cut), "--json").stdout)["complete"] is False


def test_a_trace_without_iterations(tmp_path: Path, inversion: str) -> None:
    header = Path(inversion).read_text().splitlines()[0]
    path = tmp_path / "header.jsonl"
    path.write_text(header + "\n")
    done = command("explain", str(path))
    assert done.returncode == 0 and "0 requests, 0 iterations" in done.stdout and "no trouble found" in done.stdout
    assert command("explain", str(path), "urgent").returncode == 0


def test_tables_fit_narrow_and_wide_terminals(inversion: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from rich.console import Console

    from batchlab.cli import explain_tables
    from batchlab.explain import explain

    found = explain(inversion, ["urgent"])
    for width in (80, 120):
        out = Console(width=width, record=True, file=open(os.devnull, "w"), force_terminal=True)  # noqa: SIM115
        monkeypatch.setattr(explain_tables, "console", lambda out=out: out)
        explain_tables.print_overview("trace.jsonl", found)
        explain_tables.print_request(found, found.life("urgent"))
        lines = out.export_text().splitlines()
        assert max(map(len, lines)) <= width
        assert not any("…" in line for line in lines)


def renamed(folder: Path, *names: tuple[str, str]) -> str:
    """The recorded example with the ids of its requests changed so: the path of its trace."""
    text = (EXAMPLES / "recorded-vllm.jsonl").read_text(encoding="utf-8")
    for before, after in names:
        text = text.replace(before, after)
    trace = folder / "t.jsonl"
    trace.write_text(text)
    return str(trace)


def one_request(trace: str, *written: str) -> None:
    """Each of these names the same request of the trace."""
    first, *others = (command("explain", trace, name, "--json") for name in written)
    assert first.returncode == 0 and json.loads(first.stdout)["request"]["spans"]
    for done in others:
        assert (done.returncode, done.stdout) == (0, first.stdout)


def test_the_beginning_of_an_id_will_do_if_it_is_only_one(tmp_path: Path) -> None:
    """vLLM puts `cmpl-` before what the client calls it, and something random behind."""
    plain = renamed(tmp_path)  # as the mock server has it, whose answer says cmpl-chat-4-a550ffcc
    one_request(plain, "chat-4-a550ffcc", "cmpl-chat-4-a550ffcc", "chatcmpl-chat-4-a550ffcc")
    trace = renamed(tmp_path, ("chat-4-a550ffcc", "cmpl-chat-4-a550ffcc"), ("chat-3-", "chatcmpl-chat-3-"))
    one_request(trace, "cmpl-chat-4-a550ffcc", "chat-4", "cmpl-", "cmpl-chat-4-a")
    for written, said in (
        ("chat-", "requests begin so: 'chat-1-977961ab', "),
        ("chat-4-b550ffcc", "has this id (did you mean 'cmpl-chat-4-a550ffcc'?)"),
        ("", "begin so"),
    ):
        wrong = command("explain", trace, written)
        assert wrong.returncode == 2 and said in wrong.stderr


def test_a_whole_name_goes_before_the_beginning_of_one(tmp_path: Path) -> None:
    """`bench` names requests by their numbers: r1 is one of them, though r10 begins so too."""
    trace = renamed(tmp_path, ("chat-4-", "cmpl-1-0-"), ("chat-3-", "cmpl-10-0-"))
    one_request(trace, "cmpl-1-0-a550ffcc", "1", "1-0", "cmpl-1")
    trace = renamed(tmp_path, ("chat-4-", "cmpl-1-0-"), ("chat-3-", "cmpl-1-1-"), ("chat-2-", "cmpl-10-"))
    wrong = command("explain", trace, "1")
    assert wrong.returncode == 2 and "the ids of 2 requests begin so: 'cmpl-1-" in wrong.stderr


def test_reasons_that_take_turns_are_one_row():
    """Two reasons one after the other: six times or more they are one row, and what lies before and behind is not."""

    def row(start, reason):
        return Span(reason, start, start + 1, start, start), f"text {start}"

    behind, budget = Reason.BEHIND_BLOCKS, Reason.BUDGET
    few = [row(0, behind), row(1, budget), row(2, behind), row(3, budget), row(4, behind), row(5, Reason.PREFILL)]
    assert [([span], text) for span, text in few] == by_turns(few)
    many = [row(at, (behind, budget)[at % 2]) for at in range(9)]
    around = [row(9, Reason.PREFILL), row(10, Reason.DECODE)]
    assert by_turns(many + around) == [
        (
            [span for span, _ in many],
            "5 x head of line (blocks) and 4 x token budget, one after the other; first: text 0; last: text 8",
        ),
        *(([span], text) for span, text in around),
    ]
    assert [len(spans) for spans, _ in by_turns([row(20, Reason.SEATS), *many])] == [1, 9]


def test_of_a_server_that_nobody_has_asked_there_are_no_empty_tables(tmp_path: Path) -> None:
    header, *_ = (EXAMPLES / "recorded-vllm.jsonl").read_text(encoding="utf-8").splitlines()
    trace = tmp_path / "t.jsonl"
    trace.write_text(header + "\n", encoding="utf-8")
    done = command("explain", str(trace))
    assert (done.returncode, done.stdout) == (0, f"{trace}: vllm (vLLM 0.32.0), 0 requests, 0 iterations, 0 ns\n")
    shown = command("show", str(trace))
    assert shown.returncode == 0
    assert "the recording ends after 0 iterations, at 0 ns: no requests" in shown.stdout
    assert "arrived" not in shown.stdout and "TTFT" not in shown.stdout


def test_the_time_counts_from_the_first_arrival() -> None:
    """A server that idles for 300 s before its first request has not taken 312 s for the load."""
    assert _took(312_887_000_000, [300_887_000_000, 301_000_000_000], "ns") == (
        f"{duration(12_000_000_000, 'ns')} from the first arrival at {duration(300_887_000_000, 'ns')} to the end"
    )
    assert _took(5_000_000_000, [0, 7], "ns") == duration(5_000_000_000, "ns")
